//! The numbers of a text that a size can be computed from: parameters, precision, batch, sequence, optimiser,
//! and GPUs that are asked for by name or count.

use std::ops::Range;

use super::models::{self, Known};
use super::size::gpu::GpuType;
use super::size::memory::{Adapter, Optimiser, Precision};
use super::text::Text;

/// The most parameters that are believed.
const MOST_PARAMETERS: f64 = 1e14;

/// What a text says in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    pub(super) parameters: Option<Parameters>,
    /// A model whose name says its size.
    pub(super) model: Option<&'static Known>,
    /// The family of the model with the parameters.
    pub(super) family: Option<&'static str>,
    pub(super) precision: Option<Precision>,
    pub(super) batch: Option<f64>,
    /// The batch is that of each GPU.
    pub(super) batch_per_gpu: bool,
    pub(super) sequence: Option<f64>,
    pub(super) optimiser: Option<Optimiser>,
    pub(super) adapter: Option<Adapter>,
    pub(super) checkpointing: bool,
    pub(super) gpus: Option<u32>,
    pub(super) gpu: Option<GpuType>,
    /// The text says how much memory that GPU has.
    pub(super) gpu_is_exact: bool,
    /// MiB on each GPU.
    pub(super) gpu_memory_mib: Option<u64>,
}

/// A number of parameters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parameters {
    pub(super) count: f64,
    /// As it was written.
    pub(super) written: String,
    pub(super) bytes: Range<usize>,
    /// "7 billion" in words, which the base rules know.
    pub(super) in_words: bool,
}

impl Facts {
    /// How much is known.
    pub(super) fn known(&self) -> usize {
        [
            self.parameters.is_some(),
            self.model.is_some(),
            self.precision.is_some(),
            self.batch.is_some(),
            self.sequence.is_some(),
            self.optimiser.is_some(),
            self.adapter.is_some(),
            self.gpus.is_some(),
            self.gpu.is_some(),
            self.gpu_memory_mib.is_some(),
        ]
        .into_iter()
        .filter(|known| *known)
        .count()
    }

    /// Takes over what is not known yet; of two numbers of parameters the larger.
    pub(super) fn merge(&mut self, other: Self) {
        let larger = match (&self.parameters, &other.parameters) {
            (Some(ours), Some(theirs)) => theirs.count > ours.count,
            (ours, _) => ours.is_none(),
        };
        if larger && other.parameters.is_some() {
            self.parameters = other.parameters;
            self.family = other.family;
        }
        self.model = self.model.or(other.model);
        self.precision = self.precision.or(other.precision);
        if self.batch.is_none() {
            (self.batch, self.batch_per_gpu) = (other.batch, other.batch_per_gpu);
        }
        self.sequence = self.sequence.or(other.sequence);
        self.optimiser = self.optimiser.or(other.optimiser);
        self.adapter = self.adapter.or(other.adapter);
        self.checkpointing |= other.checkpointing;
        self.gpus = self.gpus.or(other.gpus);
        if self.gpu.is_none() {
            (self.gpu, self.gpu_is_exact) = (other.gpu, other.gpu_is_exact);
        }
        self.gpu_memory_mib = self.gpu_memory_mib.or(other.gpu_memory_mib);
    }
}

/// Reads the numbers of a text.
pub(super) fn read(text: &Text<'_>) -> Facts {
    let mut facts = Facts::default();
    for index in 0..text.tokens.len() {
        if text.word(index).is_empty() {
            continue;
        }
        read_parameters(text, index, &mut facts);
        read_words(text, index, &mut facts);
        read_amounts(text, index, &mut facts);
        read_gpus(text, index, &mut facts);
        if facts.model.is_none() {
            facts.model = models::known(text, index);
        }
    }
    facts
}

fn read_parameters(text: &Text<'_>, index: usize, facts: &mut Facts) {
    let Some((count, last, in_words)) = parameter_count(text, index) else { return };
    let follows = |reach: usize, begins: &[&str]| {
        let near = (last + 1..=last + reach).take_while(|at| !text.ends(*at));
        near.into_iter().any(|at| begins.iter().any(|begin| text.word(at).starts_with(begin)))
    };
    let named = (index.saturating_sub(4)..index)
        .rev()
        .take_while(|at| !text.ends(*at))
        .find_map(|at| models::named(text, at));
    let millions = count < 1e9 && !text.word(index).ends_with('b');
    let said = follows(3, &["param", "weight"])
        || !millions && !in_words && follows(3, &["model", "llm", "network", "instruct", "chat"]);
    let typed = !in_words
        && follows(3, &["bf16", "fp16", "fp32", "fp8", "int8", "int4", "4bit", "8bit", "bfloat16"]);
    let money = index
        .checked_sub(1)
        .is_some_and(|before| matches!(text.mark(before), Some('$' | '€' | '£')));
    // Otherwise it may be bus line 7B.
    if money || !(said || typed || named.is_some()) {
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

/// `70b`, `1.3B`, `8x7b`, `350M`, `7 billion`: the count, the last token, and whether it is in words.
fn parameter_count(text: &Text<'_>, index: usize) -> Option<(f64, usize, bool)> {
    let word = text.word(index);
    let factor = |unit: &str| match unit {
        "b" | "bn" => Some(1e9),
        "m" => Some(1e6),
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
        "billion" => 1e9,
        "million" => 1e6,
        _ => return None,
    };
    Some((sized(number * factor)?, next, true))
}

/// Experts share what is not feed-forward, so eight of 7B are not 56B.
fn mixture(experts: f64, each: f64) -> f64 {
    match (experts as u32, each as u32) {
        (8, 7) => 46.7,
        (8, 22) => 141.0,
        _ => experts * each,
    }
}

fn split_number(word: &str) -> Option<(f64, &str)> {
    let end = word.find(|letter: char| !letter.is_ascii_digit() && letter != '.' && letter != ',');
    let (digits, unit) = word.split_at(end.unwrap_or(word.len()));
    let number: f64 = digits.replace(',', "").parse().ok()?;
    number.is_finite().then_some((number, unit))
}

fn read_words(text: &Text<'_>, index: usize, facts: &mut Facts) {
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
        "int8" => Precision::Int8,
        "8bit" if !beside => Precision::Int8,
        "8" if next == "bit" && !beside => Precision::Int8,
        "int4" | "4bit" | "nf4" | "awq" | "gptq" => Precision::Int4,
        "4" if next == "bit" => Precision::Int4,
        _ => return None,
    })
}

fn read_amounts(text: &Text<'_>, index: usize, facts: &mut Facts) {
    let word = text.word(index);
    let next = text.after(index);
    let next_word = next.map_or("", |next| text.word(next));
    if facts.batch.is_none() && word == "batch" && next_word == "size" {
        facts.batch = value(text, next.unwrap_or(index)).filter(|batch| *batch <= 1e6);
        let near = index.saturating_sub(4)..index + 9;
        facts.batch_per_gpu = near.into_iter().any(|at| {
            text.word(at) == "per"
                && matches!(text.after(at).map(|at| text.word(at)), Some("gpu" | "device"))
        });
    }
    if facts.sequence.is_none() {
        let length = match (word, next_word) {
            ("sequence" | "context" | "seq", "length" | "len" | "window") => {
                value(text, next.unwrap_or(index))
            }
            ("context", _) => value(text, index).or_else(|| thousands(text, index)),
            _ => None,
        };
        facts.sequence = length.filter(|length| (16.0..=1.6e7).contains(length));
    }
}

/// The number after a name: `batch size of 64`, `batch_size: 64`, `--batch-size=64`, `context 8k`.
fn value(text: &Text<'_>, name: usize) -> Option<f64> {
    let mut at = name + 1;
    while matches!(text.mark(at), Some(':' | '=' | '"' | '`' | '\''))
        || matches!(text.word(at), "of" | "is" | "to")
    {
        at += 1;
    }
    amount(text.word(at))
}

/// `8k context`.
fn thousands(text: &Text<'_>, index: usize) -> Option<f64> {
    let before = index.checked_sub(1).map(|before| text.word(before))?;
    before.ends_with('k').then(|| amount(before)).flatten()
}

fn amount(word: &str) -> Option<f64> {
    let (number, unit) = split_number(word)?;
    match unit {
        "" => Some(number),
        "k" => Some(number * 1024.0),
        _ => None,
    }
    .filter(|number| *number >= 1.0)
}

fn read_gpus(text: &Text<'_>, index: usize, facts: &mut Facts) {
    let word = text.word(index);
    let (counted, word) = match word.split_once('x') {
        Some((count, rest)) if !rest.is_empty() => (count.parse::<u32>().ok(), rest),
        _ => (None, word),
    };
    let singular = word.strip_suffix('s').filter(|_| word != "l40s").unwrap_or(word);
    let is_gpu = singular == "gpu";
    let model = GpuType::named(singular)
        .filter(|model| !model.is_short_name() || is_beside_gpu(text, index));
    if let (Some(model), None) = (model, facts.gpu) {
        let exact = memory_at(text, index + 1).and_then(|mib| model.with_memory(mib));
        (facts.gpu, facts.gpu_is_exact) = (Some(exact.unwrap_or(model)), exact.is_some());
    }
    if (is_gpu || model.is_some()) && facts.gpus.is_none() {
        let count = counted
            .or_else(|| count_before(text, index))
            .or_else(|| count_after(text, index, is_gpu));
        facts.gpus = count.filter(|count| (1..=1024).contains(count));
    }
    if facts.gpu_memory_mib.is_none() && (is_gpu || singular == "vram" || word == "card") {
        facts.gpu_memory_mib = gpu_memory(text, index);
    }
}

/// `T4` and `L4` may be anything: they count beside a number, a maker or the word GPU.
fn is_beside_gpu(text: &Text<'_>, index: usize) -> bool {
    let before = index.checked_sub(1).map_or("", |before| text.word(before));
    let after = text.after(index).map_or("", |after| text.word(after));
    matches!(before, "nvidia" | "tesla" | "x") || matches!(after, "gpu" | "gpus")
}

/// `8 x H100`, `two GPUs`, `4 NVIDIA A100`; not `at most 4 GPUs`.
fn count_before(text: &Text<'_>, index: usize) -> Option<u32> {
    let mut at = index.checked_sub(1)?;
    while matches!(text.word(at), "nvidia" | "tesla" | "x" | "a100" | "h100" | "v100" | "h200")
        || matches!(text.mark(at), Some('×'))
    {
        at = at.checked_sub(1)?;
    }
    let word = text.word(at);
    let words = ["one", "two", "three", "four", "five", "six", "seven", "eight"];
    let spoken = words.iter().position(|number| *number == word).map(|index| index as u32 + 1);
    let count = word.parse().ok().or(spoken)?;
    let limit = at.checked_sub(1).map_or("", |before| text.word(before));
    let more = at.checked_sub(2).map_or("", |before| text.word(before));
    let bounded =
        matches!(limit, "most" | "to" | "maximum" | "max") || limit == "than" && more == "more";
    (!bounded).then_some(count)
}

/// `gpus: 4`, `gpu_count=4`, `nvidia.com/gpu: 4`, `--gpus 4`.
fn count_after(text: &Text<'_>, index: usize, is_gpu: bool) -> Option<u32> {
    let mut at = index + 1;
    while text.word(at) == "count" || matches!(text.mark(at), Some('_' | '"')) {
        at += 1;
    }
    let option = text.word(index) == "gpus" && index >= 2 && text.mark(index - 1) == Some('-');
    if !is_gpu || !(option || matches!(text.mark(at), Some(':' | '='))) {
        return None;
    }
    let value = if option && text.mark(at).is_none() { at } else { at + 1 };
    let value = if matches!(text.mark(value), Some('"' | '\'')) { value + 1 } else { value };
    let unit = text.word(value + 1);
    let count = text.word(value).parse().ok()?;
    (!matches!(unit, "gb" | "gib" | "mb" | "mib")).then_some(count)
}

/// `24 GB VRAM`, `32 GB of GPU memory`, `one 24 GB card`, `GPU memory: 40 GiB`.
fn gpu_memory(text: &Text<'_>, index: usize) -> Option<u64> {
    let of_gpu = text.word(index) == "vram"
        || text.word(index + 1) == "memory"
        || text.word(index) == "card";
    let near = (index.saturating_sub(3)..index).rev().take_while(|at| !text.ends(*at));
    let before = near.filter(|at| {
        matches!(text.word(*at), "of" | "gb" | "gib" | "") || memory_at(text, *at).is_some()
    });
    let before = before.into_iter().find_map(|at| memory_at(text, at));
    let after = || {
        (index + 1..index + 5).take_while(|at| !text.ends(*at)).find_map(|at| memory_at(text, at))
    };
    if of_gpu { before.or_else(after) } else { before }
}

/// An amount of memory that begins at a token, in MiB; GB are a thousand million, as on the box of a card.
fn memory_at(text: &Text<'_>, index: usize) -> Option<u64> {
    let (number, unit) = split_number(text.word(index))?;
    let unit =
        if unit.is_empty() { text.after(index).map_or("", |after| text.word(after)) } else { unit };
    let bytes = match unit {
        "gb" | "g" => number * 1e9,
        "gib" | "gi" => number * f64::from(1 << 30),
        _ => return None,
    };
    (bytes <= 1e13).then_some((bytes / f64::from(1 << 20)) as u64).filter(|mib| *mib > 0)
}
