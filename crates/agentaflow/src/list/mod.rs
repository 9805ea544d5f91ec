//! Lists that people look at and programs read: chosen, sorted, printed, and printed again as they change.

mod select;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

use crate::output::{self, Column};
use select::{Selector, sort, sorted};

/// Between two looks at a list that is watched.
const PAUSE: Duration = Duration::from_secs(2);

/// Fields that are never the same twice: they are no news.
const ALWAYS_MOVES: [&str; 8] = [
    "duration_seconds",
    "cost",
    "updated_at",
    "last_heartbeat",
    "last_seen",
    "gpu_instances",
    "memory_available",
    "storage_available",
];

/// How a list is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ListFormat {
    /// As many columns as fit the terminal
    #[default]
    Table,
    /// Every column
    Wide,
    /// One JSON array; with --watch one object a line
    Json,
    /// One YAML list; with --watch a document for each change
    Yaml,
    /// Names only, one a line
    Name,
    /// Comma-separated values with a header line
    Csv,
}

/// What to show of a list, and how.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ListArgs {
    /// How to print the list
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "table",
        help_heading = "List"
    )]
    pub(crate) output: ListFormat,
    /// Only what has these labels, columns or fields: key=value, key!=value, key in (a,b) or key, with commas between them
    #[arg(short = 'l', long, value_name = "SELECTOR", help_heading = "List")]
    selector: Option<String>,
    /// Sort by a column or by a field of the JSON; a minus in front turns it round
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true, help_heading = "List")]
    sort_by: Option<String>,
    /// Leave out the line with the titles
    #[arg(long, help_heading = "List")]
    no_headers: bool,
    /// Go on and show what changes
    #[arg(short, long, help_heading = "List")]
    watch: bool,
}

/// What is listed.
pub(crate) struct Kind<T: 'static> {
    /// Its columns.
    pub(crate) columns: &'static [Column<T>],
    /// What people type to mean one of it.
    pub(crate) name: fn(&T) -> String,
    /// What is said when there is none.
    pub(crate) none: &'static str,
}

impl ListArgs {
    /// Everything, in this format.
    pub(crate) fn with(output: ListFormat) -> Self {
        Self { output, ..Self::default() }
    }

    /// Whether a column is printed or selected by that most lists do not show.
    pub(crate) fn speaks_of(&self, column: &str) -> bool {
        let selected = self.selector.as_ref().is_some_and(|text| text.contains(column));
        selected || matches!(self.output, ListFormat::Wide | ListFormat::Csv)
    }

    /// Whether what is shown depends on more than what comes first.
    pub(crate) fn chooses(&self) -> bool {
        self.selector.is_some() || self.sort_by.is_some()
    }

    /// Prints what `fetch` finds; again and again if it is to be watched.
    pub(crate) async fn show<T: Serialize>(
        &self,
        kind: &Kind<T>,
        fetch: impl AsyncFn() -> Result<Vec<T>>,
    ) -> Result<()> {
        self.show_most(kind, usize::MAX, fetch).await
    }

    /// The same, but not more than so many of them; says when there are more.
    pub(crate) async fn show_most<T: Serialize>(
        &self,
        kind: &Kind<T>,
        most: usize,
        fetch: impl AsyncFn() -> Result<Vec<T>>,
    ) -> Result<()> {
        let selector = self.selector.as_deref().map(Selector::parse).transpose()?;
        let chosen = |rows| -> Result<_> {
            let mut rows = self.choose(kind, rows, selector.as_ref())?;
            let more = rows.len() > most;
            rows.truncate(most);
            Ok((rows, more))
        };
        let all = fetch().await?;
        let count = all.len();
        let (rows, more) = chosen(all)?;
        if !self.watch {
            if let (Some(selector), true, 1..) = (&self.selector, rows.is_empty(), count) {
                let none = match count {
                    1 => format!("The only one does not match `{selector}`."),
                    _ => format!("None of {count} matches `{selector}`."),
                };
                return output::print(&self.text(kind, &rows, false, &none)?);
            }
            self.print(kind, &rows)?;
            if more {
                eprintln!("There are more than {most}; `--limit` shows more.");
            }
            return Ok(());
        }
        let mut shown = Shown::default();
        let mut rows = rows;
        loop {
            shown.print(self, kind, rows)?;
            tokio::time::sleep(PAUSE).await;
            (rows, _) = chosen(fetch().await?)?;
        }
    }

    /// Prints what was found already.
    pub(crate) fn print<T: Serialize>(&self, kind: &Kind<T>, rows: &[T]) -> Result<()> {
        output::print(&self.text(kind, rows, false, kind.none)?)
    }

    /// What was asked for, in the order that was asked for.
    fn choose<T: Serialize>(
        &self,
        kind: &Kind<T>,
        rows: Vec<T>,
        selector: Option<&Selector>,
    ) -> Result<Vec<T>> {
        let mut with_values = Vec::with_capacity(rows.len());
        for row in rows {
            let value = serde_json::to_value(&row).context("cannot write JSON")?;
            with_values.push((value, row));
        }
        if let Some(selector) = selector {
            selector.must_be_known(kind, &with_values)?;
            with_values.retain(|(value, row)| selector.matches(kind, value, row));
        }
        if let Some(field) = &self.sort_by {
            sort(kind, &mut with_values, field)?;
        }
        Ok(with_values.into_iter().map(|(_, row)| row).collect())
    }

    /// The rows as text; piecemeal are those that changed since others were printed.
    fn text<T: Serialize>(
        &self,
        kind: &Kind<T>,
        rows: &[T],
        piecemeal: bool,
        none: &str,
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
            ListFormat::Name => rows.iter().map(|row| (kind.name)(row) + "\n").collect(),
            ListFormat::Csv => csv(kind.columns, rows, headers),
            _ if rows.is_empty() && piecemeal => String::new(),
            _ if rows.is_empty() => {
                // Programs that read tables must not take a sentence for a row.
                if io::stdout().is_terminal() {
                    format!("{none}\n")
                } else {
                    eprintln!("{none}");
                    String::new()
                }
            }
            ListFormat::Table | ListFormat::Wide => {
                let room = (self.output == ListFormat::Table).then(output::width);
                let asked = self.sort_by.as_deref().and_then(|field| sorted(kind, field));
                let asked = asked.map(|column| column.title);
                let table = output::table_with(kind.columns, rows, room, asked);
                match table.split_once('\n') {
                    Some((_, rest)) if !headers => rest.to_owned(),
                    _ => table,
                }
            }
        })
    }
}

/// How one thing is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OneFormat {
    /// For people
    #[default]
    Text,
    /// Everything, as JSON
    Json,
    /// Everything, as YAML
    Yaml,
}

impl OneFormat {
    /// The thing in this format; `text` is asked for what people read.
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

/// Anything as JSON for people and programs.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<String> {
    Ok(serde_json::to_string_pretty(value).context("cannot write JSON")? + "\n")
}

/// Anything as YAML.
pub(crate) fn yaml<T: Serialize>(value: &T) -> Result<String> {
    let text = serde_saphyr::to_string(value).context("cannot write YAML")?;
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

/// What was shown last of a list that is watched.
#[derive(Default)]
struct Shown {
    rows: BTreeMap<String, Value>,
    begun: bool,
}

impl Shown {
    /// On a terminal the table is drawn anew; elsewhere only what changed is printed.
    fn print<T: Serialize>(&mut self, args: &ListArgs, kind: &Kind<T>, rows: Vec<T>) -> Result<()> {
        let tabular = matches!(args.output, ListFormat::Table | ListFormat::Wide);
        if tabular && io::stdout().is_terminal() {
            return output::print_anew(&args.text(kind, &rows, false, kind.none)?);
        }
        let mut now = BTreeMap::new();
        let mut changed = Vec::new();
        for row in rows {
            let (name, mut value) = ((kind.name)(&row), serde_json::to_value(&row)?);
            if let Some(fields) = value.as_object_mut() {
                fields.retain(|field, _| !ALWAYS_MOVES.contains(&field.as_str()));
            }
            if self.rows.get(&name) != Some(&value) {
                changed.push(row);
            }
            now.insert(name, value);
        }
        self.rows = now;
        let json = matches!(args.output, ListFormat::Json | ListFormat::Yaml);
        let text = args.text(kind, &changed, self.begun || json, kind.none)?;
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
    use agentaflow_api::job::{Job, JobStatus};

    fn jobs() -> Vec<Job> {
        let job = |id, status, name: &str| {
            let created_at = agentaflow_api::Stamp(4_102_444_800_000);
            let mut job = Job { id, status, created_at, ..Job::default() };
            job.spec.job_name = Some(name.to_owned());
            job
        };
        vec![
            job(10, JobStatus::Running, "gpu-10"),
            job(9, JobStatus::Pending, "gpu-2"),
            job(2, JobStatus::Running, "gpu-1"),
        ]
    }

    fn check(args: &ListArgs, expected: &str) {
        let selector = args.selector.as_deref().map(Selector::parse).transpose();
        let chosen = selector.and_then(|selector| args.choose(&JOBS, jobs(), selector.as_ref()));
        let text = chosen.and_then(|rows| args.text(&JOBS, &rows, false, JOBS.none));
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
    fn what_is_selected_and_sorted_is_shown() {
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
    fn what_cannot_be_meant_says_what_can() {
        check(
            &named(None, Some("colour")),
            "there is nothing called `colour` to sort by; there is job, name, status, node, gpus, time, \
             cost, user, queue, priority, age, why, and every field of `-o json`",
        );
        check(
            &named(Some("stauts=running"), None),
            "nothing here has `stauts` to select by; did you mean `status`? there is job, name, status, node, gpus, \
             time, cost, user, queue, priority, age, why, every label, and every field of `-o json`",
        );
        check(
            &named(Some("=x"), None),
            "`=x` is no selector: write key=value, key!=value, key in (a,b), key or !key, with commas between them",
        );
    }

    #[test]
    fn every_format_prints_the_same_rows() {
        let with =
            |output, no_headers| ListArgs { output, no_headers, ..named(Some("id=9"), None) };
        check(
            &with(ListFormat::Csv, false),
            "job,name,status,node,gpus,time,cost,user,queue,priority,age,why\n9,gpu-2,pending,,0,,0,,root,5,0,\n",
        );
        check(&with(ListFormat::Csv, true), "9,gpu-2,pending,,0,,0,,root,5,0,\n");
        check(
            &with(ListFormat::Wide, true),
            "9    gpu-2  pending        -           $0.00        root          5   0s\n",
        );
        let yaml = with(ListFormat::Yaml, false).text(&JOBS, &jobs(), false, JOBS.none).unwrap();
        assert!(yaml.starts_with("- id: 10\n"), "{yaml}");
    }
}
