//! Kills the processes of containers without the Docker daemon, which may hang, or be down while its containers run on
//! (`live-restore`). The processes of a container are in cgroups that are named by its id.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use agentaflow_api::link::{StopCause, TaskKey};

use crate::clock::{boot_ms, sleep_until};
use crate::guardian::{procs, record};
use crate::runtime::stop_record::{self, StopRecord};

const FILE: &str = "container.json";

/// Shortest id of a container; a shorter string could match other cgroups.
const SHORTEST_ID: usize = 32;

/// Time that Docker gets for its own kill after the grace.
const DOCKER_LATENESS_MS: u64 = 2000;

const INTERVAL_MS: u64 = 1000;

/// Container of a task, written before its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContainerRecord {
    pub(super) id: String,
    pub(super) grace_ms: u64,
}

impl ContainerRecord {
    pub(super) fn save(&self, folder: &Path) {
        if let Err(error) = record::write(folder, FILE, self) {
            tracing::warn!("cannot save the id of container {}: {error}", self.id);
        }
    }

    fn load(folder: &Path) -> Option<Self> {
        let found: Self = record::read(&folder.join(FILE))?;
        let is_id = |id: &str| id.len() >= SHORTEST_ID && id.chars().all(|c| c.is_ascii_hexdigit());
        is_id(&found.id).then_some(found)
    }
}

/// Kills the processes of containers whose grace has passed, again and again: a daemon that answers late may still
/// start a container. `since_ms` is the expiry of the lease.
pub(super) async fn kill_overdue(tasks: &Path, keys: &BTreeSet<TaskKey>, since_ms: u64) {
    loop {
        for key in keys {
            let folder = record::folder(tasks, *key);
            let Some(container) = ContainerRecord::load(&folder) else { continue };
            let due =
                since_ms.saturating_add(container.grace_ms).saturating_add(DOCKER_LATENESS_MS);
            if boot_ms() >= due {
                kill(&folder, &container);
            }
        }
        sleep_until(boot_ms() + INTERVAL_MS).await;
    }
}

fn kill(folder: &Path, container: &ContainerRecord) {
    let pids = processes(&container.id);
    if pids.is_empty() {
        return;
    }
    tracing::warn!("Docker did not stop container {}; killing its processes", container.id);
    stop_record::save(folder, StopRecord::now(StopCause::LeaseLost, Duration::ZERO));
    for pid in pids {
        procs::signal(pid, Signal::KILL);
    }
}

/// Processes in the cgroups of a container.
fn processes(id: &str) -> Vec<u32> {
    let is_inside = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(id))
    };
    procs::all().into_iter().filter(is_inside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_without_a_whole_id_is_ignored() {
        let temp = tempfile::tempdir().unwrap();
        for (id, valid) in [("", false), ("docker", false), (&"ab".repeat(32), true)] {
            let record = ContainerRecord { id: id.to_owned(), grace_ms: 5 };
            record.save(temp.path());
            assert_eq!(ContainerRecord::load(temp.path()), valid.then_some(record));
        }
    }
}
