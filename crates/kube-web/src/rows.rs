//! The state of the scheduler as lists of the REST API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agentaflow_api::ids::JobId;
use agentaflow_api::job::Job;
use agentaflow_api::node::Node;
use agentaflow_api::queue::Queue;
use agentaflow_api::{Cores, Stamp};
use agentaflow_kube_client::present;
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_scheduler::{ClusterSnapshot, NodeSnapshot};
use agentaflow_units::hash64;

/// Kind and namespace of a job's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Workload(String),
    Pod(String),
}

impl Origin {
    pub(crate) fn namespace(&self) -> &str {
        match self {
            Self::Workload(namespace) | Self::Pod(namespace) => namespace,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) origin: Origin,
    pub(crate) job: Job,
}

/// Lists of the cluster at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    /// By number, which grows with the time of creation.
    pub(crate) jobs: BTreeMap<JobId, Row>,
    /// Nodes with the reports of their monitors, and without.
    pub(crate) nodes: Vec<Node>,
    pub(crate) bare_nodes: Vec<Node>,
    pub(crate) queues: Vec<Queue>,
    /// Namespaces of the jobs.
    pub(crate) namespaces: BTreeSet<String>,
}

impl Rows {
    pub(crate) fn new(snapshot: &ClusterSnapshot) -> Self {
        let (of_workloads, alone): (Vec<_>, Vec<_>) =
            snapshot.pods.iter().partition(|pod| owner(pod).is_some());
        let mut owned: BTreeMap<&str, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in of_workloads {
            owned.entry(owner(pod).unwrap_or_default()).or_default().push(pod.clone());
        }
        let none = Vec::new();
        let mut found = Vec::new();
        for workload in &snapshot.workloads {
            let uid = workload.metadata.uid.as_deref().unwrap_or_default();
            let job = present::workload(workload, owned.get(uid).unwrap_or(&none));
            found.push((uid, Origin::Workload(namespace(&job)), job));
        }
        for pod in alone {
            let job = present::pod(pod);
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            found.push((uid, Origin::Pod(namespace(&job)), job));
        }
        let jobs = numbered(found);
        let namespaces = jobs.values().map(|row| row.origin.namespace().to_owned()).collect();
        Self {
            jobs,
            nodes: nodes(snapshot, true),
            bare_nodes: nodes(snapshot, false),
            queues: queues(snapshot),
            namespaces,
        }
    }
}

fn namespace(job: &Job) -> String {
    job.k8s_namespace.clone().unwrap_or_default()
}

/// UID of the workload that a pod belongs to.
fn owner(pod: &Arc<Pod>) -> Option<&str> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.kind == "GPUWorkload" && owner.controller == Some(true));
    owner.map(|owner| owner.uid.as_str())
}

/// Numbers jobs by the second of creation and a hash of the UID: every replica finds the same numbers, and a browser holds
/// them exactly, as they have 53 bits. Of two jobs with equal numbers the second gets the next one.
fn numbered(mut found: Vec<(&str, Origin, Job)>) -> BTreeMap<JobId, Row> {
    found.sort_by(|a, b| a.0.cmp(b.0));
    let mut jobs = BTreeMap::new();
    for (uid, origin, mut job) in found {
        let mut id = number(uid, job.created_at);
        while jobs.contains_key(&id) {
            id = id.next();
        }
        job.id = id;
        job.username = Some(origin.namespace().to_owned());
        jobs.insert(id, Row { origin, job });
    }
    jobs
}

/// 2024-01-01T00:00:00Z, in seconds.
const EPOCH: i64 = 1_704_067_200;
const HASH_BITS: u32 = 24;

fn number(uid: &str, created: Stamp) -> JobId {
    let seconds = (created.0.div_euclid(1000) - EPOCH).clamp(0, (1 << 29) - 1);
    let hash = hash64(uid.as_bytes()) >> (64 - HASH_BITS);
    JobId(seconds << HASH_BITS | hash as i64)
}

/// GPU nodes; all nodes if none has a GPU.
fn nodes(snapshot: &ClusterSnapshot, reports: bool) -> Vec<Node> {
    let mut pods: BTreeMap<&str, Vec<Pod>> = BTreeMap::new();
    for pod in &snapshot.pods {
        if let Some(node) = pod.spec.node_name.as_deref().filter(|_| runs(pod)) {
            pods.entry(node).or_default().push(Pod::clone(pod));
        }
    }
    let mut shown: Vec<(bool, Node)> = Vec::new();
    for seen in &snapshot.nodes {
        let name = seen.node.metadata.name.as_deref().unwrap_or_default();
        let pods = pods.remove(name).unwrap_or_default();
        let (has_gpus, mut node) =
            present::node(&seen.node, seen.devices.as_deref().filter(|_| reports), pods);
        set_free(&mut node, seen);
        shown.push((has_gpus, node));
    }
    if shown.iter().any(|(gpus, _)| *gpus) {
        shown.retain(|(gpus, _)| *gpus);
    }
    shown.into_iter().map(|(_, node)| node).collect()
}

/// The engine also counts pods of other schedulers.
fn set_free(node: &mut Node, seen: &NodeSnapshot) {
    let amount = |free: i64| u64::try_from(free).unwrap_or(0);
    if let Some((cpu, memory)) = seen.free {
        node.cpu_cores_available = Cores(amount(cpu));
        node.memory_available = amount(memory);
    }
}

fn runs(pod: &Pod) -> bool {
    !matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

fn queues(snapshot: &ClusterSnapshot) -> Vec<Queue> {
    let mut queues: Vec<Queue> = snapshot.queues.iter().map(present::queue).collect();
    queues.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
    queues
}

/// Group of the kinds of agentaflow.
pub(crate) const GROUP: &str = names::GROUP;

#[cfg(test)]
mod tests {
    use super::*;

    fn job(second: i64) -> Job {
        Job { created_at: Stamp((EPOCH + second) * 1000), ..Job::default() }
    }

    #[test]
    fn numbers_of_jobs_grow_with_time_stay_equal_and_fit_into_a_browser() {
        let origin = || Origin::Workload("ml".to_owned());
        let (early, late) = (number("z", job(10).created_at), number("a", job(11).created_at));
        assert!(early < late);
        assert_eq!(early, number("z", job(10).created_at));
        assert!(number("a", job(i64::from(u32::MAX)).created_at).0 < 1 << 53);
        // The same UID stands for two UIDs with the same hash.
        let jobs = numbered(vec![("a", origin(), job(1)), ("a", origin(), job(1))]);
        assert_eq!(jobs.len(), 2, "none is hidden");
        assert!(jobs.iter().all(|(id, row)| row.job.id == *id));
    }
}
