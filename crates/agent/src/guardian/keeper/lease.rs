//! The lease: how long it holds, and what ends with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use tracing::info;

use agentaflow_api::link::{StopCause, TaskKey};

use super::Keeper;
use crate::clock::{boot_ms, millis, until};

/// How often the lease is looked at, at most and at least.
const PACE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Containers that have outlived their lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overdue {
    /// The engine's socket.
    pub(crate) engine: PathBuf,
    pub(crate) keys: BTreeSet<TaskKey>,
    /// When the lease ran out; their grace counts from there.
    pub(crate) since_ms: u64,
}

impl Keeper {
    /// The lease holds until then; it never shrinks.
    pub(crate) fn renew(&mut self, until_ms: u64) {
        self.lease_until_ms = self.lease_until_ms.max(Some(until_ms));
    }

    /// The agent gives a sign of life so often; 0 if it does not say.
    pub(crate) fn set_interval(&mut self, interval_ms: u64) {
        if interval_ms > 0 {
            self.interval_ms = interval_ms;
        }
    }

    /// How often to look at the lease.
    pub(crate) fn pace(&self) -> Duration {
        Duration::from_millis(self.interval_ms / 4).clamp(PACE.0, PACE.1)
    }

    /// Until when the lease holds. One that nobody has set yet begins now.
    pub(super) fn lease(&mut self) -> u64 {
        let length = self.interval_ms.saturating_mul(2);
        *self.lease_until_ms.get_or_insert_with(|| boot_ms().saturating_add(length))
    }

    /// Takes a container into its care.
    pub(crate) fn protect(&mut self, key: TaskKey, engine: PathBuf) {
        self.leaving = false;
        self.lease();
        self.containers.insert(key, engine);
    }

    /// These containers do not run any more.
    pub(crate) fn release(&mut self, keys: &BTreeSet<TaskKey>) {
        for key in keys.iter().filter(|key| self.stopping.remove(key)) {
            self.containers.remove(key);
        }
    }

    /// Stops what has outlived the lease. Returns the containers that somebody has to stop.
    pub(crate) fn check_lease(&mut self) -> Vec<Overdue> {
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
            info!(%key, "the lease ran out: stopping");
            // From its end, however late that is seen: the server counts from there too.
            self.stop(key, StopCause::LeaseLost, until(end.saturating_add(millis(grace))));
        }
        let mut overdue: BTreeMap<&PathBuf, BTreeSet<TaskKey>> = BTreeMap::new();
        for (key, engine) in &self.containers {
            if self.stopping.insert(*key) {
                overdue.entry(engine).or_default().insert(*key);
            }
        }
        let overdue = overdue.into_iter();
        overdue
            .map(|(engine, keys)| Overdue { engine: engine.clone(), keys, since_ms: end })
            .collect()
    }
}
