//! What commands print: tables that fit the terminal, JSON, CSV.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table, presets};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr};

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

/// On which side of a column its cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// A column of a table of `T`.
pub(crate) struct Column<T> {
    /// Its heading.
    pub(crate) title: &'static str,
    /// 0 is always shown; otherwise the highest rank goes first where space is short.
    pub(crate) rank: u8,
    /// Numbers stand to the right.
    pub(crate) side: Side,
    /// The text of a row.
    pub(crate) cell: fn(&T) -> String,
    /// The same as a program reads it, where that is something else: a number without its unit, a name that is not cut.
    pub(crate) plain: Option<fn(&T) -> String>,
}

/// The rank of a column that is shown only where every column is.
pub(crate) const WIDE: u8 = u8::MAX;

impl<T> Column<T> {
    /// The same column with what programs read.
    pub(crate) const fn plain(self, plain: fn(&T) -> String) -> Self {
        Self { plain: Some(plain), ..self }
    }

    /// What programs read of a row.
    pub(crate) fn value(&self, row: &T) -> String {
        self.plain.unwrap_or(self.cell)(row)
    }
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

/// The least that is shown of a text that closes a table before its column is left out.
const CUT_TO: usize = 20;

/// So much more of it must be left by every rank that matters less: what can be read is worth more than they are.
const CUT_LESS: usize = 10;

/// A reason that is longer than its room, without the count of nodes before what they lack.
pub(crate) fn shortened(said: &str, room: usize) -> Cow<'_, str> {
    let fits = said.chars().count() <= room;
    let Some(count) = said.find(" nodes fit").filter(|_| !fits) else { return said.into() };
    let start = said[..count].rfind(": ").map_or(0, |colon| colon + 2);
    let Some(colon) = said[count..].find(": ") else { return said.into() };
    format!("{}{}", &said[..start], &said[count + colon + 2..]).into()
}

/// The rows as a table with a bold heading. Columns are left out, highest rank first, until it is
/// at most `room` wide; without a limit all are shown. A text that would be left out is cut instead where some of
/// it fits.
pub(crate) fn table<T>(columns: &[Column<T>], rows: &[T], room: Option<usize>) -> String {
    table_with(columns, rows, room, None)
}

/// The same with a column that stays, whatever its rank: somebody asked for it.
pub(crate) fn table_with<T>(
    columns: &[Column<T>],
    rows: &[T],
    room: Option<usize>,
    asked: Option<&str>,
) -> String {
    let columns = telling(columns, rows);
    let stays = |column: &Column<T>| asked == Some(column.title);
    let fits = |column: &&Column<T>| room.is_none() || column.rank < WIDE;
    let ranks = columns.iter().copied().filter(fits).map(|column| column.rank);
    let closing = columns.last().filter(|last| may_be_cut(last)).map(|last| last.rank);
    let mut rank = ranks.max().unwrap_or(0);
    // The end of a long name goes before the end of the text that closes the table.
    let mut whole = true;
    loop {
        let shown: Vec<_> =
            columns.iter().copied().filter(|column| column.rank <= rank || stays(column)).collect();
        let mut lines = lines(&shown, rows, whole);
        if let (Some(room), true) = (room, rank > 0) {
            shorten(&mut lines, &shown, rows, room);
            if !whole || closing != Some(rank) {
                cut(&mut lines, &shown, rows, whole, rank, room);
            }
        }
        let widest = lines.iter().map(|line| width_of(line)).max().unwrap_or(0);
        if rank == 0 || room.is_none_or(|room| widest <= room) {
            let mut text = lines.join("\n");
            if let Some((heading, rest)) = text.split_once('\n') {
                text = format!("{}\n{rest}\n", bold(heading));
            }
            return text;
        }
        if whole && closing == Some(rank) {
            whole = false;
        } else {
            (rank, whole) = (rank - 1, true);
        }
    }
}

/// Without columns that only repeat the first: in a cluster a job is called by its name, and so is a node.
fn telling<'a, T>(columns: &'a [Column<T>], rows: &[T]) -> Vec<&'a Column<T>> {
    let Some((first, rest)) = columns.split_first() else { return Vec::new() };
    // A pod that belongs to no workload is called `pod/NAME`.
    let same = |cell: String, first: String| first.strip_prefix("pod/").unwrap_or(&first) == cell;
    let repeats = |column: &Column<T>| {
        !rows.is_empty() && rows.iter().all(|row| same((column.cell)(row), (first.cell)(row)))
    };
    std::iter::once(first).chain(rest.iter().filter(|column| !repeats(column))).collect()
}

/// Whether a column is a text that is rather cut than left out where it closes a table.
fn may_be_cut<T>(column: &Column<T>) -> bool {
    column.rank > 0 && matches!(column.side, Side::Left)
}

/// The columns of a terminal that a text takes: some letters take two.
fn width_of(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// A text that takes at most so many columns.
fn cut_to(text: &str, room: usize) -> String {
    if width_of(text) <= room {
        return text.to_owned();
    }
    let mut cut = String::new();
    for letter in text.chars() {
        if width_of(&cut) + letter.width().unwrap_or(0) >= room {
            break;
        }
        cut.push(letter);
    }
    cut + "…"
}

/// Says reasons that close a table in fewer words where they are longer than their room.
fn shorten<T>(lines: &mut [String], shown: &[&Column<T>], rows: &[T], room: usize) {
    let Some(last) = shown.last().filter(|last| may_be_cut(last)) else { return };
    for (line, row) in lines.iter_mut().skip(1).zip(rows) {
        let said = (last.cell)(row);
        let head = line.strip_suffix(said.as_str()).map(str::to_owned);
        if let Some(head) = head.filter(|_| width_of(line) > room) {
            let room = room.saturating_sub(width_of(&head));
            *line = head + &shortened(&said, room);
        }
    }
}

/// Cuts the closing column, if it is a text that may be left out, and the rest leaves it some room: enough to read it
/// while there are columns that matter less, a little when it is the next to be left out.
fn cut<T>(
    lines: &mut [String],
    shown: &[&Column<T>],
    rows: &[T],
    whole: bool,
    rank: u8,
    room: usize,
) {
    let Some((last, rest)) = shown.split_last().filter(|(last, _)| may_be_cut(last)) else {
        return;
    };
    let gap = 2;
    let before = self::lines(rest, rows, whole);
    let before = before.iter().map(|line| width_of(line)).max().unwrap_or(0);
    let left = room.saturating_sub(before + gap);
    if left + gap < CUT_TO + CUT_LESS * usize::from(rank.saturating_sub(last.rank)) {
        return;
    }
    for line in lines.iter_mut().filter(|line| width_of(line) > room) {
        *line = cut_to(line, room);
    }
}

/// The least that is shown of a name.
const NAME_CUT_TO: usize = 16;

fn lines<T>(columns: &[&Column<T>], rows: &[T], whole: bool) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|column| column.title));
    let cell = |column: &Column<T>, row: &T| match (column.cell)(row) {
        name if !whole && column.title == "NAME" => cut_to(&name, NAME_CUT_TO),
        text => text,
    };
    for row in rows {
        table.add_row(columns.iter().map(|column| cell(column, row)));
    }
    for (column, drawn) in columns.iter().zip(table.column_iter_mut()) {
        drawn.set_padding((0, 2));
        drawn.set_cell_alignment(match column.side {
            Side::Left => CellAlignment::Left,
            Side::Right => CellAlignment::Right,
        });
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
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

/// A length of time that takes at most six characters: `0.4s`, `45s`, `4m12s`, `2h05m`, `3d04h`.
pub(crate) fn short_time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0 if seconds >= 0.05 => format!("{seconds:.1}s"),
        0..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// A count with its thousands set apart: `12,345`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::{left, right};

    type Row = (&'static str, u32);

    const COLUMNS: [Column<Row>; 2] =
        [left("NAME", 0, |row| row.0.to_owned()), right("COUNT", 1, |row| row.1.to_string())];

    /// A count, what it costs, and a text that closes the table.
    const COUNT_COST_WHY: [Column<Row>; 3] = [
        right("COUNT", 0, |row| row.1.to_string()),
        right("COST", 2, |_| "$0.00".to_owned()),
        left("WHY", 1, |row| row.0.to_owned()),
    ];

    #[test]
    fn a_text_that_closes_a_table_is_cut_before_it_is_left_out() {
        let [count, _, why] = COUNT_COST_WHY;
        let columns = [count, why];
        let rows = [("there is no node with that many free GPUs", 7)];
        assert_eq!(
            table(&columns, &rows, Some(30)),
            "COUNT  WHY\n    7  there is no node with …\n"
        );
        assert_eq!(table(&columns, &rows, Some(20)), "COUNT\n    7\n");
    }

    #[test]
    fn what_nodes_lack_is_said_before_their_count_where_space_is_short() {
        let columns = COUNT_COST_WHY;
        let rows = [("0/1 nodes fit, even when empty: 1 lacks 9 GPUs (most 2)", 7)];
        assert_eq!(
            table(&columns, &rows, Some(40)),
            "COUNT   COST  WHY\n    7  $0.00  1 lacks 9 GPUs (most 2)\n"
        );
        assert_eq!(
            table(&columns, &rows, Some(30)),
            "COUNT  WHY\n    7  1 lacks 9 GPUs (most 2)\n"
        );
        assert_eq!(
            table_with(&columns, &rows, Some(30), Some("COST")),
            "COUNT   COST\n    7  $0.00\n"
        );
    }

    #[test]
    fn a_long_name_is_cut_before_the_text_that_closes_a_table_is_left_out() {
        let columns = [
            right("COUNT", 0, |row: &Row| row.1.to_string()),
            left("NAME", 0, |_: &Row| "python train.py --epochs 10".to_owned()),
            left("WHY", 1, |row: &Row| row.0.to_owned()),
        ];
        let rows = [("1 lacks 2 GPUs", 7)];
        assert_eq!(
            table(&columns, &rows, Some(50)),
            "COUNT  NAME                         WHY\n    7  python train.py --epochs 10  1 lacks 2 GPUs\n"
        );
        assert_eq!(
            table(&columns, &rows, Some(45)),
            "COUNT  NAME              WHY\n    7  python train.py…  1 lacks 2 GPUs\n"
        );
        assert_eq!(
            table(&columns, &rows, Some(36)),
            "COUNT  NAME\n    7  python train.py --epochs 10\n"
        );
    }

    #[test]
    fn what_is_watched_begins_at_the_top_of_the_screen() {
        assert_eq!(first_rows("a\nb\n", 3), "a\nb\n");
        assert_eq!(first_rows("a\nb\nc\nd\n", 4), "a\nb\n… 2 more\n");
    }

    #[test]
    fn letters_that_take_two_columns_are_counted_as_two() {
        assert_eq!(cut_to("训练模型", 8), "训练模型");
        assert_eq!(cut_to("训练模型", 7), "训练模…");
        assert_eq!(cut_to("训练模型", 6), "训练…");
    }

    #[test]
    fn a_column_that_repeats_the_first_is_left_out() {
        let name = |title, rank| left(title, rank, |row: &Row| row.0.to_owned());
        let count = left("COUNT", 0, |row: &Row| row.1.to_string());
        let columns = [name("JOB", 0), name("NAME", 1), count];
        assert_eq!(table(&columns, &[("a", 7)], None), "JOB  COUNT\na    7\n");
        assert_eq!(table(&columns, &[], None), "JOB  NAME  COUNT");
        let handle = left("JOB", 0, |row: &Row| format!("pod/{}", row.0));
        let columns = [handle, name("NAME", 1)];
        assert_eq!(table(&columns, &[("a", 7)], None), "JOB\npod/a\n");
    }

    #[test]
    fn a_narrow_table_leaves_out_what_matters_least() {
        let rows = [("alpha", 7)];
        assert_eq!(table(&COLUMNS, &rows, Some(80)), "NAME   COUNT\nalpha      7\n");
        assert_eq!(table(&COLUMNS, &rows, Some(8)), "NAME\nalpha\n");
    }

    #[test]
    fn csv_quotes_what_would_break_a_line() {
        let fields = [Field::<&str> { name: "value", value: |row| (*row).to_owned() }];
        assert_eq!(csv(&fields, &["a,\"b\""]), "value\n\"a,\"\"b\"\"\"\n");
    }

    #[test]
    fn times_and_counts_are_short() {
        let times = [0.04, 0.25, 59.0, 252.0, 7500.0, 273_600.0].map(short_time);
        assert_eq!(times, ["0s", "0.2s", "59s", "4m12s", "2h05m", "3d04h"]);
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(999), "999");
    }
}
