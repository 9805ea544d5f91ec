//! Signs of life: who is silent for too long, and what is written down of it.

use std::time::Duration;

use super::queues::INTERVAL;
use super::state::{DEFAULT_GRACE, DEFAULT_INTERVAL, LiveNode, MISSED_INTERVALS, State};
use crate::store::Change;

/// How late a guardian may notice that a lease ran out.
const GUARDIAN_SLACK: Duration = Duration::from_secs(1);

impl State {
    /// Looks for nodes that were not heard of for too long.
    pub(crate) fn find_lost_nodes(&mut self) {
        let silent = |node: &&LiveNode| {
            let known = node.told.is_some() || !node.jobs.is_empty();
            known && !node.lost && node.beat.elapsed() > self.patience(node)
        };
        let lost: Vec<i64> = self.nodes.values().filter(silent).map(|node| node.row.id).collect();
        for id in lost {
            self.lose_node(id);
        }
        let asleep: Vec<i64> = self
            .nodes
            .values()
            .filter(|node| node.told.as_ref().is_some_and(|told| !told.cordoned) && !node.alive())
            .map(|node| node.row.id)
            .collect();
        for id in asleep {
            self.refresh_node(id);
        }
    }

    /// How long a node may be silent before its jobs are given to others: three intervals, and the longest
    /// time that its own guardian may take to stop them.
    pub(crate) fn patience(&self, node: &LiveNode) -> Duration {
        let jobs = node.jobs.iter().filter_map(|job| self.jobs.get(job));
        let grace =
            jobs.map(|job| job.spec.stop_grace_seconds.unwrap_or(DEFAULT_GRACE)).max().unwrap_or(0);
        node.interval * MISSED_INTERVALS + Duration::from_secs(grace.into()) + GUARDIAN_SLACK
    }

    /// Everything since the heartbeats were written down last.
    pub(crate) fn flush_heartbeats(&mut self) {
        let mut beats = Vec::new();
        for node in self.nodes.values_mut().filter(|node| !node.beat_flushed) {
            node.beat_flushed = true;
            node.row.last_heartbeat = node.beat_at;
            beats.extend(node.beat_at.map(|at| (node.row.id, at)));
        }
        if !beats.is_empty() {
            self.batch.changes.push(Change::Heartbeats(beats));
        }
    }

    /// The interval that a node's agent keeps.
    pub(crate) fn set_interval(&mut self, node: i64) {
        let ms = self
            .agents
            .values()
            .filter(|agent| agent.node_id == node)
            .filter_map(|agent| agent.config.get(INTERVAL).and_then(serde_json::Value::as_u64));
        let interval =
            ms.max().map_or(DEFAULT_INTERVAL, |ms| Duration::from_millis(ms.clamp(50, 600_000)));
        if let Some(node) = self.nodes.get_mut(&node) {
            // A shorter one counts when nothing runs that was started under the longer one.
            let floor = if node.jobs.is_empty() { Duration::ZERO } else { node.interval };
            node.interval = interval.max(floor);
        }
    }
}
