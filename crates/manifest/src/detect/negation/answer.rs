//! Denials in the form of an answer: "GPU? No.", "GPU: none", "needs a GPU - no".

use super::words::{is_adverb, is_need};
use super::{SENTENCE, Text, TokenKind};

/// Most tokens between a word and the end of its question.
const QUESTION: usize = 8;

/// True if a question asks for the word that ends here and the answer is no: "GPU? No.", "Do we need a GPU for this?
/// No." A question about something else ("Is one GPU enough?") negates nothing.
pub(super) fn question_denies(text: &Text<'_>, start: usize, end: usize) -> bool {
    let Some(mark) = question_mark(text, end) else { return false };
    let first = sentence_start(text, start);
    let words = || (first..mark).filter(|at| !(start..end).contains(at)).map(|at| text.word(at));
    let asks = words().all(is_name) || words().any(|word| is_need(word) || word == "necessary");
    // "Do we need a GPU for this PyTorch service?" does not ask for PyTorch.
    let aside = (first..start).rev().take_while(|at| !is_need(text.word(*at))).any(|at| {
        matches!(text.word(at), "for" | "in" | "on" | "with" | "during" | "by" | "when" | "to")
    });
    asks && !aside
        && !words().any(is_about_amount_or_absence)
        && is_no_alone(text, answer(text, mark))
}

/// True if the question around a word is answered with no, regardless of its subject: "Can it run without a GPU? No."
pub(super) fn is_answered_no(text: &Text<'_>, end: usize) -> bool {
    question_mark(text, end).is_some_and(|mark| is_no_alone(text, answer(text, mark)))
}

/// "no", "none", "not needed" and similar answers; not "no preference", "not sure", or the question "no?".
pub(super) fn is_negative_answer(text: &Text<'_>, at: usize) -> bool {
    let next = text.word(at + 1);
    match text.word(at) {
        "false" | "off" | "disabled" | "nope" | "n" => true,
        "none" | "never" | "zero" => {
            !matches!(next, "available" | "left" | "free" | "idle" | "yet" | "found" | "mind")
        }
        "no" => closes(text, at + 1) || is_need(next) || matches!(next, "gpu" | "gpus" | "thanks"),
        "not" => {
            let next = if next == "longer" || is_adverb(next) { text.word(at + 2) } else { next };
            is_not_needed(next)
        }
        _ => matches!(text.mark(at), Some('❌' | '✗' | '✘' | '✖')),
    }
}

/// Answer that is only a no: "None needed", "no, thanks"; not "off the shelf".
fn is_no_alone(text: &Text<'_>, at: usize) -> bool {
    let next = text.word(at + 1);
    let whole = text.word(at) == "not" || is_need(next) || matches!(next, "thanks" | "at");
    is_negative_answer(text, at) && (whole || closes(text, at + 1))
}

/// "GPU - no", "| GPU | no |": a mark with space on both sides, and nothing but the answer after it; "needs a GPU - no
/// CPU would do" denies nothing.
pub(super) fn dash_denies(text: &Text<'_>, at: usize) -> bool {
    let dash = match text.mark(at) {
        Some('|') => true,
        Some('-' | '–' | '—' | '→') => is_apart(text, at),
        _ => false,
    };
    dash && is_no_alone(text, at + 1)
}

/// Words after "not" that deny a need.
pub(super) fn is_not_needed(word: &str) -> bool {
    matches!(
        word,
        "needed"
            | "required"
            | "necessary"
            | "used"
            | "wanted"
            | "involved"
            | "applicable"
            | "planned"
            | "part"
            | "allowed"
            | "be"
    )
}

/// Words beside a name in a question of names: "Any NVIDIA GPU or CUDA?".
fn is_name(word: &str) -> bool {
    matches!(
        word,
        "" | "a"
            | "an"
            | "any"
            | "s"
            | "or"
            | "gpu"
            | "gpus"
            | "cuda"
            | "nvidia"
            | "card"
            | "cards"
            | "support"
            | "acceleration"
    )
}

/// "Is one GPU enough?", "Can it do without a GPU?" and "Is the GPU optional?" do not ask for a need.
fn is_about_amount_or_absence(word: &str) -> bool {
    word.starts_with(|letter: char| letter.is_ascii_digit())
        || matches!(
            word,
            "one"
                | "two"
                | "single"
                | "second"
                | "more"
                | "extra"
                | "additional"
                | "another"
                | "dedicated"
                | "than"
                | "enough"
                | "optional"
                | "without"
                | "no"
                | "not"
                | "avoid"
                | "only"
                | "full"
                | "whole"
                | "big"
                | "bigger"
                | "large"
                | "larger"
        )
}

/// End of the current sentence if it is a question.
fn question_mark(text: &Text<'_>, end: usize) -> Option<usize> {
    let stop = (end..end + QUESTION).find(|at| text.ends(*at))?;
    text.asks(stop).then_some(stop)
}

fn sentence_start(text: &Text<'_>, start: usize) -> usize {
    let first = start.saturating_sub(SENTENCE);
    let stops = |at: &usize| text.ends(*at) || matches!(text.mark(*at), Some(':' | ',' | '('));
    (first..start).rev().find(stops).map_or(first, |at| at + 1)
}

/// First token after a question, across the line end, bullets, quotes and "A:".
fn answer(text: &Text<'_>, mark: usize) -> usize {
    let mut at = mark + 1;
    loop {
        let ended = at < text.tokens.len() && text.ends(at) && !text.asks(at);
        let bullet = matches!(
            text.mark(at),
            Some('-' | '*' | '>' | '"' | '_' | '|' | '–' | '—' | '(' | '→')
        );
        let speaker = matches!(text.word(at), "a" | "answer") && text.mark(at + 1) == Some(':');
        at += match (ended || bullet, speaker) {
            (true, _) => 1,
            (_, true) => 2,
            _ => return at,
        };
    }
}

/// True if no text after an answer reverses it: end of the sentence, or a mark that does not join.
fn closes(text: &Text<'_>, at: usize) -> bool {
    match text.tokens.get(at).map(|token| token.sort) {
        Some(TokenKind::Break) => !text.asks(at),
        Some(TokenKind::Mark('-' | '_' | '/')) => is_apart(text, at),
        None | Some(TokenKind::Mark(_)) => true,
        Some(TokenKind::Word) => false,
    }
}

/// True if a token has space on both sides.
fn is_apart(text: &Text<'_>, at: usize) -> bool {
    let range = |at: usize| text.tokens.get(at).map(|token| token.range.clone());
    let Some(here) = range(at) else { return true };
    let before = at.checked_sub(1).and_then(range).is_none_or(|before| before.end < here.start);
    before && range(at + 1).is_none_or(|after| here.end < after.start)
}
