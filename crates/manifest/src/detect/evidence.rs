//! Evidence and its location.

use serde::Serialize;

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct EvidenceLocation {
    /// None for text that is not from a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Notebook cell, from 1; `line` then counts inside the cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<usize>,
    /// From 1; none if the file name itself is the evidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Column in characters, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
}

impl std::fmt::Display for EvidenceLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(file) = &self.file {
            f.write_str(file)?;
        }
        if let Some(cell) = self.cell {
            write!(f, "[cell {cell}]")?;
        }
        match (self.line, self.column, &self.file) {
            (Some(line), Some(column), Some(_)) => write!(f, ":{line}:{column}"),
            (Some(line), Some(column), None) => write!(f, "line {line}, column {column}"),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceKind {
    /// Base keyword; always counted.
    Keyword,
    /// Other phrase that indicates ML work.
    Phrase,
    /// Model name, or number of parameters.
    Model,
    /// Imported or required package.
    Package,
    File,
    /// Statement that no GPU is needed.
    Negation,
}

/// Evidence with its weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    pub kind: EvidenceKind,
    /// The keyword, phrase, model or package, in lower case.
    pub word: String,
    /// Original spelling.
    pub found: String,
    /// First occurrence.
    #[serde(flatten)]
    pub location: EvidenceLocation,
    /// Occurrences in the file in the same sense.
    pub times: usize,
    /// The text negates it: "no GPU", "without CUDA".
    pub negated: bool,
    /// From 0 to 1: confidence that this evidence alone gives.
    pub weight: f64,
}
