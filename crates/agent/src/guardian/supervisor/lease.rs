//! Lease of the guardian's tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use tracing::info;

use agentaflow_api::link::{StopCause, TaskKey};

use super::Supervisor;
use crate::clock::{boot_ms, millis, until};

const SHORTEST_CHECK: Duration = Duration::from_millis(10);
const LONGEST_CHECK: Duration = Duration::from_secs(1);

/// Containers whose lease expired.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OverdueContainers {
    pub(crate) docker_socket: PathBuf,
    pub(crate) keys: BTreeSet<TaskKey>,
    /// Expiry of the lease, from which the grace counts.
    pub(crate) since_ms: u64,
}

impl Supervisor {
    /// Extends the lease; never shortens it.
    pub(crate) fn renew(&mut self, until_ms: u64) {
        self.lease_until_ms = self.lease_until_ms.max(Some(until_ms));
    }

    /// Sets the heartbeat interval; 0 keeps the default.
    pub(crate) fn set_interval(&mut self, interval_ms: u64) {
        if interval_ms > 0 {
            self.interval_ms = interval_ms;
        }
    }

    /// Interval between checks of the lease.
    pub(crate) fn check_interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms / 4).clamp(SHORTEST_CHECK, LONGEST_CHECK)
    }

    /// End of the lease. A lease that was never renewed starts now.
    pub(super) fn lease(&mut self) -> u64 {
        let length = self.interval_ms.saturating_mul(2);
        *self.lease_until_ms.get_or_insert_with(|| boot_ms().saturating_add(length))
    }

    pub(crate) fn protect(&mut self, key: TaskKey, docker_socket: PathBuf) {
        self.leaving = false;
        self.lease();
        self.containers.insert(key, docker_socket);
    }

    /// Drops stopped containers.
    pub(crate) fn release(&mut self, keys: &BTreeSet<TaskKey>) {
        for key in keys.iter().filter(|key| self.stopping.remove(key)) {
            self.containers.remove(key);
        }
    }

    /// Stops leased processes after the lease expired. Returns the containers that the caller has to stop.
    pub(crate) fn check_lease(&mut self) -> Vec<OverdueContainers> {
        let Some(end) = self.lease_until_ms.filter(|end| boot_ms() >= *end) else {
            return Vec::new();
        };
        let lost: Vec<_> = self
            .running
            .values()
            .filter(|running| running.leased && running.stopped.is_none())
            .map(|running| (running.key, running.grace))
            .collect();
        for (key, grace) in lost {
            info!(%key, "the lease expired; stopping the task");
            // The grace counts from the expiry, as the server's does.
            self.stop(key, StopCause::LeaseLost, until(end.saturating_add(millis(grace))));
        }
        let mut overdue: BTreeMap<&PathBuf, BTreeSet<TaskKey>> = BTreeMap::new();
        for (key, docker_socket) in &self.containers {
            if self.stopping.insert(*key) {
                overdue.entry(docker_socket).or_default().insert(*key);
            }
        }
        let overdue = overdue.into_iter();
        overdue
            .map(|(docker_socket, keys)| OverdueContainers {
                docker_socket: docker_socket.clone(),
                keys,
                since_ms: end,
            })
            .collect()
    }
}
