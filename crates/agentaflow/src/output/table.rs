//! Tables: as many columns as fit the terminal, and of what does not fit the part that matters.

use agentaflow_console::format::shortened;
use comfy_table::{CellAlignment, Table, presets};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr};

use super::bold;

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

/// The least that is shown of a text that closes a table before its column is left out.
const CUT_TO: usize = 20;

/// So much more of it must be left by every rank that matters less: what can be read is worth more than they are.
const CUT_LESS: usize = 10;

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
}
