//! Machine-readable form of a detection.

use serde::Serialize;

use super::evidence::Evidence;
use super::kind::WorkloadType;
use super::size::{GpuType, SizingRule, Term};
use super::{Detection, Sizing};

/// Output of `agentaflow detect -o json`. The first eleven fields are fixed; new fields follow them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// True for ML work that needs a GPU.
    pub is_ml_workload: bool,
    /// Confidence of the verdict, from 0 to 1.
    pub confidence: f64,
    pub workload_type: WorkloadType,
    /// Counted phrases, base keywords first.
    pub detected_keywords: Vec<String>,
    /// Total; 0 if it is not ML work.
    pub gpu_count: u32,
    /// Null without GPUs.
    pub gpu_type: Option<GpuType>,
    /// MiB needed on each GPU.
    pub gpu_memory_mib: u64,
    /// Kubernetes quantity; null if unknown.
    pub memory: Option<String>,
    /// CPU as a Kubernetes quantity.
    pub cpu: Option<String>,
    /// `/dev/shm` as a Kubernetes quantity.
    pub shm: Option<String>,
    /// All reasons in one text.
    pub reasoning: String,
    /// One sentence each.
    pub reasons: Vec<String>,
    /// Strength of the evidence, independent of the verdict.
    pub score: f64,
    /// Statement that cleared the verdict.
    pub cleared_by: Option<String>,
    pub sizing_rule: Option<SizingRule>,
    /// True if the work fits on the GPUs named in the text.
    pub fits: bool,
    /// Machines with eight GPUs each.
    pub nodes: u32,
    /// Computation of the GPU memory.
    pub arithmetic: Vec<Term>,
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
