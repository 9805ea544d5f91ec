//! Times of the monitors' reports. A monitor that does not report for a while is lost: its last report does not describe its
//! GPUs any more.
//!
//! A report is a change of `lastUpdated`; this scheduler writes conditions to the same object. Its age counts from the
//! watch event, because clocks of nodes differ.

use agentaflow_engine::Time;
use agentaflow_kube_core::crd::GpuNode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::pod_entry::engine_time;

#[derive(Debug, Default)]
pub(super) struct MonitorWatch {
    monitors: BTreeMap<Arc<str>, Monitor>,
    /// Monitors by the time at which they are lost without another report.
    due: BTreeSet<(Time, Arc<str>)>,
}

#[derive(Debug)]
struct Monitor {
    /// Timestamp of the last report, by the clock of the node.
    reported: Option<Time>,
    /// Time at which the monitor is lost; none once it is.
    due: Option<Time>,
}

impl MonitorWatch {
    /// Records an observed `GPUNode`; returns true if the monitor was lost and reports again.
    pub(super) fn observe(
        &mut self,
        name: &Arc<str>,
        devices: &GpuNode,
        now: Time,
        timeout: u64,
    ) -> bool {
        let stamp = devices.status.as_ref().and_then(|status| status.last_updated.as_ref());
        let reported = stamp.map(|time| engine_time(time.0));
        let old = self.monitors.remove(name);
        if old.as_ref().is_some_and(|old| old.reported == reported) {
            self.monitors.extend(old.map(|old| (name.clone(), old)));
            return false;
        }
        // The age of the first observed report is known only by its timestamp.
        let from = reported.filter(|_| old.is_none()).unwrap_or(now).min(now);
        let due = Time(from.0.saturating_add(timeout));
        let was_lost = old.as_ref().is_some_and(|old| old.due.is_none());
        self.forget_due(name, old.and_then(|old| old.due));
        self.due.insert((due, name.clone()));
        self.monitors.insert(name.clone(), Monitor { reported, due: Some(due) });
        was_lost
    }

    pub(super) fn remove(&mut self, name: &Arc<str>) {
        let due = self.monitors.remove(name).and_then(|monitor| monitor.due);
        self.forget_due(name, due);
    }

    /// Marks and returns the monitors that are lost now.
    pub(super) fn take_lost(&mut self, now: Time) -> Vec<Arc<str>> {
        let mut lost = Vec::new();
        while self.due.first().is_some_and(|(due, _)| *due <= now) {
            let Some((_, name)) = self.due.pop_first() else { break };
            if let Some(monitor) = self.monitors.get_mut(&name) {
                monitor.due = None;
            }
            lost.push(name);
        }
        lost
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Number of lost monitors.
    pub(super) fn lost(&self) -> usize {
        self.monitors.values().filter(|monitor| monitor.due.is_none()).count()
    }

    fn forget_due(&mut self, name: &Arc<str>, due: Option<Time>) {
        if let Some(due) = due {
            self.due.remove(&(due, name.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_new_timestamp_is_a_report() {
        let name: Arc<str> = "n".into();
        let report = |second: i64| -> GpuNode {
            let time = jiff::Timestamp::from_second(second).expect("a time").to_string();
            let status = json!({"gpuStatus": [], "conditions": [], "lastUpdated": time});
            serde_json::from_value(json!({
                "apiVersion": "agentaflow.io/v1", "kind": "GPUNode", "metadata": {"name": "n"},
                "spec": {"nodeName": "n"}, "status": status,
            }))
            .expect("a GPUNode")
        };
        let mut watch = MonitorWatch::default();
        // Old already when first observed.
        assert!(!watch.observe(&name, &report(100), Time(200_000), 180_000));
        assert_eq!(watch.next(), Some(Time(280_000)));
        assert_eq!(watch.take_lost(Time(279_999)), [""; 0].map(Arc::from));
        // The node's clock is behind: the arrival counts.
        assert!(!watch.observe(&name, &report(101), Time(210_000), 180_000));
        assert!(!watch.observe(&name, &report(101), Time(300_000), 180_000), "our own write");
        assert_eq!(watch.take_lost(Time(390_000)), std::slice::from_ref(&name));
        assert_eq!((watch.lost(), watch.next()), (1, None));
        assert!(watch.observe(&name, &report(400), Time(400_000), 180_000), "it is back");
        assert_eq!(watch.lost(), 0);
        watch.remove(&name);
        assert_eq!((watch.next(), watch.lost()), (None, 0));
    }
}
