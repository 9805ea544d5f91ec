//! Negations: "no GPU needed", "without CUDA", "GPU: none", "CPU only".

mod answer;
mod words;

use std::ops::Range;

use self::words::{
    is_adverb, is_contrast, is_filler, is_foreign, is_foreign_filler, is_need, is_negation,
};
use super::text::{Text, TokenKind};

/// Polarity of a word in its sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Polarity {
    Affirmed,
    /// Not needed or not used.
    Denied,
    /// Not available, which does not mean not needed: "my laptop has no GPU".
    Lacking,
}

/// Most tokens between a negation and its word.
const REACH: usize = 12;

/// Most tokens of a sentence considered around a word.
const SENTENCE: usize = 60;

/// Polarity of a word at these tokens, with the first token of its negation. `listed` marks tokens of the same category:
/// in "no GPU, CUDA or driver" the "no" covers them all.
pub(super) fn polarity(
    text: &Text<'_>,
    tokens: &Range<usize>,
    listed: &[bool],
) -> (Polarity, Option<usize>) {
    if let Some(disabled) = disabled(text, tokens) {
        return (Polarity::Denied, Some(disabled));
    }
    if denied_after(text, tokens.end) || answer::question_denies(text, tokens.start, tokens.end) {
        return (Polarity::Denied, Some(tokens.start));
    }
    let none = is_none_of(text, tokens.start).then(|| tokens.start - 1);
    let Some(negation) = none.or_else(|| negation_before(text, tokens.start, listed)) else {
        return (Polarity::Affirmed, None);
    };
    if is_about_something_else(text, tokens.end) || is_condition(text, negation) {
        return (Polarity::Affirmed, None);
    }
    let before = if negation == 0 { "" } else { text.word(negation - 1) };
    // "with or without a GPU"
    let either = before == "or";
    if text.word(negation) == "without"
        && (either
            || answer::is_answered_no(text, tokens.end)
            || is_needed_after_all(text, negation, tokens.end))
    {
        return (Polarity::Affirmed, None);
    }
    let mut between = (negation + 1..tokens.start).map(|at| text.word(at));
    let had = matches!(before, "have" | "has" | "had" | "having" | "got" | "is" | "there's");
    let lacking = (had && text.word(negation) == "no"
        || between.clone().any(|word| word == "have"))
        && !between.any(is_need);
    (if lacking { Polarity::Lacking } else { Polarity::Denied }, Some(negation))
}

/// Statements that a CPU is sufficient, as token ranges.
pub(super) fn cpu_is_enough<'a>(text: &'a Text<'_>) -> impl Iterator<Item = Range<usize>> + 'a {
    let cpu = |index: &usize| matches!(text.word(*index), "cpu" | "cpus");
    let statements =
        (0..text.tokens.len()).filter(cpu).filter_map(|index| cpu_statement(text, index));
    statements.filter(|tokens| {
        let denied = is_denied(text, tokens.start) || denied_after(text, tokens.end);
        !denied && !answer::is_answered_no(text, tokens.end) && !is_condition(text, tokens.start)
    })
}

/// "CPU only", "only CPU", "CPU is enough", "runs on the CPU".
fn cpu_statement(text: &Text<'_>, index: usize) -> Option<Range<usize>> {
    let next = text.after(index);
    let word_after = next.map_or("", |next| text.word(next));
    let before = |back: usize| index.checked_sub(back).map_or("", |at| text.word(at));
    if word_after == "only" {
        return Some(index..next.unwrap_or(index) + 1);
    }
    let enough = word_after == "is"
        && matches!(text.word(next.unwrap_or(index) + 1), "enough" | "sufficient");
    if enough || word_after == "suffices" || matches!(before(1), "only" | "pure") {
        return Some(index..index + 1);
    }
    let article = usize::from(matches!(before(1), "the" | "a" | "one"));
    let verb = before(2 + article);
    let runs = matches!(verb, "run" | "runs" | "running" | "only" | "entirely" | "purely");
    (before(1 + article) == "on" && runs).then(|| index - 2 - article..index + 1)
}

/// True if the statement concerns only a part of the work, such as its tests or its web server.
pub(super) fn is_aside(text: &Text<'_>, tokens: &Range<usize>) -> bool {
    let ends = |index: usize| {
        text.ends(index) || is_contrast(text.word(index)) || text.mark(index) == Some(',')
    };
    let (first, last) = around(text, tokens.start, tokens.end);
    let start = (first..tokens.start).rev().find(|at| ends(*at)).map_or(first, |at| at + 1);
    let end = (tokens.end..last).find(|at| ends(*at)).unwrap_or(last);
    (start..end).any(|index| {
        matches!(
            text.word(index),
            "test"
                | "tests"
                | "testing"
                | "ci"
                | "build"
                | "builds"
                | "frontend"
                | "front"
                | "web"
                | "dashboard"
                | "preprocessing"
                | "documentation"
                | "docs"
                | "scheduler"
                | "database"
                | "api"
                | "gateway"
                | "ui"
                | "development"
                | "login"
        )
    })
}

/// Negation before a word, across filler words.
fn negation_before(text: &Text<'_>, start: usize, listed: &[bool]) -> Option<usize> {
    let mut passed_article = false;
    for at in (start.saturating_sub(REACH)..start).rev() {
        match text.tokens.get(at)?.sort {
            TokenKind::Mark(',' | '/') if !passed_article => {}
            TokenKind::Mark('-' | '_' | '`' | '"' | '*') => {}
            TokenKind::Break | TokenKind::Mark(_) => return None,
            TokenKind::Word => {
                let word = text.word(at);
                if is_negation(word) {
                    // "No, a GPU is required" answers another question.
                    let answers = word == "no" && text.mark(at + 1) == Some(',');
                    return (!answers).then_some(at);
                }
                if is_foreign(word) {
                    return (!is_denied_abroad(text, at)).then_some(at);
                }
                let listed = listed.get(at).copied().unwrap_or(false);
                if matches!(word, "or" | "and" | "nor") && passed_article
                    || !(listed || is_filler(word) || is_foreign_filler(word))
                {
                    return None;
                }
                passed_article |= matches!(word, "the" | "our" | "this");
            }
        }
    }
    None
}

/// "geht nicht ohne GPU", "pas possible sans GPU".
fn is_denied_abroad(text: &Text<'_>, negation: usize) -> bool {
    let denies = |word: &str| {
        matches!(word, "nicht" | "nie" | "non" | "niet" | "kaum")
            || is_negation(word)
            || is_foreign(word)
    };
    (negation.saturating_sub(4)..negation).any(|at| denies(text.word(at)))
}

/// "GPU not needed", "GPUs are no longer required", "gpu: none", `gpu_count: 0`, "GPU-free", `CUDA_VISIBLE_DEVICES=-1`.
fn denied_after(text: &Text<'_>, end: usize) -> bool {
    let mut at = end;
    let mut counted = false;
    let visible = (end..end + 4).any(|at| text.word(at) == "visible");
    while matches!(
        text.word(at),
        "s" | "count"
            | "support"
            | "usage"
            | "use"
            | "enabled"
            | "is"
            | "are"
            | "will"
            | "be"
            | "would"
            | "acceleration"
            | "hardware"
            | "visible"
            | "devices"
    ) || matches!(text.mark(at), Some('_' | '"' | '\'' | '`'))
        || is_need(text.word(at))
            && matches!(text.mark(at + 1), Some(':' | '=' | '-' | '–' | '—' | '|' | '→'))
        || text.mark(at) == Some('.') && text.word(at + 1) == "enabled"
    {
        counted |= text.word(at) == "count";
        at += 1;
    }
    if matches!(text.mark(at), Some(':' | '=')) {
        let value = (at + 1..at + 3).find(|at| !text.word(*at).is_empty()).unwrap_or(at + 1);
        // `nvidia.com/gpu`; `/gpu:0` has no text before the slash.
        let resource =
            end >= 3 && text.mark(end - 2) == Some('/') && !text.word(end - 3).is_empty();
        let zero = text.word(value) == "0" && (counted || resource || is_amount(text, end, value));
        let hidden = visible && is_no_device(text, at + 1);
        return zero || hidden || answer::is_negative_answer(text, value);
    }
    if answer::dash_denies(text, at) {
        return true;
    }
    let free = text.mark(end) == Some('-') && matches!(text.word(end + 1), "free" | "less");
    let outside = text.word(at) == "out" && text.word(at + 2) == "scope";
    let word = text.word(at);
    let next =
        if text.word(at + 1) == "longer" || is_adverb(text.word(at + 1)) { at + 2 } else { at + 1 };
    free || outside
        || matches!(
            word,
            "unnecessary" | "unneeded" | "unwanted" | "excluded" | "forbidden" | "disabled"
        )
        || is_negation(word) && word != "without" && answer::is_not_needed(text.word(next))
        || is_negation(word) && is_need(text.word(next)) && text.word(next) != "use"
}

/// True if the zero after a name is a GPU count, as in `gpu: 0` and `gpus=0`; in `/gpu:0` and `gpu=0` it can be the
/// first GPU.
fn is_amount(text: &Text<'_>, end: usize, value: usize) -> bool {
    let name = end.checked_sub(1).map_or("", |name| text.word(name));
    let starts = |at: usize| text.tokens.get(at).map(|token| token.range.start);
    let ends = |at: usize| text.tokens.get(at).map(|token| token.range.end);
    let apart = value.checked_sub(1).and_then(ends) < starts(value);
    // `USE_GPU=0`
    let switch = end >= 3
        && text.mark(end - 2) == Some('_')
        && matches!(text.word(end - 3), "use" | "enable" | "with");
    name == "gpus" || switch || name == "gpu" && apart && text.mark(value - 1) == Some(':')
}

/// `-1` or two quotes with nothing between, by which CUDA is shown no device.
fn is_no_device(text: &Text<'_>, at: usize) -> bool {
    let quote = |at: usize| matches!(text.mark(at), Some('"' | '\''));
    let at = if quote(at) { at + 1 } else { at };
    quote(at) || text.mark(at) == Some('-') && text.word(at + 1) == "1"
}

/// `--disable-gpu`, "disable CUDA"; not "disable GPU throttling".
fn disabled(text: &Text<'_>, tokens: &Range<usize>) -> Option<usize> {
    let mut before = (tokens.start.saturating_sub(2)..tokens.start).rev();
    let verb = before.find(|at| text.mark(*at) != Some('-'))?;
    let disables = matches!(text.word(verb), "disable" | "disables" | "disabled" | "disabling");
    (disables && text.word(tokens.end).is_empty() && text.mark(tokens.end) != Some('-'))
        .then_some(verb)
}

/// "0 GPUs"; not "from 0 GPUs to 8", "0 GPUs are free", nor the one after "GPU 0".
fn is_none_of(text: &Text<'_>, start: usize) -> bool {
    let counted = matches!(text.word(start), "gpu" | "gpus");
    let before = |back: usize| start.checked_sub(back).map_or("", |at| text.word(at));
    let of_others = ["from", "to", "between", "gpu", "device", "cuda", "than", "over"];
    let busy = matches!(text.word(start + 1), "is" | "are")
        && matches!(text.word(start + 2), "available" | "free" | "left" | "idle" | "found");
    counted && before(1) == "0" && !of_others.contains(&before(2)) && !busy
}

/// "no GPU quota" and "no GPU sharing" do not negate the need for a GPU.
fn is_about_something_else(text: &Text<'_>, end: usize) -> bool {
    let noun = if text.mark(end) == Some('-') { text.word(end + 1) } else { text.word(end) };
    matches!(
        noun,
        "quota"
            | "quotas"
            | "sharing"
            | "shared"
            | "shortage"
            | "limit"
            | "limits"
            | "memory"
            | "fraction"
            | "fractions"
            | "time"
            | "slicing"
            | "scheduling"
            | "error"
            | "errors"
            | "contention"
            | "utilisation"
            | "utilization"
            | "hours"
            | "budget"
            | "partitioning"
            | "idle"
            | "left"
            | "available"
            | "free"
    ) && !(noun == "free" && text.mark(end) == Some('-'))
}

/// "if no GPU is available".
fn is_condition(text: &Text<'_>, negation: usize) -> bool {
    (negation.saturating_sub(3)..negation)
        .any(|at| matches!(text.word(at), "if" | "when" | "whenever" | "unless" | "case" | "where"))
}

/// "cannot run without a GPU", "without a GPU it would take weeks".
fn is_needed_after_all(text: &Text<'_>, negation: usize, end: usize) -> bool {
    let (first, last) = around(text, negation, end);
    let start = (first..negation).rev().find(|at| text.ends(*at)).map_or(first, |at| at + 1);
    let stop = (end..last).find(|at| text.ends(*at)).unwrap_or(last);
    let refused = |word: &str| {
        is_negation(word)
            || matches!(
                word,
                "cannot"
                    | "impossible"
                    | "unable"
                    | "hardly"
                    | "useless"
                    | "pointless"
                    | "slow"
                    | "fails"
            )
    };
    let costly = |word: &str| {
        matches!(
            word,
            "would"
                | "slow"
                | "impossible"
                | "cannot"
                | "can't"
                | "fails"
                | "weeks"
                | "days"
                | "forever"
        )
    };
    (start..negation).any(|at| refused(text.word(at)))
        || (end..stop).any(|at| costly(text.word(at)))
}

/// Tokens considered around a range.
fn around(text: &Text<'_>, start: usize, end: usize) -> (usize, usize) {
    (start.saturating_sub(SENTENCE), (end + SENTENCE).min(text.tokens.len()).max(end))
}

/// "not CPU only", "no longer on CPU only".
fn is_denied(text: &Text<'_>, first: usize) -> bool {
    (first.saturating_sub(4)..first).rev().take_while(|at| !text.ends(*at)).any(|at| {
        is_negation(text.word(at)) && text.word(at) != "without" || text.word(at) == "longer"
    })
}
