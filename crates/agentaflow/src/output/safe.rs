//! Text of jobs on a terminal: job output and names are data of other users, and escape sequences in them could change the
//! title, the clipboard or earlier lines of the terminal. Files and pipes get the text unchanged.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once a colour reached the terminal: the program resets it at the end.
static COLOURED: AtomicBool = AtomicBool::new(false);

const RESET: &str = "\u{1b}[0m";

/// Output of a job: colours, tabs, returns and backspaces stay; all other control characters become visible.
pub(crate) fn output_text(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.iter().any(|byte| is_suspect(*byte)) {
        return bytes.into();
    }
    let mut safe = Vec::with_capacity(bytes.len() + 16);
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        if let Some(length) = colour_length(rest) {
            COLOURED.store(true, Ordering::Relaxed);
            safe.extend_from_slice(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        match (first, after.first()) {
            (b'\n' | b'\r' | b'\t' | 8, _) => safe.push(*first),
            (0..0x20 | 0x7f, _) => push_picture(&mut safe, u32::from(*first)),
            // U+0080 to U+009F: terminals treat them like ESC and a letter.
            (0xc2, Some(second @ 0x80..0xa0)) => {
                push_picture(&mut safe, u32::from(*second));
                rest = &after[1..];
                continue;
            }
            _ => safe.push(*first),
        }
        rest = after;
    }
    safe.into()
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
    matches!(byte, 0..0x20 | 0x7f | 0xc2)
}

fn is_harmful(one: char) -> bool {
    one.is_control()
        || matches!(one, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Length of a sequence that selects colours: `ESC [ 1 ; 31 m`.
fn colour_length(bytes: &[u8]) -> Option<usize> {
    let parameters = bytes.strip_prefix(b"\x1b[")?;
    let end = parameters.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b';' | b':'))?;
    // 8 hides text.
    let hides = parameters[..end].split(|byte| *byte == b';').any(|one| one == b"8");
    (parameters[end] == b'm' && !hides).then_some(end + 3)
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
        String::from_utf8(output_text(text.as_bytes()).into_owned()).unwrap()
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
        // Bytes that are not UTF-8 stay.
        assert_eq!(output_text(b"\xff\x1b\xc2"), &b"\xff\xe2\x90\x9b\xc2"[..]);
    }

    #[test]
    fn names_have_no_control_characters_at_all() {
        assert_eq!(cell_text("train 训练"), "train 训练");
        assert_eq!(cell_text("a\u{1b}[31mb\nc\u{202e}d"), "a␛[31mb␊c\u{fffd}d");
    }
}
