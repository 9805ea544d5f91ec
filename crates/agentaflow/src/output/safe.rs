//! Text of jobs on a terminal: job output and names are data of other users, and escape sequences in them could change the
//! title, the clipboard or earlier lines of the terminal. Files and pipes get the text unchanged.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once a colour reached the terminal: the program resets it at the end.
static COLOURED: AtomicBool = AtomicBool::new(false);

const RESET: &str = "\u{1b}[0m";

/// Longest colour sequence; a longer one becomes visible.
const MAX_COLOUR: usize = 64;

/// Stream of output to a terminal. It arrives in pieces, and a sequence may begin in one piece and end in a later one.
#[derive(Debug, Default)]
pub(crate) struct OutputFilter {
    /// Beginning of a character or colour sequence.
    held: Vec<u8>,
}

impl OutputFilter {
    pub(crate) const fn new() -> Self {
        Self { held: Vec::new() }
    }

    /// The next piece: colours, tabs, returns and backspaces stay; all other control characters and changes of the writing
    /// direction become visible. An incomplete sequence at the end is held until the next piece.
    pub(crate) fn piece<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if self.held.is_empty() && !bytes.iter().any(|byte| is_suspect(*byte)) {
            return bytes.into();
        }
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        self.held = all.split_off(complete_length(&all));
        visible(&all).into()
    }

    /// Incomplete sequence at the end of the output.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        visible(&std::mem::take(&mut self.held))
    }
}

fn visible(bytes: &[u8]) -> Vec<u8> {
    let mut safe = Vec::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        push_visible(&mut safe, chunk.valid());
        for byte in chunk.invalid() {
            match byte {
                // Control characters of terminals with 8-bit characters.
                0x80..0xa0 => push_picture(&mut safe, u32::from(*byte)),
                _ => safe.push(*byte),
            }
        }
    }
    safe
}

fn push_visible(safe: &mut Vec<u8>, text: &str) {
    let mut rest = text;
    while let Some(one) = rest.chars().next() {
        let colour = colour_length(rest.as_bytes());
        let length = colour.unwrap_or(one.len_utf8());
        if colour.is_some() {
            COLOURED.store(true, Ordering::Relaxed);
        }
        if colour.is_some() || matches!(one, '\n' | '\r' | '\t' | '\u{8}') || !is_harmful(one) {
            safe.extend_from_slice(&rest.as_bytes()[..length]);
        } else {
            push_picture(safe, one.into());
        }
        rest = &rest[length..];
    }
}

/// Length without an incomplete character or colour sequence at the end.
fn complete_length(bytes: &[u8]) -> usize {
    let recent = bytes.len().saturating_sub(MAX_COLOUR);
    let escape = bytes[recent..].iter().rposition(|byte| *byte == 0x1b).map(|at| recent + at);
    if let Some(escape) = escape
        && begins_colour(&bytes[escape..])
    {
        return escape;
    }
    // A character has at most four bytes.
    let first = (1..4).find(|back| bytes.len() >= *back && bytes[bytes.len() - back] >= 0xc0);
    let Some(start) = first.map(|back| bytes.len() - back) else { return bytes.len() };
    let incomplete = std::str::from_utf8(&bytes[start..])
        .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none());
    if incomplete { start } else { bytes.len() }
}

fn begins_colour(bytes: &[u8]) -> bool {
    match bytes {
        [0x1b] => true,
        [0x1b, b'[', parameters @ ..] => parameters.iter().all(|byte| is_parameter(*byte)),
        _ => false,
    }
}

/// Name or message in one line: no control characters, no colours, no changes of the writing direction.
pub(crate) fn cell_text(text: &str) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return text.into();
    }
    text.chars().map(|one| if is_harmful(one) { picture(one.into()) } else { one }).collect()
}

/// Ends colours that a job left on.
pub(crate) fn reset() -> &'static str {
    if COLOURED.load(Ordering::Relaxed) { RESET } else { "" }
}

fn is_suspect(byte: u8) -> bool {
    matches!(byte, 0..0x20 | 0x7f..)
}

fn is_harmful(one: char) -> bool {
    one.is_control()
        || matches!(one, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Length of a sequence that selects colours: `ESC [ 1 ; 31 m`.
fn colour_length(bytes: &[u8]) -> Option<usize> {
    let parameters = bytes.strip_prefix(b"\x1b[")?;
    let end = parameters.iter().position(|byte| !is_parameter(*byte))?;
    let ends = parameters[end] == b'm' && end + 3 <= MAX_COLOUR;
    (ends && selects_colours(&parameters[..end])).then_some(end + 3)
}

fn is_parameter(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b';' | b':')
}

/// Returns true if all parameters are known attributes. 8 hides text, and terminals differ in large numbers.
fn selects_colours(parameters: &[u8]) -> bool {
    let text = String::from_utf8_lossy(parameters);
    let number = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u32>().ok() };
    let mut all = text.split(';').map(|parameter| {
        let mut parts = parameter.split(':');
        (number(parts.next().unwrap_or_default()), parts.next().is_some())
    });
    while let Some((attribute, has_parts)) = all.next() {
        match attribute {
            // The numbers of a colour follow: an index, or red, green and blue.
            Some(38 | 48 | 58) if !has_parts => {
                let colours = match all.next() {
                    Some((Some(5), false)) => 1,
                    Some((Some(2), false)) => 3,
                    _ => return false,
                };
                let mut values = (&mut all).take(colours);
                if !values.all(|(value, _)| value.is_some_and(|value| value <= 255)) {
                    return false;
                }
            }
            Some(0..=7 | 9..=107) => {}
            _ => return false,
        }
    }
    true
}

fn push_picture(safe: &mut Vec<u8>, code: u32) {
    safe.extend_from_slice(picture(code).encode_utf8(&mut [0; 4]).as_bytes());
}

/// Visible character for a control character: ␛ for ESC.
fn picture(code: u32) -> char {
    match code {
        0..0x20 => char::from_u32(0x2400 + code).unwrap_or('\u{fffd}'),
        0x7f => '\u{2421}',
        _ => '\u{fffd}',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        String::from_utf8(pieces(&[text.as_bytes()])).unwrap()
    }

    fn pieces(pieces: &[&[u8]]) -> Vec<u8> {
        let mut filter = OutputFilter::new();
        let mut all = Vec::new();
        for piece in pieces {
            all.extend_from_slice(&filter.piece(piece));
        }
        all.extend(filter.end());
        all
    }

    #[test]
    fn colours_and_progress_bars_of_a_job_stay() {
        for text in ["plain é 训练\n", "\u{1b}[1;31mred\u{1b}[0m\n", "10%\r20%\r\n", "a\tb\u{8}c"]
        {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn sequences_that_change_the_terminal_become_visible() {
        for (text, expected) in [
            ("\u{1b}]0;title\u{7}", "␛]0;title␇"),
            ("\u{1b}]52;c;ZXZpbA==\u{1b}\\", "␛]52;c;ZXZpbA==␛\\"),
            ("\u{1b}[2J\u{1b}[H", "␛[2J␛[H"),
            ("\u{1b}[8mhidden", "␛[8mhidden"),
            ("\u{1b}c", "␛c"),
            ("a\u{9b}2Jb", "a\u{fffd}2Jb"),
            ("end \u{1b}", "end ␛"),
            ("\u{1b}[31", "␛[31"),
        ] {
            assert_eq!(shown(text), expected);
        }
        // Bytes that are not UTF-8 stay, except for control characters of terminals with 8-bit characters.
        assert_eq!(pieces(&[b"\xff\x1b\xc2"]), b"\xff\xe2\x90\x9b\xc2");
        assert_eq!(pieces(&[b"a\x9b2Jb"]), "a\u{fffd}2Jb".as_bytes());
    }

    #[test]
    fn attributes_are_numbers_and_the_values_of_a_colour_follow_it() {
        for colour in ["38;5;8", "48;2;8;8;8", "38:5:8", "", ";1", "01;031", "90;107"] {
            let text = format!("\u{1b}[{colour}mx");
            assert_eq!(shown(&text), text);
        }
        for hidden in ["08", "0;008", "8:1", "65544", "264", "38;8", "38;5;8;8", "1;8;38;5;1"] {
            assert_eq!(shown(&format!("\u{1b}[{hidden}mx")), format!("␛[{hidden}mx"));
        }
    }

    #[test]
    fn a_sequence_in_two_pieces_is_filtered_like_one_in_a_piece() {
        let text =
            "a\u{9b}2J\u{1b}]0;t\u{7}\u{1b}[1;31mré\u{202e}d训\u{1b}[08m\u{1b}[0m".as_bytes();
        let whole = pieces(&[text]);
        for cut in 0..=text.len() {
            assert_eq!(pieces(&[&text[..cut], &text[cut..]]), whole, "{cut}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(pieces(&bytes), whole);
        assert_eq!(pieces(&[b"\xc2", b"", b"\x9b"]), "\u{fffd}".as_bytes());
    }

    #[test]
    fn only_an_incomplete_sequence_is_held() {
        let mut filter = OutputFilter::new();
        for (piece, written) in [
            ("10% é", "10% é"),
            ("\u{1b}", ""),
            ("[3", ""),
            ("1mx", "\u{1b}[31mx"),
            ("\u{1b}[x", "␛[x"),
        ] {
            assert_eq!(filter.piece(piece.as_bytes()), written.as_bytes(), "{piece:?}");
        }
        assert_eq!(filter.piece(&[b'1'; 100]).len(), 100);
        let long = format!("\u{1b}[{}", "1".repeat(100));
        assert!(!filter.piece(long.as_bytes()).is_empty());
        assert_eq!(filter.end(), b"");
    }

    #[test]
    fn changes_of_the_writing_direction_are_visible_in_output() {
        assert_eq!(shown("a\u{202e}b\u{2066}c"), "a\u{fffd}b\u{fffd}c");
    }

    #[test]
    fn names_have_no_control_characters_at_all() {
        assert_eq!(cell_text("train 训练"), "train 训练");
        assert_eq!(cell_text("a\u{1b}[31mb\nc\u{202e}d"), "a␛[31mb␊c\u{fffd}d");
    }
}
