//! HTML report.

use std::path::Path;

use agentaflow_sim::Outcome;
use agentaflow_sim::html::{self, Axis, Report};
use anyhow::{Context as _, Result, bail};

use super::subject::{Prepared, Subject};

pub(super) fn write(path: &Path, subject: &Subject, outcomes: &[Outcome]) -> Result<()> {
    let page = html::page(&Report {
        title: &subject.title,
        about: &subject.about,
        axis: match subject.prepared {
            Prepared::Replay(_) => Axis::Time,
            Prepared::Experiment(_) => Axis::Arrived,
        },
        outcomes,
    });
    std::fs::write(path, page).with_context(|| format!("cannot write `{}`", path.display()))
}

/// Rejects an unwritable path before a long simulation.
pub(super) fn check(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => {
            bail!(
                "cannot write `{}`: directory `{}` does not exist",
                path.display(),
                folder.display()
            )
        }
        _ if path.is_dir() => {
            bail!("cannot write `{}`: is a directory", path.display())
        }
        _ => Ok(()),
    }
}
