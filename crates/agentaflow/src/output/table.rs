//! Tables that hide less important columns and cut the last one to fit the terminal.

use comfy_table::{CellAlignment, Table, presets};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr};

use super::{bold, cell};

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// A column of a table of `T`.
pub(crate) struct Column<T> {
    pub(crate) title: &'static str,
    /// Columns with the highest rank are hidden first; rank 0 is always shown.
    pub(crate) rank: u8,
    /// Numbers are right-aligned.
    pub(crate) side: Side,
    pub(crate) cell: fn(&T) -> String,
    /// Value for programs, if different: a number without unit, a name that is not cut.
    pub(crate) plain: Option<fn(&T) -> String>,
    /// A shorter text for a row whose text exceeds the width of the last column.
    pub(crate) short: Option<fn(&T) -> String>,
}

/// Rank of a column that only wide tables show.
pub(crate) const WIDE: u8 = u8::MAX;

impl<T> Column<T> {
    /// Sets the value for programs.
    pub(crate) const fn plain(self, plain: fn(&T) -> String) -> Self {
        Self { plain: Some(plain), ..self }
    }

    /// Adds a shorter text for narrow terminals.
    pub(crate) const fn short(self, short: fn(&T) -> String) -> Self {
        Self { short: Some(short), ..self }
    }

    /// Value of a row for programs.
    pub(crate) fn value(&self, row: &T) -> String {
        self.plain.unwrap_or(self.cell)(row)
    }
}

/// Minimum width of the cut last column.
const CUT_TO: usize = 20;

/// Additional minimum width per less important rank: readable text is worth more than these columns.
const CUT_LESS: usize = 10;

/// A table with a bold header. Columns are hidden, highest rank first, until the table is at most `room` wide; without
/// a limit all are shown. The last column is cut before it is hidden.
pub(crate) fn table<T>(columns: &[Column<T>], rows: &[T], room: Option<usize>) -> String {
    table_with(columns, rows, room, None)
}

/// [`table`] with one column that is never hidden.
pub(crate) fn table_with<T>(
    columns: &[Column<T>],
    rows: &[T],
    room: Option<usize>,
    asked: Option<&str>,
) -> String {
    let columns = distinct_columns(columns, rows);
    let stays = |column: &Column<T>| asked == Some(column.title);
    let fits = |column: &&Column<T>| room.is_none() || column.rank < WIDE;
    let ranks = columns.iter().copied().filter(fits).map(|column| column.rank);
    let closing = columns.last().filter(|last| may_be_cut(last)).map(|last| last.rank);
    let mut rank = ranks.max().unwrap_or(0);
    // Long names are cut before the last column is.
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
            rank -= 1;
            whole = true;
        }
    }
}

/// Columns that do not repeat the first one, as the name of a job in a cluster does.
fn distinct_columns<'a, T>(columns: &'a [Column<T>], rows: &[T]) -> Vec<&'a Column<T>> {
    let Some((first, rest)) = columns.split_first() else { return Vec::new() };
    // A pod without a workload has the handle `pod/NAME`.
    let same = |cell: String, first: String| first.strip_prefix("pod/").unwrap_or(&first) == cell;
    let repeats = |column: &Column<T>| {
        !rows.is_empty() && rows.iter().all(|row| same((column.cell)(row), (first.cell)(row)))
    };
    std::iter::once(first).chain(rest.iter().filter(|column| !repeats(column))).collect()
}

/// A text column that is cut rather than hidden in last position.
fn may_be_cut<T>(column: &Column<T>) -> bool {
    column.rank > 0 && matches!(column.side, Side::Left)
}

/// Width in terminal columns; some characters take two.
fn width_of(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

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

/// Replaces texts of the last column that exceed its width by their short form.
fn shorten<T>(lines: &mut [String], shown: &[&Column<T>], rows: &[T], room: usize) {
    let Some(last) = shown.last().filter(|last| may_be_cut(last)) else { return };
    let Some(short) = last.short else { return };
    for (line, row) in lines.iter_mut().skip(1).zip(rows) {
        let message = (last.cell)(row);
        let head = line.strip_suffix(message.as_str()).map(str::to_owned);
        if let Some(head) = head.filter(|_| width_of(line) > room) {
            *line = head + &short(row);
        }
    }
}

/// Cuts the last column if enough of it remains: more while less important columns are shown, less when the column is
/// the next to be hidden.
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

/// Width of a cut name.
const NAME_CUT_TO: usize = 16;

fn lines<T>(columns: &[&Column<T>], rows: &[T], whole: bool) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|column| column.title));
    let cell = |column: &Column<T>, row: &T| match cell(&(column.cell)(row)).into_owned() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::{left, right};

    type Row = (&'static str, u32);

    const COLUMNS: [Column<Row>; 2] =
        [left("NAME", 0, |row| row.0.to_owned()), right("COUNT", 1, |row| row.1.to_string())];

    const COUNT_COST_WHY: [Column<Row>; 3] = [
        right("COUNT", 0, |row| row.1.to_string()),
        right("COST", 2, |_| "$0.00".to_owned()),
        left("WHY", 1, |row: &Row| row.0.to_owned())
            .short(|row| row.0.rsplit_once('.').map_or(row.0, |(_, last)| last).to_owned()),
    ];

    #[test]
    fn the_last_column_is_cut_before_it_is_hidden() {
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
    fn the_last_column_uses_its_short_text_where_space_is_short() {
        let columns = COUNT_COST_WHY;
        let rows = [("A longer text about it.1 lacks 9 GPUs (most 2)", 7)];
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
    fn a_long_name_is_cut_before_the_last_column_is_hidden() {
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
    fn wide_characters_count_as_two_columns() {
        assert_eq!(cut_to("训练模型", 8), "训练模型");
        assert_eq!(cut_to("训练模型", 7), "训练模…");
        assert_eq!(cut_to("训练模型", 6), "训练…");
    }

    #[test]
    fn a_column_that_repeats_the_first_is_hidden() {
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
    fn a_narrow_table_hides_less_important_columns() {
        let rows = [("alpha", 7)];
        assert_eq!(table(&COLUMNS, &rows, Some(80)), "NAME   COUNT\nalpha      7\n");
        assert_eq!(table(&COLUMNS, &rows, Some(8)), "NAME\nalpha\n");
    }
}
