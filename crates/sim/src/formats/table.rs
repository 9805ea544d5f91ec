//! CSV tables with a header: columns by name, and errors with positions.

use std::path::{Path, PathBuf};

use csv::StringRecord;

use crate::SimError;

/// Expected layout of a table.
#[derive(Debug)]
pub(super) struct Layout {
    /// Name of the format in errors.
    pub(super) format: &'static str,
    pub(super) rows: &'static str,
    /// Example header for errors.
    pub(super) header: &'static str,
}

/// A table in memory; traces have a few megabytes at most.
#[derive(Debug)]
pub(super) struct Table {
    path: PathBuf,
    layout: &'static Layout,
    columns: Vec<String>,
    rows: Vec<StringRecord>,
}

impl Table {
    /// Ignores blank lines, CRLF and a byte order mark.
    pub(super) fn read(path: &Path, layout: &'static Layout) -> Result<Self, SimError> {
        let text = super::read_text(path)?;
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(true)
            .flexible(true)
            .trim(csv::Trim::All)
            .from_reader(text.trim_start_matches('\u{feff}').as_bytes());
        let broken = |error: csv::Error| SimError::read(path, error.into());
        let columns = reader.headers().map_err(broken)?.iter().map(str::to_lowercase).collect();
        let rows: Result<Vec<_>, _> = reader.records().collect();
        let mut rows = rows.map_err(broken)?;
        rows.retain(|row| row.iter().any(|cell| !cell.is_empty()));
        let table = Self { path: path.to_owned(), layout, columns, rows };
        if table.rows.is_empty() {
            return Err(SimError::Empty { path: table.path, what: layout.rows });
        }
        Ok(table)
    }

    /// Finds a column by any of its names; errors show the first.
    pub(super) fn column(&self, names: &[&'static str]) -> Result<Column, SimError> {
        self.optional(names).ok_or_else(|| SimError::MissingColumn {
            path: self.path.clone(),
            line: 1,
            column: names[0],
            format: self.layout.format,
            header: self.layout.header,
        })
    }

    pub(super) fn optional(&self, names: &[&'static str]) -> Option<Column> {
        let find = |name: &&'static str| {
            let index = self.columns.iter().position(|column| column == name)?;
            Some(Column { index, name })
        };
        names.iter().find_map(find)
    }

    /// In file order.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|record| Row { table: self, record })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    index: usize,
    name: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    table: &'a Table,
    record: &'a StringRecord,
}

impl<'a> Row<'a> {
    /// Line number in the file.
    pub(super) fn line(&self) -> u64 {
        self.record.position().map_or(0, csv::Position::line)
    }

    /// Text of a column; empty when the row is too short.
    pub(super) fn text(&self, column: Column) -> &'a str {
        self.record.get(column.index).unwrap_or("")
    }

    /// Text of a column that must not be empty.
    pub(super) fn name(&self, column: Column) -> Result<String, SimError> {
        let text = self.text(column);
        if text.is_empty() {
            Err(self.wrong(column, "is empty; a name "))
        } else {
            Ok(text.to_owned())
        }
    }

    /// A whole number from 0 to `most`.
    pub(super) fn whole(&self, column: Column, most: u64) -> Result<u64, SimError> {
        let value = self.decimal(column, most as f64)?;
        if value.fract() == 0.0 {
            Ok(value as u64)
        } else {
            Err(self.wrong(column, "is not a whole number"))
        }
    }

    /// A number from 0 to `most`.
    pub(super) fn decimal(&self, column: Column, most: f64) -> Result<f64, SimError> {
        let text = self.text(column);
        if text.is_empty() {
            return Err(self.wrong(column, format!("is empty; use 0 to {most}")));
        }
        match text.parse::<f64>() {
            Ok(value) if value < 0.0 => Err(self.wrong(column, "must not be negative")),
            Ok(value) if value > most => {
                Err(self.wrong(column, format!("exceeds the limit of {most}")))
            }
            Ok(value) if value.is_finite() => Ok(value),
            _ => Err(self.wrong(column, format!("is not a number; use 0 to {most}"))),
        }
    }

    /// An error about the value of a column.
    pub(super) fn wrong(&self, column: Column, help: impl Into<String>) -> SimError {
        SimError::Value {
            path: self.table.path.clone(),
            line: self.line(),
            column: column.name,
            value: self.text(column).chars().take(64).collect(),
            help: help.into(),
        }
    }
}
