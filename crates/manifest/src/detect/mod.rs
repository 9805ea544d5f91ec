//! Detects ML workloads in text and files: verdict, confidence, workload type and resource needs, with reasons.
//!
//! The base rules are exact: any of [`BASE_KEYWORDS`] makes a text ML work, unless the text states that no GPU is
//! needed. The words "large model", "billion" and "training" determine the size if the text has no numbers to compute
//! from. All other rules only add to the base rules. `docs/detection.md` reports the accuracy.

mod code;
mod evidence;
mod kind;
mod models;
mod negation;
mod numbers;
mod packages;
mod report;
mod scan;
mod size;
mod sources;
mod text;
mod verdict;
mod words;

pub use evidence::{Evidence, EvidenceKind, EvidenceLocation};
pub use kind::WorkloadType;
pub use report::Report;
pub use size::{GpuType, Sizing, SizingRule, Term};
pub use sources::File;
pub use words::BASE_KEYWORDS;

use self::sources::{Format, Passage};
use self::verdict::Findings;

/// Result for a text or a set of files.
#[derive(Clone, Debug, PartialEq)]
pub struct Detection {
    /// True for ML work that needs a GPU.
    pub is_ml_workload: bool,
    /// Confidence of the verdict, from 0 to 1.
    pub confidence: f64,
    /// From 0 to 1: strength of the evidence, independent of the verdict. More evidence never lowers it.
    pub score: f64,
    pub workload_type: WorkloadType,
    /// Affirmed base keywords, then other counted phrases.
    pub detected_keywords: Vec<String>,
    /// Statement that cleared the verdict, such as "no GPU needed".
    pub cleared_by: Option<String>,
    pub evidence: Vec<Evidence>,
    /// None if it is not ML work.
    pub sizing: Option<Sizing>,
    /// One sentence each.
    pub reasoning: Vec<String>,
}

impl Detection {
    pub fn of_text(text: &str) -> Self {
        let passage =
            Passage { file: None, cell: None, format: Format::Prose, content: text.into() };
        let mut findings = Findings::default();
        findings.add(scan::scan(&passage));
        findings.detection()
    }

    /// Analyzes files together: requirements, code, notebooks, Dockerfiles, documentation.
    pub fn of_files(files: &[File]) -> Self {
        let mut findings = Findings::default();
        for file in files {
            if let Some((ending, weight)) = sources::by_name(&file.path) {
                findings.add_file(&file.path, ending, weight);
            }
            let (passages, note) = sources::passages(file);
            findings.notes.extend(note);
            for passage in &passages {
                findings.add(scan::scan(passage));
            }
        }
        findings.detection()
    }

    /// Machine-readable form of the detection.
    pub fn report(&self) -> Report {
        Report::of(self)
    }
}
