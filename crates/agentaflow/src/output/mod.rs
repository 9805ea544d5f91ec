//! Output of commands: tables that fit the terminal, wrapped text, CSV.

mod safe;
mod table;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};

use self::safe::OutputFilter;

pub(crate) use table::{Column, Side, WIDE, table, table_with};

/// Columns of wrapped text without a terminal and without `COLUMNS`.
const DEFAULT_WIDTH: usize = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Table with the columns that fit the terminal
    Table,
    /// Table with all columns
    Wide,
    /// JSON array
    Json,
    /// Comma-separated values with a header row
    Csv,
}

/// A field of a CSV file of `T`.
pub(crate) struct Field<T> {
    pub(crate) name: &'static str,
    pub(crate) value: fn(&T) -> String,
}

/// Writes to stdout and flushes, so that a full disk or a closed pipe is an error here.
pub(crate) fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// On a terminal, control characters of jobs are made harmless.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<()> {
    if io::stdout().is_terminal() { put(&terminal().piece(bytes)) } else { put(bytes) }
}

/// Ends colours that the output of a job left on.
pub(crate) fn reset_terminal() {
    let mut end = terminal().end();
    end.extend_from_slice(safe::reset().as_bytes());
    // Stdout may be closed.
    let _ = put(&end);
}

/// All output to the terminal is one stream.
fn terminal() -> MutexGuard<'static, OutputFilter> {
    static TERMINAL: Mutex<OutputFilter> = Mutex::new(OutputFilter::new());
    TERMINAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Text of another user in a line on stderr.
pub(crate) fn stderr_line(text: &str) -> Cow<'_, str> {
    if io::stderr().is_terminal() { safe::cell_text(text) } else { text.into() }
}

/// Text of another user in a table on stdout.
fn cell(text: &str) -> Cow<'_, str> {
    if io::stdout().is_terminal() { safe::cell_text(text) } else { text.into() }
}

fn put(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("cannot write to stdout")
}

/// Clears the terminal and writes the first lines that fit.
pub(crate) fn redraw(text: &str) -> Result<()> {
    let size = terminal_size::terminal_size_of(io::stdout());
    let rows = size.map_or(usize::MAX, |(_, rows)| usize::from(rows.0));
    put(b"\x1b[H\x1b[2J")?;
    print(&first_rows(text, rows))
}

/// The first lines, and the number of omitted ones. The cursor needs the line below.
fn first_rows(text: &str, rows: usize) -> Cow<'_, str> {
    let count = text.lines().count();
    if count < rows {
        return text.into();
    }
    let shown: Vec<_> = text.lines().take(rows.saturating_sub(2)).collect();
    let more = count - shown.len();
    format!("{}\n… {more} more\n", shown.join("\n")).into()
}

/// Colours are enabled on a terminal unless `NO_COLOR` is set.
pub(crate) fn colour(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

pub(crate) fn stdout_colour() -> bool {
    colour(io::stdout().is_terminal())
}

/// Bold text, if colours are enabled on stdout.
pub(crate) fn bold(text: &str) -> String {
    if stdout_colour() { format!("\u{1b}[1m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// Maximum width of tables; unlimited in pipes and files, so that a search finds all text.
pub(crate) fn width() -> usize {
    known_width().unwrap_or(usize::MAX)
}

/// Columns of the terminal, or `COLUMNS`.
fn known_width() -> Option<usize> {
    let terminal = terminal_size::terminal_size_of(io::stdout());
    let terminal = terminal.map(|(width, _)| usize::from(width.0));
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|width| *width > 0);
    terminal.or_else(variable)
}

/// Wraps a sentence for the terminal; the first line starts with `first`, all further lines with `rest`.
pub(crate) fn wrapped(sentence: &str, first: &str, rest: &str) -> String {
    let width = known_width().unwrap_or(DEFAULT_WIDTH);
    let mut text = String::new();
    let mut line = first.to_owned();
    let mut has_word = false;
    for word in sentence.split(' ') {
        if has_word && line.chars().count() + 1 + word.chars().count() > width {
            text.push_str(&line);
            text.push('\n');
            rest.clone_into(&mut line);
            has_word = false;
        }
        if has_word {
            line.push(' ');
        }
        line.push_str(word);
        has_word = true;
    }
    text + &line + "\n"
}

/// CSV (RFC 4180) with a header row.
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

/// A CSV cell, quoted if necessary.
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
    fn a_redraw_shows_the_first_lines() {
        assert_eq!(first_rows("a\nb\n", 3), "a\nb\n");
        assert_eq!(first_rows("a\nb\nc\nd\n", 4), "a\nb\n… 2 more\n");
    }

    #[test]
    fn csv_quotes_special_characters() {
        let fields = [Field::<&str> { name: "value", value: |row| (*row).to_owned() }];
        assert_eq!(csv(&fields, &["a,\"b\""]), "value\n\"a,\"\"b\"\"\"\n");
    }
}
