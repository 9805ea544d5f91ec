//! Utilization of the GPUs of each pod, from the reports of the monitors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentaflow_kube_core::crd::{GpuNode, GpuNodeStatus};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::sync::Mutex;

/// Age at which the reports are read again; monitors report less often.
const FRESH: Duration = Duration::from_secs(5);
/// Condition of a `GPUNode` with a monitor that reports.
const READY: &str = "Ready";

/// Mean utilization of the GPUs of each pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Readings(BTreeMap<String, Reading>);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reading {
    sum: f64,
    gpus: u32,
    /// Time of the oldest report.
    pub(super) at: Timestamp,
}

impl Reading {
    /// Percent as a quantity: thousandths with the suffix `m`.
    pub(super) fn quantity(&self) -> String {
        let milli = (self.sum / f64::from(self.gpus) * 1000.0).round();
        format!("{}m", milli as u64)
    }
}

impl Readings {
    pub(super) fn of(&self, namespace: &str, pod: &str) -> Option<Reading> {
        self.0.get(&format!("{namespace}/{pod}")).copied()
    }

    fn add(&mut self, status: &GpuNodeStatus) {
        let Some(updated) = status.last_updated.as_ref() else { return };
        let lost = |condition: &&_| is_lost(condition);
        if status.conditions.iter().find(lost).is_some() {
            return;
        }
        for gpu in &status.gpu_status {
            let holders = gpu.current_workload.iter().flat_map(|holders| holders.split(','));
            for pod in holders {
                let reading = Reading { sum: 0.0, gpus: 0, at: updated.0 };
                let reading = self.0.entry(pod.to_owned()).or_insert(reading);
                reading.sum += gpu.utilization.clamp(0.0, 100.0);
                reading.gpus += 1;
                reading.at = reading.at.min(updated.0);
            }
        }
    }
}

/// The scheduler marks reports of a monitor that stopped.
fn is_lost(condition: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition) -> bool {
    condition.type_ == READY && condition.status == "Unknown"
}

impl<'a> FromIterator<&'a GpuNode> for Readings {
    fn from_iter<I: IntoIterator<Item = &'a GpuNode>>(nodes: I) -> Self {
        let mut readings = Self::default();
        for status in nodes.into_iter().filter_map(|node| node.status.as_ref()) {
            readings.add(status);
        }
        readings
    }
}

/// The readings of the cluster, read on demand.
pub(super) struct Source {
    nodes: Api<GpuNode>,
    last: Mutex<Option<(Instant, Arc<Readings>)>>,
}

impl Source {
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self { nodes: Api::namespaced(client.clone(), namespace), last: Mutex::default() }
    }

    /// Concurrent requests share one list.
    pub(super) async fn current(&self) -> Result<Arc<Readings>, kube::Error> {
        let mut last = self.last.lock().await;
        if let Some((_, readings)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(readings.clone());
        }
        // A cached list is sufficient and spares the API server's store.
        let nodes = self.nodes.list(&ListParams::default().match_any()).await?;
        let readings = Arc::new(nodes.items.iter().collect());
        *last = Some((Instant::now(), Arc::clone(&readings)));
        Ok(readings)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(ready: &str, updated: &str, gpus: &[(f64, Option<&str>)]) -> GpuNode {
        let gpu = |(index, (utilization, pods)): (usize, &(f64, Option<&str>))| json!({"id": index.to_string(), "available": true, "utilization": utilization, "currentWorkload": pods});
        let gpus: Vec<_> = gpus.iter().enumerate().map(gpu).collect();
        serde_json::from_value(json!({
            "apiVersion": "agentaflow.io/v1", "kind": "GPUNode", "metadata": {"name": "n"},
            "spec": {"nodeName": "n"},
            "status": {"gpuStatus": gpus, "lastUpdated": updated, "conditions": [{
                "type": "Ready", "status": ready, "reason": "R", "message": "", "lastTransitionTime": updated,
            }]},
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_has_the_mean_of_its_gpus_and_the_time_of_the_oldest_report() {
        let nodes = [
            node(
                "True",
                "2026-01-01T00:00:10Z",
                &[(90.0, Some("ml/a")), (20.0, Some("ml/a,ml/b"))],
            ),
            node("True", "2026-01-01T00:00:05Z", &[(10.0, Some("ml/a")), (99.0, None)]),
        ];
        let readings: Readings = nodes.iter().collect();
        let a = readings.of("ml", "a").unwrap();
        assert_eq!(
            (a.quantity().as_str(), a.at),
            ("40000m", "2026-01-01T00:00:05Z".parse().unwrap())
        );
        assert_eq!(readings.of("ml", "b").unwrap().quantity(), "20000m");
        assert_eq!(readings.of("other", "a"), None);
    }

    #[test]
    fn a_monitor_that_stopped_reporting_says_nothing_about_its_pods() {
        let nodes = [node("Unknown", "2026-01-01T00:00:10Z", &[(90.0, Some("ml/a"))])];
        assert_eq!(nodes.iter().collect::<Readings>(), Readings::default());
    }
}
