//! Lines, margins and dashes of a text, by byte offsets. Offsets come from the parser and are never trusted to be in
//! the text or between two letters.

/// How lines end in a text.
pub(super) fn newline(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

/// Where the line of an offset begins.
pub(super) fn line_start(text: &str, offset: usize) -> usize {
    text.get(..offset).and_then(|before| before.rfind('\n')).map_or(0, |end| end + 1)
}

/// Where the line of an offset ends, before its line end.
pub(super) fn line_end(text: &str, offset: usize) -> usize {
    let rest = text.get(offset..).unwrap_or_default();
    let line = rest.split('\n').next().unwrap_or_default();
    offset.min(text.len()) + line.strip_suffix('\r').unwrap_or(line).len()
}

/// Where the line after the one in which something ends begins. What ends with its line, as a block of text does, ends
/// at the begin of the next one already.
pub(super) fn next_line(text: &str, end: usize) -> usize {
    let before = text.get(..end).unwrap_or_default();
    if before.ends_with('\n') {
        return end;
    }
    let rest = text.get(end..).unwrap_or_default();
    rest.find('\n').map_or(text.len(), |line| end + line + 1)
}

/// The spaces before an offset, if nothing else stands before it on its line.
pub(super) fn indent_before(text: &str, offset: usize) -> Option<&str> {
    let margin = text.get(line_start(text, offset)..offset)?;
    margin.bytes().all(|byte| byte == b' ').then_some(margin)
}

/// The dash of the item that begins at an offset.
pub(super) fn dash_before(text: &str, offset: usize) -> Option<usize> {
    let before = text.get(..offset)?.trim_end_matches([' ', '\n', '\r']);
    before.ends_with('-').then(|| before.len() - 1)
}

/// How many characters stand before an offset on its line.
pub(super) fn column(text: &str, offset: usize) -> usize {
    text.get(line_start(text, offset)..offset).map_or(0, |margin| margin.chars().count())
}

/// The comment that follows an offset on its line.
pub(super) fn comment_after(text: &str, offset: usize) -> Option<&str> {
    let rest = text.get(offset..line_end(text, offset))?.trim();
    rest.starts_with('#').then_some(rest)
}

/// Goes up from the begin of a line over the lines that are comments.
pub(super) fn above_comments(text: &str, mut start: usize) -> usize {
    while start > 0 {
        let above = line_start(text, start - 1);
        if !text.get(above..start).is_some_and(|line| line.trim_start().starts_with('#')) {
            break;
        }
        start = above;
    }
    start
}

/// Goes down from the begin of a line over the lines that are comments and indented at least so far.
pub(super) fn below_comments(text: &str, mut start: usize, indent: usize) -> usize {
    while let Some(line) = text.get(start..).and_then(|rest| rest.split_inclusive('\n').next()) {
        let content = line.trim_start_matches(' ');
        if !content.starts_with('#') || line.len() - content.len() < indent {
            break;
        }
        start += line.len();
    }
    start
}
