//! Files of the guardian in a task folder, which survive the guardian.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use agentaflow_api::link::TaskKey;
use agentaflow_api::units::Stamp;

use super::procs;
use super::wire::ExitRecord;
use crate::clock::boot_ms;

const STARTED: &str = "start.json";
const EXITED: &str = "exit.json";

/// Identifies a started process across boots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StartRecord {
    pub(super) pid: u32,
    /// Clock ticks since boot.
    pub(super) started: u64,
    pub(super) boot: String,
    pub(super) started_at: Stamp,
    /// User of the task, if only tasks have this user.
    #[serde(default)]
    pub(super) uid: Option<u32>,
}

impl StartRecord {
    /// Pid, if the process still runs.
    pub(super) fn alive(&self) -> Option<u32> {
        let same = self.boot == procs::boot_id()
            && procs::stat(self.pid).is_some_and(|stat| stat.started == self.started);
        same.then_some(self.pid)
    }

    /// Time since the start in milliseconds; `None` after a reboot.
    pub(super) fn age_ms(&self) -> Option<u64> {
        let known = self.started > 0 && self.boot == procs::boot_id();
        known.then(|| boot_ms().saturating_sub(procs::ticks_to_ms(self.started)))
    }
}

pub(crate) fn folder(tasks: &Path, key: TaskKey) -> PathBuf {
    tasks.join(key.to_string())
}

/// Keys of all tasks with a folder.
pub(crate) fn folders(tasks: &Path) -> Vec<TaskKey> {
    let Ok(entries) = fs::read_dir(tasks) else { return Vec::new() };
    let mut keys: Vec<TaskKey> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    keys.sort_unstable();
    keys
}

pub(super) fn write_start(dir: &Path, record: &StartRecord) -> io::Result<()> {
    write(dir, STARTED, record)
}

/// A task that did not start leaves no record.
pub(super) fn remove_start(dir: &Path) {
    let _ = fs::remove_file(dir.join(STARTED));
}

pub(super) fn read_start(dir: &Path) -> Option<StartRecord> {
    read(&dir.join(STARTED))
}

pub(super) fn write_exit(dir: &Path, record: &ExitRecord) -> io::Result<()> {
    write(dir, EXITED, record)
}

pub(super) fn read_exit(dir: &Path) -> Option<ExitRecord> {
    read(&dir.join(EXITED))
}

/// Writes a temporary file and renames it, so that readers never see a partial file.
pub(crate) fn write(dir: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let beside = dir.join(format!(".{name}"));
    fs::write(&beside, serde_json::to_vec(value)?)?;
    fs::rename(&beside, dir.join(name))
}

pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_a_task_comes_from_the_boot_clock_and_ends_with_the_boot() {
        let pid = std::process::id();
        let started = procs::stat(pid).unwrap().started;
        // The wall clock was set forward since the start.
        let started_at = Stamp(Stamp::now().0 - 3_600_000);
        let start = StartRecord { pid, started, boot: procs::boot_id(), started_at, uid: None };
        assert!(start.age_ms().is_some_and(|age| age < 600_000), "{:?}", start.age_ms());
        assert_eq!(StartRecord { boot: "other".to_owned(), ..start }.age_ms(), None);
    }
}
