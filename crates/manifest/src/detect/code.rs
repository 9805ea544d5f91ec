//! Calls in code that update weights: training scripts rarely state in prose that they train.

use super::kind::WorkloadType::{self, FineTuning, Training};
use super::text::Text;
use super::words::{HINT, MIDDLE};

/// Function call that trains a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// Canonical name for counting and display.
    pub(super) name: &'static str,
    pub(super) first: usize,
    pub(super) tokens: usize,
    pub(super) weight: f64,
    pub(super) kind: WorkloadType,
}

/// Every call of a text that trains.
pub(super) fn calls<'a>(text: &'a Text<'_>) -> impl Iterator<Item = Call> + 'a {
    (0..text.tokens.len()).filter_map(|index| call(text, index))
}

fn call(text: &Text<'_>, index: usize) -> Option<Call> {
    let name = text.word(index);
    let called = text.mark(index + 1) == Some('(');
    let owner = owner(text, index);
    let of = |name, weight, kind| {
        let first = if owner.is_empty() { index } else { index - 2 };
        Some(Call { name, first, tokens: index + 1 - first, weight, kind })
    };
    match (owner, name) {
        ("torch", "optim") | ("tensorflow" | "keras" | "tf", "optimizers") => {
            of("an optimiser", MIDDLE, Training)
        }
        _ if !called => None,
        // Other names are ambiguous; `loss` and `optimizer` are specific.
        ("loss" | "losses" | "accelerator", "backward") => of("loss.backward()", MIDDLE, Training),
        (_, "backward") if !owner.is_empty() => of("backward()", HINT, Training),
        ("optimizer" | "optimiser", "step") => of("optimizer.step()", MIDDLE, Training),
        ("opt" | "optim" | "scaler" | "engine", "step") => of("optimizer.step()", HINT, Training),
        ("trainer", "fit" | "train") => of("trainer.train()", MIDDLE, Training),
        ("model", "fit" | "train") => of("model.train()", HINT, Training),
        (_, "sfttrainer" | "dpotrainer" | "grpotrainer") => of("a trainer", MIDDLE, FineTuning),
        (_, "trainingarguments" | "seq2seqtrainer") => of("a trainer", MIDDLE, Training),
        ("optim" | "optimizers", _) => of("an optimiser", HINT, Training),
        (_, "adamw" | "adam" | "sgd" | "adafactor" | "rmsprop" | "adagrad") => {
            of("an optimiser", HINT, Training)
        }
        _ => None,
    }
}

/// The word before a dot: `loss` of `loss.backward`.
fn owner<'a>(text: &'a Text<'_>, index: usize) -> &'a str {
    let dotted = index >= 2 && text.mark(index - 1) == Some('.');
    if dotted { text.word(index - 2) } else { "" }
}
