//! Numbers that determine the size: parameters, precision, batch, sequence, optimizer, and requested GPUs.

mod amounts;
mod formats;
mod gpus;
mod parameters;

use std::ops::Range;

pub(super) use parameters::is_size;

use super::models::{self, KnownModel};
use super::size::gpu::{GpuType, MOST};
use super::size::memory::{Adapter, Optimiser, Precision};
use super::text::Text;

/// Most implausible numbers reported.
const MOST_TOLD: usize = 8;

/// Numbers of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    pub(super) parameters: Option<Parameters>,
    /// Model with a known size.
    pub(super) model: Option<&'static KnownModel>,
    /// The family of the model with the parameters.
    pub(super) family: Option<&'static str>,
    pub(super) precision: Option<Precision>,
    pub(super) batch: Option<f64>,
    /// The batch size is per GPU.
    pub(super) batch_per_gpu: bool,
    pub(super) concurrent: Option<f64>,
    pub(super) sequence: Option<f64>,
    pub(super) optimiser: Option<Optimiser>,
    pub(super) adapter: Option<Adapter>,
    pub(super) checkpointing: bool,
    /// Frozen reference or reward models beside the trained one.
    pub(super) judges: u8,
    pub(super) gpus: Option<u32>,
    pub(super) gpu: Option<GpuType>,
    /// The text states the memory of the GPU.
    pub(super) gpu_is_exact: bool,
    /// MiB on each GPU.
    pub(super) gpu_memory_mib: Option<u64>,
    /// Sentences about numbers that were not used.
    pub(super) ignored: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parameters {
    pub(super) count: f64,
    /// Original spelling.
    pub(super) written: String,
    pub(super) bytes: Range<usize>,
    /// "7 billion", to which the base rules apply.
    pub(super) in_words: bool,
}

impl Facts {
    /// Number of known values.
    pub(super) fn known(&self) -> usize {
        [
            self.parameters.is_some(),
            self.model.is_some(),
            self.precision.is_some(),
            self.batch.is_some(),
            self.concurrent.is_some(),
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

    /// Fills in unknown values; of two parameter counts the larger is kept.
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
            self.batch = other.batch;
            self.batch_per_gpu = other.batch_per_gpu;
        }
        self.concurrent = self.concurrent.or(other.concurrent);
        self.sequence = self.sequence.or(other.sequence);
        self.optimiser = self.optimiser.or(other.optimiser);
        self.adapter = self.adapter.or(other.adapter);
        self.checkpointing |= other.checkpointing;
        self.judges = self.judges.max(other.judges);
        self.gpus = self.gpus.or(other.gpus);
        if self.gpu.is_none() {
            self.gpu = other.gpu;
            self.gpu_is_exact = other.gpu_is_exact;
        }
        self.gpu_memory_mib = self.gpu_memory_mib.or(other.gpu_memory_mib);
        other.ignored.into_iter().for_each(|sentence| self.ignore(sentence));
    }

    /// Records a number that is not used.
    fn ignore(&mut self, sentence: String) {
        if self.ignored.len() < MOST_TOLD && !self.ignored.contains(&sentence) {
            self.ignored.push(sentence);
        }
    }

    /// Sets the requested GPU count.
    fn take_gpus(&mut self, count: f64) {
        if count.fract() == 0.0 && (1.0..=f64::from(MOST)).contains(&count) {
            self.gpus = Some(count as u32);
        } else if count > 0.0 {
            self.ignore(format!("{count} GPUs are not believed: it is from 1 to {MOST}"));
        }
    }
}

pub(super) fn read(text: &Text<'_>) -> Facts {
    let mut facts = Facts::default();
    let words = || (0..text.tokens.len()).filter(|index| !text.word(*index).is_empty());
    for index in words() {
        parameters::read(text, index, &mut facts);
        formats::read(text, index, &mut facts);
        amounts::read(text, index, &mut facts);
        amounts::read_concurrent(text, index, &mut facts);
        gpus::read(text, index, &mut facts);
        if facts.model.is_none() {
            facts.model = models::known(text, index);
        }
    }
    if facts.batch.is_none() {
        words().for_each(|index| amounts::read_plain_batch(text, index, &mut facts));
    }
    facts
}

/// Leading number of a word, and the rest: `70b`, `1.3`, `10,000`.
fn split_number(word: &str) -> Option<(f64, &str)> {
    let end = word.find(|letter: char| !letter.is_ascii_digit() && letter != '.' && letter != ',');
    let (digits, unit) = word.split_at(end.unwrap_or(word.len()));
    let number: f64 = digits.replace(',', "").parse().ok()?;
    number.is_finite().then_some((number, unit))
}
