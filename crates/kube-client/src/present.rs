//! Watched objects in the types of the REST API, without requests to a cluster.

use agentaflow_api::Stamp;
use agentaflow_api::job::Job;
use agentaflow_api::node::Node;
use agentaflow_api::queue::Queue;
use agentaflow_kube_core::crd::GpuNode;
use agentaflow_kube_core::slim::{self, Pod, Workload};
use serde_json::json;
use std::borrow::Borrow;

use super::node_view::Seen;
use super::queues;
use super::show::View;

/// Job of a workload with its pods. Names have their namespace.
pub fn workload<P: Borrow<Pod>>(workload: &Workload, pods: &[P]) -> Job {
    view().workload(workload, pods)
}

/// Job of a pod that belongs to no workload. A watched pod has neither image nor command.
pub fn pod(pod: &Pod) -> Job {
    let container = |container: &slim::Container| json!({"name": container.name, "resources": container.resources});
    let containers: Vec<_> = pod.spec.containers.iter().map(container).collect();
    view().pod(pod, &json!({"containers": containers}))
}

/// Node with the report of its monitor and its pods; also true if it has GPUs.
pub fn node(node: &slim::Node, devices: Option<&GpuNode>, pods: Vec<Pod>) -> (bool, Node) {
    let seen = Seen::watched(node, devices, pods);
    (seen.has_gpus(), seen.show())
}

pub fn queue(queue: &slim::Queue) -> Queue {
    queues::show(queue)
}

fn view() -> View {
    View { everywhere: true, now: Stamp::now() }
}
