//! What was found, and where.

use serde::Serialize;

/// Where something stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct EvidenceLocation {
    /// The file; absent for a text that was handed over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The cell of a notebook, from 1; `line` then counts inside of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<usize>,
    /// The line, from 1; absent where the name of the file is what counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The column in letters, from 1.
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

/// What kind of thing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceKind {
    /// One of the base keywords, which are never missed.
    Keyword,
    /// Other words that point to ML work.
    Phrase,
    /// A model's name, or a number of parameters.
    Model,
    /// A package that is imported or required.
    Package,
    /// The name of a file.
    File,
    /// Words that say that no GPU is needed.
    Negation,
}

/// Something that was found, and what it is worth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// What kind of thing it is.
    pub kind: EvidenceKind,
    /// The keyword, phrase, model or package, in lower case.
    pub word: String,
    /// As it was written.
    pub found: String,
    /// Where it was found first.
    #[serde(flatten)]
    pub location: EvidenceLocation,
    /// How often it was found in that file, in the same sense.
    pub times: usize,
    /// Whether the text says that it is not so: "no GPU", "without CUDA".
    pub negated: bool,
    /// From 0 to 1: how sure it alone makes that the work is ML work.
    pub weight: f64,
}
