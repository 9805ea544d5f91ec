//! Lower-case text with source positions, split into tokens.

use std::cell::Cell;
use std::ops::Range;

use super::evidence::EvidenceLocation;

/// A shorter line without a full stop at its end is a list item, not wrapped prose.
const WRAPPED_FROM: usize = 40;

#[derive(Debug)]
pub(super) struct Text<'a> {
    pub(super) lower: String,
    /// Words and marks in order.
    pub(super) tokens: Vec<Token>,
    /// Original spelling.
    original: &'a str,
    /// Offset in `original` of each byte of `lower`; none if they are equal.
    origin: Option<Vec<usize>>,
    /// Offsets of the lines of `original`.
    lines: Vec<usize>,
    /// Byte and column of the last lookup, so that long lines are not counted again.
    last: Cell<(usize, usize)>,
    file: Option<&'a str>,
    cell: Option<usize>,
}

/// Word or punctuation mark: a range of the lower-case text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) range: Range<usize>,
    pub(super) sort: TokenKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Word,
    Mark(char),
    /// End of a sentence or of a list item.
    Break,
}

impl<'a> Text<'a> {
    /// `file` and `cell` are the origin of the text.
    pub(super) fn new(original: &'a str, file: Option<&'a str>, cell: Option<usize>) -> Self {
        let (lower, origin) = lowered(original);
        let newlines = original.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
        let tokens = tokens(&lower);
        Self { lower, tokens, original, origin, lines, last: Cell::default(), file, cell }
    }

    /// Word at an index of the token list; empty for marks and beyond the end.
    pub(super) fn word(&self, index: usize) -> &str {
        match self.tokens.get(index) {
            Some(Token { range, sort: TokenKind::Word }) => &self.lower[range.clone()],
            _ => "",
        }
    }

    /// Mark at an index of the token list.
    pub(super) fn mark(&self, index: usize) -> Option<char> {
        match self.tokens.get(index)?.sort {
            TokenKind::Mark(mark) => Some(mark),
            _ => None,
        }
    }

    /// True at the end of a sentence or of the text.
    pub(super) fn ends(&self, index: usize) -> bool {
        self.tokens.get(index).is_none_or(|token| token.sort == TokenKind::Break)
    }

    /// True at the end of a question.
    pub(super) fn asks(&self, index: usize) -> bool {
        self.tokens.get(index).is_some_and(|token| self.lower[token.range.clone()] == *"?")
    }

    /// Next word after a token, across joining marks (`fine-tune`, `batch_size`).
    pub(super) fn after(&self, index: usize) -> Option<usize> {
        let mut next = index + 1;
        while matches!(self.mark(next), Some('-' | '_')) {
            next += 1;
        }
        matches!(self.tokens.get(next), Some(Token { sort: TokenKind::Word, .. })).then_some(next)
    }

    /// Token at a byte of the lower-case text.
    pub(super) fn token_at(&self, byte: usize) -> usize {
        self.tokens.partition_point(|token| token.range.end <= byte)
    }

    /// Tokens that a byte range touches.
    pub(super) fn tokens_of(&self, bytes: &Range<usize>) -> Range<usize> {
        let first = self.token_at(bytes.start);
        first..self.token_at(bytes.end.saturating_sub(1)).max(first) + 1
    }

    /// Original text at a range of the lower-case text.
    pub(super) fn written(&self, bytes: &Range<usize>) -> &'a str {
        let (start, end) = (self.original_byte(bytes.start), self.original_byte(bytes.end));
        self.original.get(start..end).unwrap_or_default()
    }

    /// The line and column of a byte of the lower-case text.
    pub(super) fn location(&self, byte: usize) -> EvidenceLocation {
        let byte = self.original_byte(byte);
        let line = self.lines.partition_point(|start| *start <= byte);
        let start = self.lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let column = self.column(start, byte);
        EvidenceLocation {
            file: self.file.map(str::to_owned),
            cell: self.cell,
            line: Some(line),
            column: Some(column),
        }
    }

    /// Lines of the lower-case text with their byte offsets.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut at = 0;
        self.lower.split_inclusive('\n').map(move |line| {
            let start = at;
            at += line.len();
            (start, line.trim_end())
        })
    }

    /// Column of a byte in the line that starts at `start`, from 1.
    fn column(&self, start: usize, byte: usize) -> usize {
        let (known, column) = self.last.get();
        let (from, column) = if (start..=byte).contains(&known) && column > 0 {
            (known, column)
        } else {
            (start, 1)
        };
        let column = column + self.original.get(from..byte).unwrap_or_default().chars().count();
        self.last.set((byte, column));
        column
    }

    fn original_byte(&self, byte: usize) -> usize {
        match &self.origin {
            None => byte,
            Some(origin) => origin.get(byte).copied().unwrap_or(self.original.len()),
        }
    }
}

/// Lower-case text and, if a letter changes its length, the origin of each byte.
fn lowered(text: &str) -> (String, Option<Vec<usize>>) {
    if text.is_ascii() {
        return (text.to_ascii_lowercase(), None);
    }
    let mut lower = String::with_capacity(text.len());
    let mut origin = Vec::with_capacity(text.len());
    for (at, letter) in text.char_indices() {
        lower.extend(letter.to_lowercase());
        origin.resize(lower.len(), at);
    }
    (lower, Some(origin))
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut letters = text.char_indices().peekable();
    let mut line_start = 0;
    while let Some((start, letter)) = letters.next() {
        if letter.is_alphanumeric() {
            let mut end = start + letter.len_utf8();
            while let Some((at, next)) = letters.peek().copied() {
                if !next.is_alphanumeric() && !joins(text, at, next) {
                    break;
                }
                end = at + next.len_utf8();
                letters.next();
            }
            tokens.push(Token { range: start..end, sort: TokenKind::Word });
            continue;
        }
        let range = start..start + letter.len_utf8();
        let rest = &text[range.end..];
        let sort = match letter {
            '\n' => {
                let line = &text[line_start..start];
                line_start = range.end;
                if !ends_item(line, rest) {
                    continue;
                }
                TokenKind::Break
            }
            _ if letter.is_whitespace() => continue,
            ';' | '!' | '?' => TokenKind::Break,
            '.' if rest.chars().next().is_none_or(char::is_whitespace) => TokenKind::Break,
            mark => TokenKind::Mark(mark),
        };
        tokens.push(Token { range, sort });
    }
    tokens
}

/// True if a mark inside of a word belongs to it: `3.1`, `10,000`, `don't`.
fn joins(text: &str, at: usize, mark: char) -> bool {
    let before = text[..at].chars().next_back();
    let mut after = text[at + mark.len_utf8()..].chars();
    let digit = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_digit());
    match mark {
        '.' => digit(before) && digit(after.next()),
        ',' => {
            let thousands = digit(after.next()) && digit(after.next()) && digit(after.next());
            digit(before) && thousands && !digit(after.next())
        }
        '\'' | '’' => after.next().is_some_and(char::is_alphabetic),
        _ => false,
    }
}

/// True if a line break ends a statement, false if it only wraps the line.
fn ends_item(line: &str, rest: &str) -> bool {
    let next = rest.lines().next().unwrap_or_default().trim_start();
    line.chars().nth(WRAPPED_FROM).is_none()
        || next.is_empty()
        || next.starts_with(['-', '*', '#', '>', '|', '`'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let text = Text::new(text, None, None);
        (0..text.tokens.len()).map(|index| text.word(index).to_owned()).collect()
    }

    #[test]
    fn numbers_and_contractions_are_one_word() {
        assert_eq!(words("don't Llama-3.1, 10,000"), ["don't", "llama", "", "3.1", "", "10,000"]);
    }

    #[test]
    fn a_place_counts_letters_as_they_were_written() {
        let text = Text::new("İstanbul\näö GPU", None, None);
        let at = text.lower.find("gpu").unwrap();
        assert_eq!(text.written(&(at..at + 3)), "GPU");
        let location = text.location(at);
        assert_eq!((location.line, location.column), (Some(2), Some(4)));
    }

    #[test]
    fn a_wrapped_line_does_not_end_a_sentence() {
        let wrapped =
            Text::new("this service runs everywhere and there is no\nGPU in it", None, None);
        assert!(wrapped.tokens.iter().all(|token| token.sort != TokenKind::Break));
        let items = Text::new("gpu: none\nmemory: 4Gi", None, None);
        assert!(items.tokens.iter().any(|token| token.sort == TokenKind::Break));
    }
}
