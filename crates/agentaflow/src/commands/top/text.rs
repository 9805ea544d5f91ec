//! Text from elsewhere, made safe and fitted: nothing that a job or a node says can move the cursor, hide what
//! follows it, or push a column out of line.

use unicode_width::UnicodeWidthChar as _;

/// Columns between the places where a tab stops.
const TAB: usize = 8;

/// One line of text without escape sequences, control characters and invisible marks.
pub(super) fn clean(text: &str) -> String {
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

/// The lines of a job's output as a terminal would leave them: where a line was written over from its start, as
/// progress bars do, the last version counts.
pub(super) fn log_lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let last_version = |line: &str| {
        let line = line.trim_end_matches('\r');
        clean(line.rsplit('\r').next().unwrap_or_default())
    };
    text.lines().map(last_version).collect()
}

/// Columns that a text takes.
pub(super) fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// The text in exactly so many columns: filled with spaces, or cut with a mark.
pub(super) fn fit(text: &str, columns: usize, mark: char) -> String {
    let mut out = cut(text, columns, mark);
    out.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(&out))));
    out
}

/// The same, standing to the right.
pub(super) fn fit_right(text: &str, columns: usize, mark: char) -> String {
    let cut = cut(text, columns, mark);
    " ".repeat(columns.saturating_sub(width(&cut))) + &cut
}

/// The text in at most so many columns.
pub(super) fn cut(text: &str, columns: usize, mark: char) -> String {
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

/// The text in lines of at most so many columns, broken between words where that is possible. Lines after the first
/// begin with the indent.
pub(super) fn wrap(text: &str, columns: usize, indent: &str) -> Vec<String> {
    let columns = columns.max(width(indent) + 2);
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    // Where the line can be broken: after its last space.
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

/// Only ASCII, for terminals that show nothing else.
pub(super) fn ascii(text: &str) -> String {
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

/// After the escape character.
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
        // A choice of character sets and the like, with one more character.
        Some(' '..='/') => {
            rest.next();
        }
        _ => {}
    }
}

/// After `ESC [`: up to its final letter. A character that cannot be part of it ends it, too, and stays.
fn skip_control_sequence(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while rest.next_if(|c| matches!(c, ' '..='?')).is_some() {}
    rest.next_if(|c| matches!(c, '@'..='~'));
}

/// Marks that take no room, and those that turn the direction of what follows.
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
    fn what_a_job_writes_cannot_move_the_cursor() {
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
    fn a_progress_bar_shows_as_it_ended() {
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
