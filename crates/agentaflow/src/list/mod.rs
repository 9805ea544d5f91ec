//! List output of commands: selection, order, formats and `--watch`.

mod select;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

use crate::output::{self, Column};
use select::{Selector, column, sort};

const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// Fields that change constantly; `--watch` ignores them.
const VOLATILE_FIELDS: [&str; 8] = [
    "duration_seconds",
    "cost",
    "updated_at",
    "last_heartbeat",
    "last_seen",
    "gpu_instances",
    "memory_available",
    "storage_available",
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ListFormat {
    /// Table with the columns that fit the terminal
    #[default]
    Table,
    /// Table with all columns
    Wide,
    /// JSON array; with --watch one object per line
    Json,
    /// YAML list; with --watch one document per change
    Yaml,
    /// Names only, one per line
    Name,
    /// Comma-separated values with a header row
    Csv,
}

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ListArgs {
    /// Output format
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "table",
        help_heading = "List"
    )]
    pub(crate) output: ListFormat,
    /// Filter by labels, columns or fields: key=value, key!=value, key in (a,b) or key, separated by commas
    #[arg(short = 'l', long, value_name = "SELECTOR", help_heading = "List")]
    selector: Option<String>,
    /// Sort by a column or JSON field. Prefix with `-` for descending order
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true, help_heading = "List")]
    sort_by: Option<String>,
    /// Omit the header row
    #[arg(long, help_heading = "List")]
    no_headers: bool,
    /// Watch for changes
    #[arg(short, long, help_heading = "List")]
    watch: bool,
}

/// Presentation of a list of `T`.
pub(crate) struct Listing<T: 'static> {
    pub(crate) columns: &'static [Column<T>],
    /// Name of a row for `-o name` and for commands.
    pub(crate) name: fn(&T) -> String,
    /// Message for an empty list.
    pub(crate) empty: &'static str,
}

impl ListArgs {
    /// All rows in this format.
    pub(crate) fn with(output: ListFormat) -> Self {
        Self { output, ..Self::default() }
    }

    /// The output or selector uses a column that narrow tables hide.
    pub(crate) fn uses_column(&self, column: &str) -> bool {
        let selected = self.selector.as_ref().is_some_and(|text| text.contains(column));
        selected || matches!(self.output, ListFormat::Wide | ListFormat::Csv)
    }

    /// The result depends on all rows, not only on the first ones.
    pub(crate) fn needs_all_rows(&self) -> bool {
        self.selector.is_some() || self.sort_by.is_some()
    }

    /// Prints the rows of `fetch`; repeatedly with `--watch`.
    pub(crate) async fn show<T: Serialize>(
        &self,
        listing: &Listing<T>,
        fetch: impl AsyncFn() -> Result<Vec<T>>,
    ) -> Result<()> {
        self.show_limited(listing, usize::MAX, fetch).await
    }

    /// [`Self::show`] with at most `most` rows, and a note if there are more.
    pub(crate) async fn show_limited<T: Serialize>(
        &self,
        listing: &Listing<T>,
        most: usize,
        fetch: impl AsyncFn() -> Result<Vec<T>>,
    ) -> Result<()> {
        let selector = self.selector.as_deref().map(Selector::parse).transpose()?;
        let select = |rows| -> Result<_> {
            let mut rows = self.select(listing, rows, selector.as_ref())?;
            let more = rows.len() > most;
            rows.truncate(most);
            Ok((rows, more))
        };
        let all = fetch().await?;
        let count = all.len();
        let (rows, more) = select(all)?;
        if !self.watch {
            if let (Some(selector), true, 1..) = (&self.selector, rows.is_empty(), count) {
                let empty = match count {
                    1 => format!("The only item does not match `{selector}`."),
                    _ => format!("None of {count} items matches `{selector}`."),
                };
                return output::print(&self.text(listing, &rows, false, &empty)?);
            }
            self.print(listing, &rows)?;
            if more {
                eprintln!("Showing the first {most}; use `--limit` to show more.");
            }
            return Ok(());
        }
        let mut shown = WatchedRows::default();
        let mut rows = rows;
        loop {
            shown.print(self, listing, rows)?;
            tokio::time::sleep(WATCH_INTERVAL).await;
            (rows, _) = select(fetch().await?)?;
        }
    }

    pub(crate) fn print<T: Serialize>(&self, listing: &Listing<T>, rows: &[T]) -> Result<()> {
        output::print(&self.text(listing, rows, false, listing.empty)?)
    }

    /// Applies `--selector` and `--sort-by`.
    fn select<T: Serialize>(
        &self,
        listing: &Listing<T>,
        rows: Vec<T>,
        selector: Option<&Selector>,
    ) -> Result<Vec<T>> {
        let mut with_values = Vec::with_capacity(rows.len());
        for row in rows {
            let value = serde_json::to_value(&row).context("cannot write JSON")?;
            with_values.push((value, row));
        }
        if let Some(selector) = selector {
            selector.check_keys(listing, &with_values)?;
            with_values.retain(|(value, row)| selector.matches(listing, value, row));
        }
        if let Some(field) = &self.sort_by {
            sort(listing, &mut with_values, field)?;
        }
        Ok(with_values.into_iter().map(|(_, row)| row).collect())
    }

    /// Renders the rows. `piecemeal` rows follow rows printed before.
    fn text<T: Serialize>(
        &self,
        listing: &Listing<T>,
        rows: &[T],
        piecemeal: bool,
        empty: &str,
    ) -> Result<String> {
        let headers = !self.no_headers && !piecemeal;
        Ok(match self.output {
            ListFormat::Json if piecemeal => {
                let line = |row| Ok(serde_json::to_string(row)? + "\n");
                rows.iter().map(line).collect::<Result<Vec<_>>>()?.concat()
            }
            ListFormat::Json => json(&rows)?,
            ListFormat::Yaml if piecemeal => {
                let document = |row| Ok(format!("---\n{}", yaml(row)?));
                rows.iter().map(document).collect::<Result<Vec<_>>>()?.concat()
            }
            ListFormat::Yaml => yaml(&rows)?,
            ListFormat::Name => rows.iter().map(|row| (listing.name)(row) + "\n").collect(),
            ListFormat::Csv => csv(listing.columns, rows, headers),
            _ if rows.is_empty() && piecemeal => String::new(),
            _ if rows.is_empty() => {
                // A program that reads the table must not see the message as a row.
                if io::stdout().is_terminal() {
                    format!("{empty}\n")
                } else {
                    eprintln!("{empty}");
                    String::new()
                }
            }
            ListFormat::Table | ListFormat::Wide => {
                let room = (self.output == ListFormat::Table).then(output::width);
                let sorted = self.sort_by.as_deref().and_then(|field| column(listing, field));
                let sorted = sorted.map(|column| column.title);
                let table = output::table_with(listing.columns, rows, room, sorted);
                match table.split_once('\n') {
                    Some((_, rest)) if !headers => rest.to_owned(),
                    _ => table,
                }
            }
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OneFormat {
    /// Plain text
    #[default]
    Text,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

impl OneFormat {
    /// Prints the value; `text` renders the plain text.
    pub(crate) fn print<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce(&T) -> Result<String>,
    ) -> Result<()> {
        output::print(&match self {
            Self::Text => text(value)?,
            Self::Json => json(value)?,
            Self::Yaml => yaml(value)?,
        })
    }
}

pub(crate) fn json<T: Serialize>(value: &T) -> Result<String> {
    Ok(serde_json::to_string_pretty(value).context("cannot write JSON")? + "\n")
}

pub(crate) fn yaml<T: Serialize>(value: &T) -> Result<String> {
    let text = serde_saphyr::to_string(value).context("cannot write YAML")?;
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

/// Rows that `--watch` printed last.
#[derive(Default)]
struct WatchedRows {
    rows: BTreeMap<String, Value>,
    begun: bool,
}

impl WatchedRows {
    /// Redraws the table on a terminal; elsewhere prints only changed rows.
    fn print<T: Serialize>(
        &mut self,
        args: &ListArgs,
        listing: &Listing<T>,
        rows: Vec<T>,
    ) -> Result<()> {
        let tabular = matches!(args.output, ListFormat::Table | ListFormat::Wide);
        if tabular && io::stdout().is_terminal() {
            return output::redraw(&args.text(listing, &rows, false, listing.empty)?);
        }
        let mut now = BTreeMap::new();
        let mut changed = Vec::new();
        for row in rows {
            let (name, mut value) = ((listing.name)(&row), serde_json::to_value(&row)?);
            if let Some(fields) = value.as_object_mut() {
                fields.retain(|field, _| !VOLATILE_FIELDS.contains(&field.as_str()));
            }
            if self.rows.get(&name) != Some(&value) {
                changed.push(row);
            }
            now.insert(name, value);
        }
        self.rows = now;
        let json = matches!(args.output, ListFormat::Json | ListFormat::Yaml);
        let text = args.text(listing, &changed, self.begun || json, listing.empty)?;
        self.begun = true;
        output::print(&text)
    }
}

fn csv<T>(columns: &[Column<T>], rows: &[T], headers: bool) -> String {
    let line = |cells: Vec<String>| {
        let cells: Vec<_> = cells.iter().map(|cell| output::quoted(cell)).collect();
        cells.join(",") + "\n"
    };
    let title = |column: &Column<T>| column.title.to_lowercase().replace(' ', "_");
    let mut text = String::new();
    if headers {
        text.push_str(&line(columns.iter().map(title).collect()));
    }
    for row in rows {
        text.push_str(&line(columns.iter().map(|column| column.value(row)).collect()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::JOBS;
    use agentaflow_api::JobId;
    use agentaflow_api::job::{Job, JobStatus};

    fn jobs() -> Vec<Job> {
        let job = |id, status, name: &str| {
            let created_at = agentaflow_api::Stamp(4_102_444_800_000);
            let mut job = Job { id, status, created_at, ..Job::default() };
            job.spec.job_name = Some(name.to_owned());
            job
        };
        vec![
            job(JobId(10), JobStatus::Running, "gpu-10"),
            job(JobId(9), JobStatus::Pending, "gpu-2"),
            job(JobId(2), JobStatus::Running, "gpu-1"),
        ]
    }

    fn check(args: &ListArgs, expected: &str) {
        let selector = args.selector.as_deref().map(Selector::parse).transpose();
        let chosen = selector.and_then(|selector| args.select(&JOBS, jobs(), selector.as_ref()));
        let text = chosen.and_then(|rows| args.text(&JOBS, &rows, false, JOBS.empty));
        assert_eq!(text.unwrap_or_else(|error| error.to_string()), expected);
    }

    fn named(selector: Option<&str>, sort_by: Option<&str>) -> ListArgs {
        ListArgs {
            output: ListFormat::Name,
            selector: selector.map(str::to_owned),
            sort_by: sort_by.map(str::to_owned),
            ..ListArgs::default()
        }
    }

    #[test]
    fn rows_are_selected_and_sorted() {
        check(&named(None, None), "10\n9\n2\n");
        check(&named(Some("status=running"), None), "10\n2\n");
        check(&named(Some("status!=running, job_name"), None), "9\n");
        check(&named(Some("queue=root"), None), "10\n9\n2\n");
        check(&named(Some("exit_code"), None), "");
        check(&named(Some("status in (pending, failed)"), None), "9\n");
        check(&named(Some("status notin (pending),name"), None), "10\n2\n");
        check(&named(Some("name=gpu-2"), None), "9\n");
        check(&named(None, Some("id")), "2\n9\n10\n");
        check(&named(None, Some("-name")), "10\n9\n2\n");
        check(&named(None, Some("name")), "2\n9\n10\n");
    }

    #[test]
    fn an_unknown_key_lists_the_columns() {
        check(
            &named(None, Some("colour")),
            "no column or field `colour`; columns: job, name, status, node, gpus, time, cost, user, queue, priority, \
             age, reason; fields: see `-o json`",
        );
        check(
            &named(Some("stauts=running"), None),
            "no column, label or field `stauts` (did you mean `status`?); columns: job, name, status, node, gpus, time, \
             cost, user, queue, priority, age, reason; fields: see `-o json`",
        );
        check(
            &named(Some("=x"), None),
            "invalid selector `=x`: use key=value, key!=value, key in (a,b), key or !key, separated by commas",
        );
    }

    #[test]
    fn every_format_prints_the_same_rows() {
        let with =
            |output, no_headers| ListArgs { output, no_headers, ..named(Some("id=9"), None) };
        check(
            &with(ListFormat::Csv, false),
            "job,name,status,node,gpus,time,cost,user,queue,priority,age,reason\n9,gpu-2,pending,,0,,0,,root,5,0,\n",
        );
        check(&with(ListFormat::Csv, true), "9,gpu-2,pending,,0,,0,,root,5,0,\n");
        check(
            &with(ListFormat::Wide, true),
            "9    gpu-2  pending        -           $0.00        root          5   0s\n",
        );
        let yaml = with(ListFormat::Yaml, false).text(&JOBS, &jobs(), false, JOBS.empty).unwrap();
        assert!(yaml.starts_with("- id: 10\n"), "{yaml}");
    }
}
