//! Errors of YAML texts.

use granit_parser::{ErrorKind, ScanError};

use super::SourcePosition;

/// Problem of a text, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", self.position.map(|position| format!("{position}: ")).unwrap_or_default())]
pub struct YamlError {
    /// None if the whole text is concerned.
    pub position: Option<SourcePosition>,
    pub problem: Problem,
}

/// Problem of a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("it is empty")]
    Empty,
    #[error("there is nothing in it but comments and separators")]
    OnlyComments,
    /// One document was wanted.
    #[error("it holds {count} documents, and one is wanted; this is where the second begins")]
    Several {
        count: usize,
    },
    #[error("it is not text but binary: it has the byte 0x{byte:02x}")]
    Binary {
        /// A byte that no text has.
        byte: u8,
    },
    #[error("it is not UTF-8 text: the byte 0x{byte:02x} cannot stand here; save it as UTF-8")]
    NotUtf8 {
        /// First byte that is not UTF-8.
        byte: u8,
    },
    #[error("it is UTF-16 text; save it as UTF-8")]
    Utf16,
    /// The text exceeds [`Limits`].
    #[error("it is {size} bytes long, and at most {limit} are read")]
    TooLong {
        /// Bytes.
        size: usize,
        limit: usize,
    },
    /// A tab stands where spaces must.
    #[error("a tab cannot indent YAML; use spaces")]
    Tab,
    /// A key stands twice in one mapping.
    #[error("the key `{key}` is here for the second time; the first is in line {}, column {}", .first.line, .first.column)]
    DuplicateKey {
        key: String,
        /// First occurrence.
        first: SourcePosition,
    },
    /// An alias refers to nothing.
    #[error(
        "`*{name}` refers to an anchor that is not defined above; write `&{name}` before what it should stand for"
    )]
    UnknownAnchor {
        name: String,
    },
    /// An alias refers to a node that contains it.
    #[error("this alias refers to what it stands in, which would never end")]
    EndlessAlias,
    /// Written out, the text has too many parts.
    #[error("with its aliases written out it has more than {limit} keys, values and items")]
    TooManyNodes {
        limit: usize,
    },
    /// Written out, the text is too long.
    #[error("with its aliases written out it is more than {limit} bytes long")]
    TooMuchText {
        limit: usize,
    },
    #[error("it is nested more than {limit} levels deep")]
    TooDeep {
        limit: usize,
    },
    /// A key is a list or a mapping.
    #[error(
        "a key must be plain text, not a list or a mapping; text with `{{{{` in it must be in quotes"
    )]
    KeyNotText,
    /// A merge key has something else than mappings.
    #[error("`<<` merges mappings: write an alias of a mapping, or a list of them")]
    MergeNotMapping,
    /// The value does not match its tag.
    #[error("`{text}` is tagged as {tag} and is none")]
    WrongTag {
        /// The value as written.
        text: String,
        tag: String,
    },
    /// Something else that YAML does not allow.
    #[error("{0}")]
    Syntax(String),
}

impl YamlError {
    pub(super) fn at(position: SourcePosition, problem: Problem) -> Self {
        Self { position: Some(position), problem }
    }
}

/// Rewords an error of the parser.
pub(super) fn scan(error: &ScanError, text: &str, depth: usize) -> YamlError {
    let marker = error.marker();
    let position = SourcePosition { line: marker.line().max(1), column: marker.col() + 1 };
    // A value may continue on the next line: the parser then reports a tab there at the end of this line.
    let last = position.line + usize::from(matches!(error.kind(), ErrorKind::TabInPlainScalar));
    if let Some(tab) = indenting_tab(text, position.line, last) {
        return YamlError::at(tab, Problem::Tab);
    }
    let problem = match error.kind() {
        ErrorKind::RecursionLimitExceeded => Problem::TooDeep { limit: depth },
        kind => Problem::Syntax(words(kind)),
    };
    YamlError::at(position, problem)
}

/// First tab used as indentation, from the line before an error up to `last`.
fn indenting_tab(text: &str, line: usize, last: usize) -> Option<SourcePosition> {
    let first = line.saturating_sub(1).max(1);
    text.lines().enumerate().skip(first - 1).take(last + 1 - first).find_map(|(index, line)| {
        let indent = line.len() - line.trim_start().len();
        let tab = line[..indent].find('\t')?;
        Some(SourcePosition { line: index + 1, column: tab + 1 })
    })
}

fn words(kind: &ErrorKind) -> String {
    let said = match kind {
        ErrorKind::TabInIndentation
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabNotAllowed => "a tab cannot stand here; use spaces",
        ErrorKind::MappingValueNotAllowed => {
            "a `:` cannot stand here: is a line indented too far, or should the text be in quotes?"
        }
        ErrorKind::MappingKeyNotAllowed => "a key cannot stand here: is the line indented too far?",
        ErrorKind::ExpectedBlockMappingKey => {
            "a key was expected here: is the line indented like its neighbours?"
        }
        ErrorKind::ExpectedBlockSequenceEntry => {
            "an item that begins with `- ` was expected here: is the line indented like its neighbours?"
        }
        ErrorKind::BlockSequenceEntryNotAllowed => {
            "a list cannot begin here: put `- ` on a line of its own, below its key"
        }
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => {
            "this line has no `:` after its key"
        }
        ErrorKind::UnclosedQuotedScalar => "a quote is opened and never closed",
        ErrorKind::InvalidQuotedScalarIndent => {
            "text in quotes goes on in a line that is not indented: is a quote opened and never closed?"
        }
        ErrorKind::InvalidIndentation => "this line is indented in a way that fits no line above",
        ErrorKind::UnexpectedEofFlowSequence => "a `[` is opened and never closed",
        ErrorKind::UnexpectedEofFlowMapping => "a `{` is opened and never closed",
        ErrorKind::ExpectedFlowMappingSeparator => "a `,` or a `}` was expected here",
        ErrorKind::ExpectedFlowSequenceSeparator => "a `,` or a `]` was expected here",
        ErrorKind::UnknownQuotedScalarEscape => {
            "a `\\` in double quotes is followed by a letter that means nothing; write `\\\\`, or use single quotes"
        }
        ErrorKind::UnclosedFlowCollection { open } => {
            return format!("a `{open}` is opened and never closed");
        }
        ErrorKind::UnexpectedCharacter { character } => {
            return format!(
                "`{}` cannot begin a value; put the text in quotes",
                character.escape_default()
            );
        }
        other => return other.to_string(),
    };
    said.to_owned()
}

/// Refuses what no text has: control characters other than tabs and line ends.
pub(super) fn refuse_binary(text: &str) -> Result<(), YamlError> {
    binary(text.as_bytes()).map_or(Ok(()), Err)
}

fn binary(bytes: &[u8]) -> Option<YamlError> {
    let odd = |byte: &u8| *byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r');
    let at = bytes.iter().position(odd)?;
    Some(YamlError::at(position_of(bytes, at), Problem::Binary { byte: bytes[at] }))
}

/// Error for bytes that are UTF-8 only up to `valid`.
pub(super) fn not_utf8(bytes: &[u8], valid: usize) -> YamlError {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return YamlError { position: None, problem: Problem::Utf16 };
    }
    let byte = bytes.get(valid).copied().unwrap_or_default();
    let other = || YamlError::at(position_of(bytes, valid), Problem::NotUtf8 { byte });
    binary(bytes).unwrap_or_else(other)
}

fn position_of(bytes: &[u8], at: usize) -> SourcePosition {
    let before = &bytes[..at];
    let line = before.split(|byte| *byte == b'\n').count();
    let begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let column = String::from_utf8_lossy(&before[begin..]).chars().count() + 1;
    SourcePosition { line, column }
}
