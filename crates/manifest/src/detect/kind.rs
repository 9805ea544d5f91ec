//! Type of ML work.

use serde::Serialize;

/// Workload type. Training and fine-tuning rank before the task of the model: they determine the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadType {
    /// Adaptation of an existing model: fine-tuning, adapters, transfer learning.
    FineTuning,
    Training,
    /// Detects objects in images or signals.
    Detection,
    Segmentation,
    /// Pictures, texts or sounds are sorted into classes.
    Classification,
    /// Texts, pictures or sounds are made.
    Generation,
    /// Computes vectors.
    Embedding,
    /// Speech becomes text, or text speech.
    Speech,
    /// Serves or applies a model for an unstated task.
    Inference,
    /// ML or GPU work without further detail.
    General,
    None,
}

impl WorkloadType {
    /// Every kind, in the order in which tables list them.
    pub const ALL: [Self; 11] = [
        Self::FineTuning,
        Self::Training,
        Self::Detection,
        Self::Segmentation,
        Self::Classification,
        Self::Generation,
        Self::Embedding,
        Self::Speech,
        Self::Inference,
        Self::General,
        Self::None,
    ];

    /// The name in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FineTuning => "fine-tuning",
            Self::Training => "training",
            Self::Detection => "detection",
            Self::Segmentation => "segmentation",
            Self::Classification => "classification",
            Self::Generation => "generation",
            Self::Embedding => "embedding",
            Self::Speech => "speech",
            Self::Inference => "inference",
            Self::General => "general",
            Self::None => "none",
        }
    }

    /// True if weights are updated, which needs gradients and optimizer states.
    pub const fn is_training(self) -> bool {
        matches!(self, Self::Training | Self::FineTuning)
    }
}

impl std::fmt::Display for WorkloadType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Workload type that a phrase indicates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hint {
    pub(super) kind: WorkloadType,
    /// Stated explicitly; otherwise implied by a model or package name.
    pub(super) said: bool,
}

/// Fine-tuning, then training, then the most frequent task, then inference; explicit hints before implied ones. Each
/// hint has its number of occurrences.
pub(super) fn choose(hints: &[(Hint, usize)]) -> WorkloadType {
    for kind in [WorkloadType::FineTuning, WorkloadType::Training] {
        if hints.iter().any(|(hint, _)| hint.kind == kind) {
            return kind;
        }
    }
    let inference = hints.iter().any(|(hint, _)| hint.kind == WorkloadType::Inference);
    most_named(hints.iter().filter(|(hint, _)| hint.said))
        .or(inference.then_some(WorkloadType::Inference))
        .or_else(|| most_named(hints.iter()))
        .unwrap_or(WorkloadType::General)
}

/// Most frequent task, the first among equals; generation ranks last.
fn most_named<'a>(hints: impl Iterator<Item = &'a (Hint, usize)>) -> Option<WorkloadType> {
    let mut named: Vec<(WorkloadType, usize)> = Vec::new();
    for (hint, times) in hints.filter(|(hint, _)| hint.kind != WorkloadType::Inference) {
        match named.iter_mut().find(|(other, _)| *other == hint.kind) {
            Some((_, before)) => *before += times,
            None => named.push((hint.kind, *times)),
        }
    }
    let most = named.iter().map(|(_, times)| *times).max()?;
    let often = named.iter().filter(|(_, times)| *times == most);
    often.min_by_key(|(kind, _)| *kind == WorkloadType::Generation).map(|(kind, _)| *kind)
}
