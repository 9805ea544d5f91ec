//! Precision, optimizer and adapters.

use super::{Facts, is_size};
use crate::detect::size::memory::{Adapter, Optimiser, Precision};
use crate::detect::text::Text;

/// Reads a word that names an optimizer, an adapter or a precision.
pub(super) fn read(text: &Text<'_>, index: usize, facts: &mut Facts) {
    let word = text.word(index);
    let next = text.after(index).map_or("", |next| text.word(next));
    let optimiser = match word {
        "adam" | "adamw" if is_8_bit(text, index) => Some(Optimiser::Adam8Bit),
        "adam" if index > 0 && text.word(index - 1) == "bit" => Some(Optimiser::Adam8Bit),
        "adam" | "adamw" => Some(Optimiser::Adam),
        "sgd" => Some(Optimiser::Sgd),
        "adafactor" => Some(Optimiser::Adafactor),
        _ => None,
    };
    facts.optimiser = facts.optimiser.or(optimiser);
    let adapter = match word {
        "qlora" => Some(Adapter::Quantised),
        "lora" | "peft" => Some(Adapter::Plain),
        _ => None,
    };
    if adapter == Some(Adapter::Quantised) || facts.adapter.is_none() {
        facts.adapter = adapter.or(facts.adapter);
    }
    // Reference model and reward model.
    facts.judges = facts.judges.max(match word {
        "dpo" | "grpo" | "kto" => 1,
        "ppo" | "rlhf" => 2,
        _ => 0,
    });
    facts.checkpointing |= word == "gradient" && next == "checkpointing";
    if facts.precision.is_none() {
        facts.precision = precision(text, index, word, next);
    }
}

/// `adamw 8bit`, `adamw-8-bit`, `8-bit adam`.
fn is_8_bit(text: &Text<'_>, index: usize) -> bool {
    let next = text.after(index);
    let then = next.and_then(|next| text.after(next));
    let word = |at: Option<usize>| at.map_or("", |at| text.word(at));
    let before = |back: usize| index.checked_sub(back).map_or("", |at| text.word(at));
    word(next) == "8bit"
        || word(next) == "8" && word(then) == "bit"
        || before(1) == "8bit"
        || before(1) == "bit" && (before(2) == "8" || before(3) == "8")
}

fn precision(text: &Text<'_>, index: usize, word: &str, next: &str) -> Option<Precision> {
    let of_optimiser = |at: usize| text.word(at).starts_with("adam");
    let beside = (index.saturating_sub(2)..index + 4).any(of_optimiser);
    Some(match word {
        "fp32" | "float32" | "tf32" => Precision::Single,
        "fp16" | "float16" => Precision::Half,
        "bf16" | "bfloat16" => Precision::Brain,
        "half" if next == "precision" => Precision::Half,
        "mixed" if next == "precision" => Precision::Brain,
        "fp8" | "float8" => Precision::Float8,
        "int8" | "w8a8" | "w8a16" => Precision::Int8,
        "8bit" if !beside => Precision::Int8,
        "8" if next == "bit" && !beside => Precision::Int8,
        "int4" | "4bit" | "nf4" | "awq" | "gptq" | "w4a16" => Precision::Int4,
        "fp4" | "mxfp4" | "nvfp4" => Precision::Float4,
        "4" if next == "bit" => Precision::Int4,
        _ => return gguf(text, index, word, next),
    })
}

/// `q4_K_M`, `Q8_0`, `iq4_xs`, `70b-q4`, and `gguf q4`; Q4 may also be a quarter of a year.
fn gguf(text: &Text<'_>, index: usize, word: &str, next: &str) -> Option<Precision> {
    let bits = word.strip_prefix("iq").or_else(|| word.strip_prefix('q'))?;
    let bits = bits.parse().ok().filter(|bits| (1..=8).contains(bits))?;
    let variant = text.mark(index + 1) == Some('_') && !next.is_empty();
    let sized = index >= 2 && text.mark(index - 1) == Some('-') && is_size(text, index - 2);
    let named = (index.saturating_sub(3)..index + 4).any(|at| text.word(at) == "gguf");
    (variant || sized || named).then_some(Precision::Gguf(bits))
}
