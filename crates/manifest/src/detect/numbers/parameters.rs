//! Parameter counts.

use super::{Facts, Parameters, split_number};
use crate::detect::models;
use crate::detect::text::Text;

/// Largest plausible count.
const MOST_PARAMETERS: f64 = 1e14;

/// Formats that follow only a parameter count.
const FORMATS: [&str; 16] = [
    "bf16", "fp16", "fp32", "fp8", "int8", "int4", "4bit", "8bit", "bfloat16", "gguf", "awq",
    "gptq", "mxfp4", "nvfp4", "nf4", "exl2",
];

/// Words after a parameter count.
const MODELS: [&str; 10] = [
    "model",
    "llm",
    "network",
    "instruct",
    "chat",
    "gpt",
    "teacher",
    "student",
    "transformer",
    "moe",
];

/// Reads a parameter count, identified by its context.
pub(super) fn read(text: &Text<'_>, index: usize, facts: &mut Facts) {
    let Some((count, last, in_words)) = parameter_count(text, index) else { return };
    let follows = |reach: usize, begins: &[&str]| {
        let near = (last + 1..=last + reach).take_while(|at| !text.ends(*at));
        near.into_iter().any(|at| begins.iter().any(|begin| text.word(at).starts_with(begin)))
    };
    // `10T` is mostly a disk.
    let trillions = count >= 1e12 && !text.word(index).ends_with('b');
    let named =
        words_before(text, index, 4).find_map(|at| models::named(text, at)).filter(|_| !trillions);
    let plain = !in_words && !trillions;
    let millions = count < 1e9 && !text.word(index).ends_with('b');
    let said = follows(3, &["param", "weight"]) || !millions && plain && follows(3, &MODELS);
    let typed = plain && (follows(3, &FORMATS) || is_typed(text, index, last));
    let adapted = !millions && plain && (is_adapted(text, index) || is_tuned(text, last));
    let money = index
        .checked_sub(1)
        .is_some_and(|before| matches!(text.mark(before), Some('$' | '€' | '£')));
    // Otherwise it may be bus line 7B.
    if money || !(said || typed || adapted || named.is_some()) {
        return;
    }
    if facts.parameters.as_ref().is_some_and(|known| known.count >= count) {
        return;
    }
    let start = text.tokens.get(index).map_or(0, |token| token.range.start);
    let end = text.tokens.get(last).map_or(start, |token| token.range.end);
    let bytes = start..end;
    let written = text.written(&bytes).to_owned();
    facts.family = named.map(|named| named.name);
    facts.parameters = Some(Parameters { count, written, bytes, in_words });
}

/// Words before a token in its sentence; joining marks do not count: `Mistral-Large-2 123B`.
fn words_before<'t>(
    text: &'t Text<'_>,
    index: usize,
    words: usize,
) -> impl Iterator<Item = usize> + 't {
    let near = (index.saturating_sub(4 * words)..index).rev().take_while(|at| !text.ends(*at));
    near.filter(|at| !matches!(text.mark(*at), Some('-' | '_' | '.'))).take(words)
}

/// `bf16 training of 175B`, `70B in 4-bit`.
fn is_typed(text: &Text<'_>, index: usize, last: usize) -> bool {
    let before = (index.saturating_sub(4)..index).rev().take_while(|at| !text.ends(*at));
    let near = (last + 1..=last + 3).take_while(|at| !text.ends(*at));
    let bits = |at: usize| {
        let bit = |next: usize| matches!(text.word(next), "bit" | "bits");
        matches!(text.word(at), "4" | "8" | "16") && text.after(at).is_some_and(bit)
    };
    before.into_iter().any(|at| FORMATS.contains(&text.word(at))) || near.into_iter().any(bits)
}

/// `13B full fine-tune`, `7B finetuning`.
fn is_tuned(text: &Text<'_>, last: usize) -> bool {
    let mut near = (last + 1..=last + 3).take_while(|at| !text.ends(*at));
    near.any(|at| match text.word(at) {
        "fine" => text.after(at).is_some_and(|next| text.word(next).starts_with("tun")),
        word => word.starts_with("finetun") || word == "qlora" || word == "sft",
    })
}

/// `qlora 70B`, `lora on 13B`, `fine-tune a 70B`; `LoRa` is a radio.
fn is_adapted(text: &Text<'_>, index: usize) -> bool {
    let near = (index.saturating_sub(4)..index).rev().take_while(|at| !text.ends(*at));
    near.into_iter().any(|at| match text.word(at) {
        "lora" => text.tokens.get(at).is_some_and(|token| text.written(&token.range) != "LoRa"),
        "qlora" | "peft" | "sft" | "quantize" | "quantise" => true,
        "fine" => text.after(at).is_some_and(|next| text.word(next).starts_with("tun")),
        word => word.starts_with("finetun") || word.starts_with("pretrain"),
    })
}

/// True if a parameter count in billions starts at this token: `13b`, `8x7b`.
pub(in crate::detect) fn is_size(text: &Text<'_>, index: usize) -> bool {
    parameter_count(text, index).is_some_and(|(count, _, in_words)| count >= 1e9 && !in_words)
}

/// `70b`, `1.3B`, `8x7b`, `350M`, `1T`, `7 billion`: the count, its last token, and true if it is spelled out.
fn parameter_count(text: &Text<'_>, index: usize) -> Option<(f64, usize, bool)> {
    let word = text.word(index);
    let factor = |unit: &str| match unit {
        "b" | "bn" => Some(1e9),
        "m" => Some(1e6),
        "t" => Some(1e12),
        _ => None,
    };
    let sized = |count: f64| (count > 0.0 && count <= MOST_PARAMETERS).then_some(count);
    if let Some((experts, each)) = word.split_once('x') {
        let (each, unit) = split_number(each)?;
        let count = experts.parse::<u16>().ok()?;
        let total = mixture(f64::from(count), each) * factor(unit)?;
        return Some((sized(total)?, index, false));
    }
    let (number, unit) = split_number(word)?;
    if let Some(factor) = factor(unit) {
        return Some((sized(number * factor)?, index, false));
    }
    if !unit.is_empty() {
        return None;
    }
    let next = text.after(index)?;
    let factor = match text.word(next) {
        "trillion" => 1e12,
        "billion" => 1e9,
        "million" => 1e6,
        _ => return None,
    };
    // The base rules know billions, and nothing larger.
    Some((sized(number * factor)?, next, factor < 1e12))
}

/// Experts share all layers except feed-forward: eight of 7B are less than 56B.
fn mixture(experts: f64, each: f64) -> f64 {
    match (experts as u32, each as u32) {
        (8, 7) => 46.7,
        (8, 22) => 141.0,
        _ => experts * each,
    }
}
