//! What commands print: tables that fit the terminal, JSON, CSV.

mod table;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use anyhow::{Context as _, Result};

pub(crate) use table::{Column, Side, WIDE, table, table_with};

/// The width that sentences keep to when nobody says how wide the terminal is.
const DEFAULT_WIDTH: usize = 80;

/// How a list is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// As many columns as fit the terminal
    Table,
    /// Every column
    Wide,
    /// One JSON array
    Json,
    /// Comma-separated values with a header line
    Csv,
}

/// A field of a CSV file of `T`.
pub(crate) struct Field<T> {
    /// Its name in the header.
    pub(crate) name: &'static str,
    /// The value of a row, as a machine reads it.
    pub(crate) value: fn(&T) -> String,
}

/// Writes to stdout at once, so that a full disk or a closed pipe is noticed here.
pub(crate) fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// The same for what need not be text.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("cannot write the output")
}

/// Clears the terminal and writes what fits it: were there more, the first lines would be out of sight.
pub(crate) fn print_anew(text: &str) -> Result<()> {
    let size = terminal_size::terminal_size_of(io::stdout());
    let rows = size.map_or(usize::MAX, |(_, rows)| usize::from(rows.0));
    print(&format!("\u{1b}[H\u{1b}[2J{}", first_rows(text, rows)))
}

/// As many lines as fit, with how many there are besides. The line below the last is the cursor's.
fn first_rows(text: &str, rows: usize) -> Cow<'_, str> {
    let count = text.lines().count();
    if count < rows {
        return text.into();
    }
    let shown: Vec<_> = text.lines().take(rows.saturating_sub(2)).collect();
    let more = count - shown.len();
    format!("{}\n… {more} more\n", shown.join("\n")).into()
}

/// Whether a stream gets colours: only a terminal, and not when `NO_COLOR` is set.
pub(crate) fn colour(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether stdout gets colours.
pub(crate) fn stdout_colour() -> bool {
    colour(io::stdout().is_terminal())
}

/// Makes text bold where stdout gets colours.
pub(crate) fn bold(text: &str) -> String {
    if stdout_colour() { format!("\u{1b}[1m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// How wide tables may be. Into a pipe or a file they go uncut: whoever searches them is to find everything.
pub(crate) fn width() -> usize {
    said_width().unwrap_or(usize::MAX)
}

/// How many columns there are to write in: those of the terminal, or as many as `COLUMNS` says.
fn said_width() -> Option<usize> {
    let terminal = terminal_size::terminal_size_of(io::stdout());
    let terminal = terminal.map(|(width, _)| usize::from(width.0));
    let said = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|width| *width > 0);
    terminal.or_else(said)
}

/// A sentence broken into lines that fit the terminal; all but the first begin with `rest`.
pub(crate) fn wrapped(sentence: &str, first: &str, rest: &str) -> String {
    let width = said_width().unwrap_or(DEFAULT_WIDTH);
    let mut text = String::new();
    let mut line = first.to_owned();
    let mut begun = false;
    for word in sentence.split(' ') {
        if begun && line.chars().count() + 1 + word.chars().count() > width {
            text.push_str(&line);
            text.push('\n');
            rest.clone_into(&mut line);
            begun = false;
        }
        if begun {
            line.push(' ');
        }
        line.push_str(word);
        begun = true;
    }
    text + &line + "\n"
}

/// The rows as CSV (RFC 4180) with a header line.
pub(crate) fn csv<T>(fields: &[Field<T>], rows: &[T]) -> String {
    let names: Vec<_> = fields.iter().map(|field| quoted(field.name)).collect();
    let mut text = names.join(",") + "\n";
    for row in rows {
        let values: Vec<_> = fields.iter().map(|field| quoted(&(field.value)(row))).collect();
        text.push_str(&values.join(","));
        text.push('\n');
    }
    text
}

/// A CSV cell, in quotes where it needs them.
pub(crate) fn quoted(value: &str) -> String {
    if value.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", value.replace('"', "\"\""))
    } else {
        value.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_begins_at_the_top_of_the_screen() {
        assert_eq!(first_rows("a\nb\n", 3), "a\nb\n");
        assert_eq!(first_rows("a\nb\nc\nd\n", 4), "a\nb\n… 2 more\n");
    }

    #[test]
    fn csv_quotes_what_would_break_a_line() {
        let fields = [Field::<&str> { name: "value", value: |row| (*row).to_owned() }];
        assert_eq!(csv(&fields, &["a,\"b\""]), "value\n\"a,\"\"b\"\"\"\n");
    }
}
