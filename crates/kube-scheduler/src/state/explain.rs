//! Explanations of pending workloads, and totals for metrics.

use agentaflow_api::explain::Explanation;
use agentaflow_api::pending::{PendingCode, PendingReason};
use agentaflow_engine::{GpuHealth, NodeView, Time, WaitReason, WorkloadId, WorkloadState};
use agentaflow_explain as explain;
use agentaflow_kube_core::quota::FullQuota;
use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_core::{names, pod_end, translate};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::ClusterState;
use super::action::Key;
use super::gang_table::Gang;
use super::membership::{single_pod_id, workload_id};
use super::node_table::NodeEntry;
use super::parked::Parked;
use super::pod_entry::{BindingState, PodState, node_of};
use crate::controller::{WAITING_FOR_QUOTA, WAITING_FOR_REPLACEMENT};

/// Reason of a workload that preempted, and whose room a pod of another scheduler took.
pub(super) const PREEMPTED_ROOM_TAKEN: &str = "PreemptedRoomTaken";

/// A pod of another scheduler that took room which a preemption made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TakenRoom {
    pub(super) pod: Key,
    pub(super) node: Arc<str>,
}

impl fmt::Display for TakenRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, node } = self;
        write!(
            f,
            "Pod {pod} of another scheduler took the room that preemption made on node {node}. See `agentaflow exclusive`"
        )
    }
}

/// A cause that the engine does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    TakenRoom(TakenRoom),
    FullQuota(FullQuota),
}

impl Cause {
    fn code(&self) -> &'static str {
        match self {
            Self::TakenRoom(_) => PREEMPTED_ROOM_TAKEN,
            Self::FullQuota(_) => WAITING_FOR_QUOTA,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TakenRoom(taken) => taken.fmt(f),
            Self::FullQuota(quota) => write!(
                f,
                "{quota}. Pod groups take no turns: if another one lacks pods, too, neither starts. Raise the quota, or scale down \
                 the owner of one group"
            ),
        }
    }
}

/// Reason for which a gang is pending, as last reported by the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportedReason {
    code: PendingCode,
    cause: Option<Cause>,
    pub(super) message: Arc<str>,
    /// More nodes would help.
    pub(super) resolved_by_nodes: bool,
}

impl ReportedReason {
    pub(super) fn new(reason: &WaitReason, now: Time) -> Self {
        let (code, message) = explain::coded_reason(reason, now);
        let resolved_by_nodes = reason.resolved_by_nodes();
        Self { code, cause: None, message: message.into(), resolved_by_nodes }
    }

    pub(super) fn add_cause(&mut self, cause: Cause) {
        self.message = format!("{}. {cause}", self.message.trim_end_matches('.')).into();
        self.cause = Some(cause);
    }

    pub(super) fn pending_code(&self) -> PendingCode {
        self.code
    }

    /// The quota that keeps the pods of an incomplete group from being created.
    pub(super) fn add_quota(&mut self, quota: Option<FullQuota>) {
        if let Some(quota) = quota {
            self.add_cause(Cause::FullQuota(quota));
        }
    }

    /// In `CamelCase`.
    pub(super) fn code(&self) -> &'static str {
        self.cause.as_ref().map_or(self.code.as_str(), Cause::code)
    }

    /// Reason of the pod's condition. Autoscalers add nodes for `Unschedulable` pods, so that only waits that nodes resolve
    /// get this reason.
    pub(super) fn condition(&self) -> &'static str {
        if self.resolved_by_nodes { "Unschedulable" } else { self.code() }
    }
}

/// Response of the scheduler's `/explain` endpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadExplanation {
    /// The engine's id.
    pub workload: String,
    /// `Pending`, `Placed`, `Running`, `Stopping`, or `Parked` if the engine cannot place it as it is.
    pub state: String,
    /// Code of the pending reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Sentences: reason, position and expected start, alternatives that would start now.
    pub lines: Vec<String>,
    /// Closest nodes with their shortfall.
    pub closest: Vec<(String, String)>,
    /// Nodes of its tasks.
    pub nodes: Vec<String>,
    /// The explanation in types of the REST API.
    pub explanation: Explanation,
}

/// Totals for metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterSummary {
    /// Number of devices; a time-sliced device counts once, independent of the units that its node offers.
    pub gpus: f64,
    /// Devices that could be allocated now.
    pub free: f64,
    /// Devices reserved for pending workloads.
    pub reserved: f64,
    /// Allocated devices; a shared device counts with its allocated share.
    pub allocated: f64,
    /// Allocated devices times the part of the time in which a kernel runs.
    pub busy: f64,
    /// Free shares of partly allocated devices.
    pub fragmented: f64,
    /// Most free devices on one node.
    pub largest_block: f64,
    /// Cost of the placed pods.
    pub dollars_per_hour: f64,
    /// Mean of the utilization readings, 0 to 100.
    pub utilization: f64,
    /// Nodes managed.
    pub nodes: u64,
    /// Nodes whose monitor does not report any more.
    pub monitors_lost: u64,
    /// GPU pods of other schedulers without a node.
    pub foreign_pending: u64,
    /// GPU pods of other schedulers on managed nodes.
    pub foreign_placed: u64,
    /// Pending workloads by reason.
    pub pending: BTreeMap<&'static str, u64>,
    /// Pending workloads by queue and reason; parked pods have no queue.
    pub pending_by_queue: BTreeMap<(String, &'static str), u64>,
    /// Placed workloads of which not every pod runs.
    pub scheduled: u64,
    /// Workloads of which every pod runs.
    pub running: u64,
    /// Thousandths of a GPU in use, by queue.
    pub queues: BTreeMap<String, i64>,
}

impl ClusterState {
    /// As [`Self::explain`]; remembers the first ETA of a pending workload, which is compared with its placement.
    pub fn explain_to_caller(&mut self, key: &Key) -> Option<WorkloadExplanation> {
        let explained = self.explain(key)?;
        let gang = self.gangs.get_mut(&WorkloadId::from(explained.workload.as_str()));
        if let (Some(gang), Some(eta)) =
            (gang.filter(|gang| !gang.placed), explained.explanation.eta)
        {
            gang.given_eta.get_or_insert(Time(u64::try_from(eta.0).unwrap_or_default()));
        }
        Some(explained)
    }

    /// Explains a `GPUWorkload`, pod, pod group or job by namespace and name.
    pub fn explain(&self, key: &Key) -> Option<WorkloadExplanation> {
        let group = WorkloadId::from(format!("{}/group/{}", key.namespace, key.name));
        let ids = [workload_id(key), single_pod_id(key), group];
        let known = ids
            .into_iter()
            .chain(self.units.named(key).cloned())
            .find(|id| self.gangs.contains(id));
        let known = known.or_else(|| match &self.pods.get(key)?.state {
            PodState::Member { workload, .. } => Some(workload.clone()),
            _ => None,
        });
        let known = known.or_else(|| self.gang_without(key));
        let known = known.and_then(|id| self.explain_workload(&id));
        known.or_else(|| self.explain_parked(key)).or_else(|| self.explain_rejected(key))
    }

    fn explain_workload(&self, id: &WorkloadId) -> Option<WorkloadExplanation> {
        let view = self.engine.scheduler().workload(id)?;
        let explanation = self.engine.explain(id);
        let is_pending = view.state == WorkloadState::Pending;
        let reason = explanation.as_ref().and_then(|explanation| explanation.reason.as_ref());
        let code = reason.filter(|_| is_pending);
        let code = code.map(|reason| explain::coded_reason(reason, self.engine.now()).0);
        let losses = self.loss_messages(id);
        let lines = explanation.as_ref().filter(|_| is_pending);
        let lines = lines.map(|lines| explain::explanation(lines, self.engine.now()));
        let cause = self.gangs.get(id).and_then(|gang| gang.reason.as_ref()?.cause.as_ref());
        let cause = cause.filter(|_| is_pending);
        let code = cause.map(Cause::code).or(code.map(PendingCode::as_str));
        let code = code.map(str::to_owned);
        let code = code.or_else(|| losses.first().map(|_| WAITING_FOR_REPLACEMENT.to_owned()));
        let closest = explanation.iter().flat_map(|explanation| &explanation.closest);
        let api = explanation.as_ref().map(|explanation| self.api_explanation(&view, explanation));
        Some(WorkloadExplanation {
            workload: id.to_string(),
            state: format!("{:?}", view.state),
            reason: code,
            lines: lines
                .unwrap_or(losses)
                .into_iter()
                .chain(cause.map(ToString::to_string))
                .collect(),
            closest: closest
                .map(|(node, shortfall)| (node.to_string(), explain::shortfall(shortfall, 1)))
                .collect(),
            nodes: view.tasks.iter().map(|task| task.node.to_string()).collect(),
            explanation: api.unwrap_or_default(),
        })
    }

    /// Explains a parked pod, or a workload by one of its parked pods.
    fn explain_parked(&self, key: &Key) -> Option<WorkloadExplanation> {
        let reason = self.parked_reason(key);
        let reason = reason
            .or_else(|| self.pods.of_workload(key).find_map(|pod| self.parked_reason(pod)))
            .or_else(|| self.parked_unit(key))?;
        Some(WorkloadExplanation {
            workload: key.to_string(),
            state: "Parked".to_owned(),
            reason: Some(reason.code().to_owned()),
            lines: vec![reason.message().to_string()],
            closest: Vec::new(),
            nodes: Vec::new(),
            explanation: parked_explanation(reason),
        })
    }

    fn parked_reason(&self, pod: &Key) -> Option<&Parked> {
        match &self.pods.get(pod)?.state {
            PodState::Parked(reason) => Some(reason),
            _ => None,
        }
    }

    /// Totals for metrics.
    pub fn summary(&self) -> ClusterSummary {
        let mut summary = ClusterSummary::default();
        let mut readings = Vec::new();
        for node in self.engine.scheduler().nodes() {
            readings.extend(self.add_node(&mut summary, &node));
        }
        summary.monitors_lost = self.monitors.lost() as u64;
        summary.foreign_pending = self.foreign_demand.len() as u64;
        summary.foreign_placed =
            self.nodes.values().map(|entry| self.foreign_gpu_pods(entry) as u64).sum();
        summary.utilization = readings.iter().sum::<f64>() / (readings.len().max(1) as f64);
        for (node, milli) in self.engine.scheduler().reserved_gpus() {
            let fraction = self.nodes.get(node.as_str()).map_or(1.0, NodeEntry::device_fraction);
            summary.reserved += milli as f64 / 1000.0 * fraction;
        }
        for (_, gang) in self.gangs.iter() {
            if !gang.placed {
                let code = gang.reason.as_ref().map_or("New", |reason| reason.code());
                *summary.pending.entry(code).or_default() += 1;
                let queue = (gang.traits.queue.to_string(), code);
                *summary.pending_by_queue.entry(queue).or_default() += 1;
            } else if self.is_running(gang) {
                summary.running += 1;
            } else {
                summary.scheduled += 1;
            }
        }
        for (_, entry) in self.pods.iter() {
            match &entry.state {
                PodState::Parked(reason) => {
                    *summary.pending.entry(reason.code()).or_default() += 1;
                }
                PodState::Member { binding: BindingState::Bound(_), .. } => {
                    summary.dollars_per_hour += entry.pod.as_deref().map_or(0.0, price);
                }
                _ => {}
            }
        }
        for queue in self.engine.scheduler().queues() {
            summary.queues.insert(queue.id.to_string(), queue.used.gpu_milli);
        }
        summary
    }

    /// Adds the devices of a node; returns the utilization of the monitored ones.
    fn add_node(&self, summary: &mut ClusterSummary, node: &NodeView) -> Vec<f64> {
        summary.nodes += 1;
        let entry = self.nodes.get(node.node.id.as_str());
        let fraction = entry.map_or(1.0, NodeEntry::device_fraction);
        let room = self.engine.scheduler().node_room(&node.node.id).unwrap_or_default();
        let devices = |milli: u64| milli as f64 / 1_000.0 * fraction;
        summary.allocated += devices(room.gpu_milli_allocated);
        if room.takes_tasks {
            summary.fragmented += devices(room.gpu_milli_fragmented);
            let block = (f64::from(room.gpus_free) * fraction).floor();
            summary.largest_block = summary.largest_block.max(block);
        }
        let (mut busy, mut readings) = (0.0, Vec::new());
        for gpu in &node.gpus {
            let utilization = f64::from(gpu.utilization.get());
            summary.gpus += fraction;
            if node.open && gpu.health == GpuHealth::Healthy && gpu.milli_free >= 1000 {
                summary.free += fraction;
            }
            if gpu.users > 0 {
                busy += utilization / 100.0 * fraction;
            }
            readings.extend(entry.filter(|entry| entry.is_monitored()).map(|_| utilization));
        }
        summary.busy += busy.min(devices(room.gpu_milli_allocated));
        readings
    }

    /// Number of GPU pods of other schedulers on a node.
    pub(super) fn foreign_gpu_pods(&self, node: &NodeEntry) -> usize {
        let foreign = node.foreign().filter_map(|key| self.pods.get(key));
        foreign
            .filter(|entry| {
                let uses = entry.foreign_use.as_ref();
                entry.pod.is_none() && uses.is_some_and(|uses| uses.gpu_count > 0)
            })
            .count()
    }

    /// Explains a pod that a kubelet rejected.
    fn explain_rejected(&self, key: &Key) -> Option<WorkloadExplanation> {
        let pod = self.pods.get(key)?.pod.as_deref()?;
        let (reason, node) = (pod_end::rejection(pod)?, node_of(pod)?);
        let message = self.rejection_message(pod, node, reason);
        Some(WorkloadExplanation {
            workload: key.to_string(),
            state: "Failed".to_owned(),
            reason: Some("RejectedByKubelet".to_owned()),
            lines: vec![message.clone()],
            closest: Vec::new(),
            nodes: vec![node.to_owned()],
            explanation: Explanation { summary: message, ..Explanation::default() },
        })
    }

    /// Returns true if every member runs; finished pods are not members.
    fn is_running(&self, gang: &Gang) -> bool {
        gang.members.values().all(|key| {
            let pod = self.pods.get(key).and_then(|entry| entry.pod.as_ref());
            pod.is_some_and(|pod| pod.status.phase.as_deref() == Some("Running"))
        })
    }
}

/// Dollars per hour of a pod, fixed at its placement.
fn price(pod: &Pod) -> f64 {
    let annotations = pod.metadata.annotations.as_ref();
    let price = annotations.and_then(|all| translate::micro_dollars(all.get(names::POD_PRICE)?));
    price.map_or(0.0, |price| price.0 as f64 / 1e6)
}

/// A parking reason in types of the REST API.
pub(super) fn parked_explanation(reason: &Parked) -> Explanation {
    let message = reason.message().to_string();
    Explanation {
        summary: message.clone(),
        pending_reason: Some(PendingReason::Parked {
            reason: reason.code().to_owned(),
            note: message,
        }),
        ..Explanation::default()
    }
}
