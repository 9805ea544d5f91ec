//! Lease of the guardian's tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tracing::{info, warn};

use agentaflow_api::link::{StopCause, TaskKey};

use super::{LeaseFile, Supervisor};
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

impl OverdueContainers {
    /// Groups containers by the socket of their Docker daemon.
    pub(crate) fn by_socket<'a>(
        containers: impl Iterator<Item = (TaskKey, &'a PathBuf)>,
        since_ms: u64,
    ) -> Vec<Self> {
        let mut sockets: BTreeMap<&PathBuf, BTreeSet<TaskKey>> = BTreeMap::new();
        for (key, docker_socket) in containers {
            sockets.entry(docker_socket).or_default().insert(key);
        }
        let grouped = sockets.into_iter();
        grouped
            .map(|(socket, keys)| Self { docker_socket: socket.clone(), keys, since_ms })
            .collect()
    }
}

impl Supervisor {
    /// Takes over the containers of a killed guardian, with their lease.
    pub(crate) fn with_lease_file(self, file: LeaseFile) -> Self {
        let found = file.load();
        let lease_until_ms = found.as_ref().map(|leases| leases.until_ms);
        let containers = found.map(|leases| leases.containers).unwrap_or_default();
        let containers = containers.into_iter().collect();
        Self { lease_until_ms, containers, lease_file: Some(file), ..self }
    }

    /// Extends the lease; never shortens it.
    pub(crate) fn renew(&mut self, until_ms: u64) {
        self.lease_until_ms = self.lease_until_ms.max(Some(until_ms));
        if !self.containers.is_empty() {
            self.save_leases();
        }
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

    /// Registers a leased container. Fails if a sentinel could not stop the container after the death of this guardian.
    pub(crate) fn protect(&mut self, key: TaskKey, docker_socket: PathBuf) -> io::Result<()> {
        self.leaving = false;
        self.lease();
        self.containers.insert(key, docker_socket);
        self.write_leases()
    }

    /// On failure the file keeps more containers or an earlier end, which is safe.
    pub(super) fn save_leases(&mut self) {
        if let Err(error) = self.write_leases() {
            warn!(%error, "cannot save the leases of containers");
        }
    }

    fn write_leases(&mut self) -> io::Result<()> {
        let until_ms = self.lease();
        let file = self.lease_file.as_ref();
        file.map_or(Ok(()), |file| file.save(until_ms, &self.containers))
    }

    /// Drops stopped containers.
    pub(crate) fn release(&mut self, keys: &BTreeSet<TaskKey>) {
        for key in keys.iter().filter(|key| self.stopping.remove(key)) {
            self.containers.remove(key);
        }
        self.save_leases();
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
        let stopping = &mut self.stopping;
        let overdue = self.containers.iter().filter(|(key, _)| stopping.insert(**key));
        OverdueContainers::by_socket(overdue.map(|(key, socket)| (*key, socket)), end)
    }
}
