//! Lines, margins and dashes of a text, by byte offsets. Offsets come from the parser and are never trusted to be in
//! the text or between two letters.

/// Line ending of a text.
pub(super) fn newline(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

pub(super) fn line_start(text: &str, offset: usize) -> usize {
    text.get(..offset).and_then(|before| before.rfind('\n')).map_or(0, |end| end + 1)
}

/// Excludes the line ending.
pub(super) fn line_end(text: &str, offset: usize) -> usize {
    let rest = text.get(offset..).unwrap_or_default();
    let line = rest.split('\n').next().unwrap_or_default();
    offset.min(text.len()) + line.strip_suffix('\r').unwrap_or(line).len()
}

/// Start of the line after the one that contains `end`. The end of a block scalar is already the start of the next
/// line.
pub(super) fn next_line(text: &str, end: usize) -> usize {
    let before = text.get(..end).unwrap_or_default();
    if before.ends_with('\n') {
        return end;
    }
    let rest = text.get(end..).unwrap_or_default();
    rest.find('\n').map_or(text.len(), |line| end + line + 1)
}

/// Indentation before an offset; none if other text precedes it on the line.
pub(super) fn indent_before(text: &str, offset: usize) -> Option<&str> {
    let margin = text.get(line_start(text, offset)..offset)?;
    margin.bytes().all(|byte| byte == b' ').then_some(margin)
}

/// Dash of the item that starts at an offset.
pub(super) fn dash_before(text: &str, offset: usize) -> Option<usize> {
    let before = text.get(..offset)?.trim_end_matches([' ', '\n', '\r']);
    before.ends_with('-').then(|| before.len() - 1)
}

/// Characters before an offset on its line.
pub(super) fn column(text: &str, offset: usize) -> usize {
    text.get(line_start(text, offset)..offset).map_or(0, |margin| margin.chars().count())
}

/// Comment after an offset on its line.
pub(super) fn comment_after(text: &str, offset: usize) -> Option<&str> {
    let rest = text.get(offset..line_end(text, offset))?.trim();
    rest.starts_with('#').then_some(rest)
}

/// Start of the comment lines directly above a line.
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

/// End of the comment lines directly below a line that are indented by at least `indent`.
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
