//! Tells ML work from other work, how sure that is and why, what kind of work it is, and what it needs.
//!
//! The base rules come first and hold exactly: any of [`BASE_KEYWORDS`] makes a text ML work, unless the text itself
//! says that no GPU is needed, and the words "large model", "billion" and "training" decide the size where a text
//! gives no numbers to compute from. Everything else only adds to them. `docs/detection.md` says how well it works.

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

/// What was found out about a text or about files.
#[derive(Clone, Debug, PartialEq)]
pub struct Detection {
    /// Whether it is ML work that needs a GPU.
    pub is_ml_workload: bool,
    /// From 0 to 1: how sure the verdict is.
    pub confidence: f64,
    /// From 0 to 1: how much speaks for ML work, whatever the verdict. More evidence never makes it less.
    pub score: f64,
    /// What kind of work it is.
    pub workload_type: WorkloadType,
    /// The base keywords that were found and are meant, then the other words that counted.
    pub detected_keywords: Vec<String>,
    /// The words that cleared the verdict, such as "no GPU needed".
    pub cleared_by: Option<String>,
    /// What was found, and where.
    pub evidence: Vec<Evidence>,
    /// What it needs; nothing where it is no ML work.
    pub sizing: Option<Sizing>,
    /// Why, in sentences.
    pub reasoning: Vec<String>,
}

impl Detection {
    /// Looks at a text.
    pub fn of_text(text: &str) -> Self {
        let passage =
            Passage { file: None, cell: None, format: Format::Prose, content: text.into() };
        let mut findings = Findings::default();
        findings.add(scan::scan(&passage));
        findings.detection()
    }

    /// Looks at files together: requirements, code, notebooks, Dockerfiles, documents.
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

    /// The detection as programs read it.
    pub fn report(&self) -> Report {
        Report::of(self)
    }
}
