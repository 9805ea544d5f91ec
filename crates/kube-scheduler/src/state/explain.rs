//! Looking in from outside: why something waits, and how much there is of everything.

use agentaflow_api::explain::Explanation;
use agentaflow_engine::{GpuHealth, WorkloadId, WorkloadState};
use agentaflow_explain as words;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::gangs::Gang;
use super::pod_entry::{Parked, PodState};
use super::{ClusterState, Key};

/// PendingCondition a workload waits, as it was last said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingReason {
    /// One word.
    pub(super) word: &'static str,
    /// One sentence.
    pub(super) message: Arc<str>,
    /// More nodes would help.
    pub(super) resolved_by_nodes: bool,
}

impl PendingReason {
    /// The reason of the pod's condition. Autoscalers buy nodes for `Unschedulable` pods, so that only waits that
    /// nodes cure are called so.
    pub(super) fn condition(&self) -> &'static str {
        if self.resolved_by_nodes { "Unschedulable" } else { self.word }
    }
}

/// What is said about a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadExplanation {
    /// The workload, as the engine calls it.
    pub workload: String,
    /// `Waiting`, `Placed`, `Running`, `Stopping`, or `Parked` when it cannot be placed as it is.
    pub state: String,
    /// PendingCondition it waits, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same in sentences: reason, place and expected start, what would start now.
    pub lines: Vec<String>,
    /// Nodes that came closest and what each lacks.
    pub closest: Vec<(String, String)>,
    /// Where its tasks are.
    pub nodes: Vec<String>,
    /// The same in the words of the REST API.
    pub explanation: Explanation,
}

/// How much there is of everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterSummary {
    /// GPUs that we look after: devices, of which a node that shares them by time offers several units each.
    pub gpus: f64,
    /// GPUs that could be given out now.
    pub free: f64,
    /// GPUs that are kept free for work that waits.
    pub kept: f64,
    /// Mean of the readings that there are, 0 to 100.
    pub utilization: f64,
    /// Nodes that we look after.
    pub nodes: u64,
    /// Workloads that wait, by reason.
    pub pending: BTreeMap<&'static str, u64>,
    /// Workloads that are placed, and of which not every pod runs yet.
    pub scheduled: u64,
    /// Workloads of which every pod runs.
    pub running: u64,
    /// Thousandths of a GPU in use, by queue.
    pub queues: BTreeMap<String, i64>,
}

impl ClusterState {
    /// Everything known about a workload or pod: `namespace/name`, of either kind.
    pub fn explain(&mut self, key: &Key) -> Option<WorkloadExplanation> {
        let ids = [
            format!("{}/{}", key.namespace, key.name),
            format!("{}/pod/{}", key.namespace, key.name),
            format!("{}/group/{}", key.namespace, key.name),
        ];
        let found = ids.iter().map(|id| WorkloadId::from(id.as_str()));
        let found = found.into_iter().find(|id| self.groups.contains_key(id));
        let found = found.or_else(|| match &self.pods.get(key)?.place {
            PodState::Member { workload, .. } => Some(workload.clone()),
            _ => None,
        });
        match found {
            Some(id) => self.explain_workload(&id),
            None => self.explain_aside(key),
        }
    }

    fn explain_workload(&mut self, id: &WorkloadId) -> Option<WorkloadExplanation> {
        let view = self.engine.workload(id)?;
        let explanation = self.engine.explain(self.now, id);
        let waits = view.state == WorkloadState::Pending;
        let reason = explanation.as_ref().and_then(|explanation| explanation.reason.as_ref());
        let lines = explanation.as_ref().filter(|_| waits);
        let closest = explanation.iter().flat_map(|explanation| &explanation.closest);
        let told = explanation.as_ref().map(|said| self.told(&view, said)).unwrap_or_default();
        Some(WorkloadExplanation {
            workload: id.to_string(),
            state: format!("{:?}", view.state),
            reason: reason.filter(|_| waits).map(|reason| reason.kind().to_owned()),
            lines: lines
                .map(|explanation| words::explanation(explanation, self.now))
                .unwrap_or_default(),
            closest: closest.map(|(node, lack)| (node.to_string(), words::lack(lack, 1))).collect(),
            nodes: view.tasks.iter().map(|task| task.node.to_string()).collect(),
            explanation: told,
        })
    }

    /// A pod, or a workload by one of its pods, that cannot be handed to the engine.
    fn explain_aside(&self, key: &Key) -> Option<WorkloadExplanation> {
        let own = |entry: &super::PodEntry| match &entry.place {
            PodState::Parked(Parked::Because(word, message)) => Some((*word, message.clone())),
            PodState::Parked(Parked::LookingUp) => {
                Some(("LookingUp", Arc::from("its owner's annotations are being read")))
            }
            _ => None,
        };
        let (word, message) = self.pods.get(key).and_then(own).or_else(|| {
            self.pods_of_workload(key).into_iter().find_map(|pod| own(self.pods.get(&pod)?))
        })?;
        Some(WorkloadExplanation {
            workload: key.to_string(),
            state: "Parked".to_owned(),
            reason: Some(word.to_owned()),
            lines: vec![message.to_string()],
            closest: Vec::new(),
            nodes: Vec::new(),
            explanation: Explanation {
                summary: message.to_string(),
                reason: Some(word.to_owned()),
                detail: Some(message.to_string()),
                ..Explanation::default()
            },
        })
    }

    /// How much there is of everything.
    pub fn census(&self) -> ClusterSummary {
        let mut census = ClusterSummary::default();
        let mut readings = (0.0, 0u64);
        for node in self.engine.nodes() {
            census.nodes += 1;
            let entry = self.nodes.get(node.node.id.as_str());
            let unit = entry.map_or(1.0, super::NodeEntry::unit);
            let measured = entry.is_some_and(super::NodeEntry::is_measured);
            for gpu in &node.gpus {
                census.gpus += unit;
                let usable = node.open && gpu.health == GpuHealth::Healthy;
                census.free += if usable && gpu.milli_free >= 1000 { unit } else { 0.0 };
                if measured {
                    readings = (readings.0 + f64::from(gpu.utilization.get()), readings.1 + 1);
                }
            }
        }
        for (node, milli) in self.engine.reserved_gpus() {
            let unit = self.nodes.get(node.as_str()).map_or(1.0, super::NodeEntry::unit);
            census.kept += milli as f64 / 1000.0 * unit;
        }
        census.utilization = readings.0 / (readings.1.max(1) as f64);
        for group in self.groups.values() {
            if group.placed && self.runs(group) {
                census.running += 1;
            } else if group.placed {
                census.scheduled += 1;
            } else {
                let word = group.reason.as_ref().map_or("New", |reason| reason.word);
                *census.pending.entry(word).or_default() += 1;
            }
        }
        for entry in self.pods.values() {
            if let PodState::Parked(aside) = &entry.place {
                let word = match aside {
                    Parked::LookingUp => "LookingUp",
                    Parked::Because(word, _) => word,
                };
                *census.pending.entry(word).or_default() += 1;
            }
        }
        for queue in self.engine.queues() {
            census.queues.insert(queue.id.to_string(), queue.used[3]);
        }
        census
    }

    /// Whether every pod of a workload runs; those that are over have left it.
    fn runs(&self, group: &Gang) -> bool {
        group.members.values().all(|key| {
            let pod = self.pods.get(key).and_then(|entry| entry.pod.as_ref());
            pod.is_some_and(|pod| pod.status.phase.as_deref() == Some("Running"))
        })
    }
}
