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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("it is empty")]
    Empty,
    #[error("it contains only comments and separators")]
    OnlyComments,
    /// Several documents, or none, although one is required.
    #[error("it contains {count} documents instead of one; the second starts here")]
    Several { count: usize },
    #[error("it is a binary file: it contains the byte 0x{byte:02x}")]
    Binary { byte: u8 },
    #[error("it is not UTF-8: invalid byte 0x{byte:02x}; save it as UTF-8")]
    NotUtf8 {
        /// First byte that is not UTF-8.
        byte: u8,
    },
    #[error("it is UTF-16; save it as UTF-8")]
    Utf16,
    /// The text exceeds `Limits`.
    #[error("it has {size} bytes, more than the limit of {limit}")]
    TooLong {
        /// Bytes.
        size: usize,
        limit: usize,
    },
    #[error("a tab cannot indent YAML; use spaces")]
    Tab,
    #[error("duplicate key `{key}`; the first is in line {}, column {}", .first.line, .first.column)]
    DuplicateKey {
        key: String,
        /// First occurrence.
        first: SourcePosition,
    },
    #[error("`*{name}` refers to an undefined anchor; define `&{name}` above")]
    UnknownAnchor { name: String },
    /// An alias refers to a node that contains it.
    #[error("this alias refers to a node that contains it")]
    EndlessAlias,
    /// With expanded aliases, the text has too many nodes.
    #[error("with expanded aliases it has more than {limit} keys, values and items")]
    TooManyNodes { limit: usize },
    /// With expanded aliases, the text is too long.
    #[error("with expanded aliases it has more than {limit} bytes")]
    TooMuchText { limit: usize },
    #[error("more than {limit} levels of nesting")]
    TooDeep { limit: usize },
    #[error(
        "a key must be plain text, not a list or a mapping; text with `{{{{` in it must be in quotes"
    )]
    KeyNotText,
    #[error("`<<` merges mappings: use an alias of a mapping, or a list of aliases")]
    MergeNotMapping,
    /// The value does not match its tag.
    #[error("`{text}` does not match its tag {tag}")]
    WrongTag {
        /// The value as written.
        text: String,
        tag: String,
    },
    /// Any other syntax error.
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
    let message = match kind {
        ErrorKind::TabInIndentation
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabNotAllowed => "unexpected tab; use spaces",
        ErrorKind::MappingValueNotAllowed => {
            "unexpected `:`: is a line indented too far, or should the text be in quotes?"
        }
        ErrorKind::MappingKeyNotAllowed => "unexpected key: is the line indented too far?",
        ErrorKind::ExpectedBlockMappingKey => {
            "expected a key: is the line indented like its neighbours?"
        }
        ErrorKind::ExpectedBlockSequenceEntry => {
            "expected an item that starts with `- `: is the line indented like its neighbours?"
        }
        ErrorKind::BlockSequenceEntryNotAllowed => {
            "unexpected list: put `- ` on its own line, below its key"
        }
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => "missing `:` after the key",
        ErrorKind::UnclosedQuotedScalar => "unclosed quote",
        ErrorKind::InvalidQuotedScalarIndent => {
            "quoted text continues on a line that is not indented: unclosed quote?"
        }
        ErrorKind::InvalidIndentation => "the indentation matches no line above",
        ErrorKind::UnexpectedEofFlowSequence => "unclosed `[`",
        ErrorKind::UnexpectedEofFlowMapping => "unclosed `{`",
        ErrorKind::ExpectedFlowMappingSeparator => "expected `,` or `}`",
        ErrorKind::ExpectedFlowSequenceSeparator => "expected `,` or `]`",
        ErrorKind::UnknownQuotedScalarEscape => {
            "unknown escape after `\\` in double quotes; use `\\\\` or single quotes"
        }
        ErrorKind::UnclosedFlowCollection { open } => {
            return format!("unclosed `{open}`");
        }
        ErrorKind::UnexpectedCharacter { character } => {
            return format!(
                "`{}` cannot start a value; quote the text",
                character.escape_default()
            );
        }
        other => return other.to_string(),
    };
    message.to_owned()
}

/// Rejects control characters other than tabs and line ends.
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
