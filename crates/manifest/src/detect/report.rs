//! A detection as programs read it.

use serde::Serialize;

use super::evidence::Evidence;
use super::kind::WorkloadType;
use super::size::{GpuType, SizingRule, Term};
use super::{Detection, Sizing};

/// The fields of `agentaflow detect -o json`. The first eleven are fixed; others may be added after them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Whether it is ML work that needs a GPU.
    pub is_ml_workload: bool,
    /// From 0 to 1: how sure the verdict is.
    pub confidence: f64,
    /// What kind of work.
    pub workload_type: WorkloadType,
    /// The words that counted, base keywords first.
    pub detected_keywords: Vec<String>,
    /// GPUs in all; 0 where it is no ML work.
    pub gpu_count: u32,
    /// Their type; null where there are none.
    pub gpu_type: Option<GpuType>,
    /// MiB needed on each GPU.
    pub gpu_memory_mib: u64,
    /// Memory as a Kubernetes quantity; null where nothing is known of what it needs.
    pub memory: Option<String>,
    /// CPU as a Kubernetes quantity.
    pub cpu: Option<String>,
    /// `/dev/shm` as a Kubernetes quantity.
    pub shm: Option<String>,
    /// Why, in one text.
    pub reasoning: String,
    /// The same, sentence by sentence.
    pub reasons: Vec<String>,
    /// How much speaks for ML work, whatever the verdict.
    pub score: f64,
    /// The words that cleared the verdict.
    pub cleared_by: Option<String>,
    /// How the size was found.
    pub sizing_rule: Option<SizingRule>,
    /// Whether it fits on the GPUs that the text names.
    pub fits: bool,
    /// Machines with eight GPUs each that it takes.
    pub nodes: u32,
    /// How the GPU memory is computed.
    pub arithmetic: Vec<Term>,
    /// What was found, and where.
    pub evidence: Vec<Evidence>,
}

impl Report {
    pub(super) fn of(detection: &Detection) -> Self {
        let sizing = detection.sizing.as_ref();
        Self {
            is_ml_workload: detection.is_ml_workload,
            confidence: detection.confidence,
            workload_type: detection.workload_type,
            detected_keywords: detection.detected_keywords.clone(),
            gpu_count: sizing.map_or(0, |sizing| sizing.gpu_count),
            gpu_type: sizing.map(|sizing| sizing.gpu_type),
            gpu_memory_mib: sizing.map_or(0, |sizing| sizing.gpu_memory_mib),
            memory: sizing.map(Sizing::memory),
            cpu: sizing.map(Sizing::cpu),
            shm: sizing.map(Sizing::shm),
            reasoning: detection.reasoning.join("; "),
            reasons: detection.reasoning.clone(),
            score: detection.score,
            cleared_by: detection.cleared_by.clone(),
            sizing_rule: sizing.map(|sizing| sizing.rule),
            fits: sizing.is_none_or(|sizing| sizing.fits),
            nodes: sizing.map_or(0, Sizing::nodes),
            arithmetic: sizing.map(|sizing| sizing.arithmetic.clone()).unwrap_or_default(),
            evidence: detection.evidence.clone(),
        }
    }
}
