//! Sanitizes and fits foreign text, so that a job or node cannot move the cursor, hide text, or shift a column.

use unicode_width::UnicodeWidthChar as _;

/// Columns between tab stops.
const TAB: usize = 8;

/// One line of text without escape sequences, control characters and invisible marks.
pub(crate) fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut column = 0;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => skip_escape(&mut rest),
            '\u{9b}' => skip_control_sequence(&mut rest),
            '\t' => {
                let spaces = TAB - column % TAB;
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\n' | '\r' => {
                out.push(' ');
                column += 1;
            }
            c if c.is_control() || is_invisible(c) => {}
            c => {
                out.push(c);
                column += c.width().unwrap_or(0);
            }
        }
    }
    out
}

/// Lines of a log. Of a line overwritten after a carriage return, as progress bars do, the last version counts.
pub(crate) fn log_lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let last_version = |line: &str| {
        let line = line.trim_end_matches('\r');
        clean(line.rsplit('\r').next().unwrap_or_default())
    };
    text.lines().map(last_version).collect()
}

/// Width in terminal columns.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// The text in exactly `columns` columns: padded with spaces, or cut with a mark.
pub(crate) fn fit(text: &str, columns: usize, mark: char) -> String {
    let mut out = cut(text, columns, mark);
    out.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(&out))));
    out
}

/// [`fit`], right-aligned.
pub(crate) fn fit_right(text: &str, columns: usize, mark: char) -> String {
    let cut = cut(text, columns, mark);
    " ".repeat(columns.saturating_sub(width(&cut))) + &cut
}

/// The text in at most `columns` columns, cut with a mark.
pub(crate) fn cut(text: &str, columns: usize, mark: char) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(1);
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > room {
            break;
        }
        out.push(c);
    }
    if columns > 0 {
        out.push(mark);
    }
    out
}

/// The text in lines of at most `columns` columns, broken between words where possible. Lines after the first start
/// with the indent.
pub(crate) fn wrap(text: &str, columns: usize, indent: &str) -> Vec<String> {
    let columns = columns.max(width(indent) + 2);
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    // Byte after the last space, where the line can be broken.
    let mut space = None;
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide > columns {
            let rest = match space.take() {
                Some(at) => line.split_off(at),
                None => String::new(),
            };
            lines.push(std::mem::take(&mut line).trim_end().to_owned());
            line = format!("{indent}{}", rest.trim_start());
            used = width(&line);
        }
        line.push(c);
        used += wide;
        if c == ' ' && line.trim_start().len() > 1 {
            space = Some(line.len());
        }
    }
    lines.push(line);
    lines
}

/// ASCII replacement for terminals without UTF-8.
pub(crate) fn ascii(text: &str) -> String {
    let plain = |c: char| match c {
        '×' => 'x',
        '…' => '~',
        '·' | '–' | '—' => '-',
        '’' | '‘' => '\'',
        c if c.is_ascii() => c,
        _ => '?',
    };
    text.chars().map(plain).collect()
}

/// Skips the rest of an escape sequence after ESC.
fn skip_escape(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match rest.next() {
        Some('[') => skip_control_sequence(rest),
        // Strings for the terminal: titles, links, device control.
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(c) = rest.next() {
                if c == '\u{7}' || c == '\u{9c}' {
                    return;
                }
                if c == '\u{1b}' {
                    rest.next_if_eq(&'\\');
                    return;
                }
            }
        }
        // Two-character sequences, such as the choice of a character set.
        Some(' '..='/') => {
            rest.next();
        }
        _ => {}
    }
}

/// Skips a control sequence after `ESC [` up to its final byte. An invalid character ends the sequence and stays.
fn skip_control_sequence(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while rest.next_if(|c| matches!(c, ' '..='?')).is_some() {}
    rest.next_if(|c| matches!(c, '@'..='~'));
}

/// Zero-width and bidirectional control characters.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{1f3fb}'..='\u{1f3ff}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_output_cannot_move_the_cursor() {
        for (written, shown) in [
            ("plain", "plain"),
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}[2J\u{1b}[Hgone", "gone"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]8;;http://x\u{1b}\\link", "link"),
            ("\u{1b}Pq#0\u{1b}\\picture", "picture"),
            ("\u{1b}(Bascii", "ascii"),
            ("\u{9b}5Aup", "up"),
            ("bell\u{7}back\u{8}", "bellback"),
            ("a\tb", "a       b"),
            ("\u{202e}turned\u{200b}", "turned"),
            ("cut \u{1b}[", "cut "),
            ("cut \u{1b}", "cut "),
        ] {
            assert_eq!(clean(written), shown, "{written:?}");
        }
    }

    #[test]
    fn a_progress_bar_shows_its_last_state() {
        let lines = log_lines(b"start\r\n 10%\r 50%\r100%\r\n\xff\n");
        assert_eq!(lines, ["start", "100%", "\u{fffd}"]);
    }

    #[test]
    fn a_text_takes_exactly_its_columns() {
        for (text, columns, fitted) in [
            ("abc", 5, "abc  "),
            ("abcdef", 4, "abc…"),
            ("日本語", 5, "日本…"),
            ("日本語", 4, "日… "),
            ("abc", 0, ""),
        ] {
            assert_eq!(fit(text, columns, '…'), fitted, "{text} in {columns}");
            assert_eq!(width(&fit(text, columns, '…')), columns, "{text} in {columns}");
        }
        assert_eq!(fit_right("7", 3, '…'), "  7");
    }

    #[test]
    fn a_long_line_is_broken_between_words() {
        assert_eq!(wrap("one two three", 8, "  "), ["one two", "  three"]);
        assert_eq!(wrap("abcdefghij", 4, ""), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("", 4, ""), [""]);
        assert_eq!(wrap("abc", 0, "      "), ["abc"]);
    }
}
