//! The objects that the scheduler knows, for readers outside of the decision loop.

use agentaflow_kube_core::crd::GpuNode;
use agentaflow_kube_core::slim::{Node, Pod, Queue, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::ClusterState;

/// Objects at one time. It shares them with the state.
#[derive(Clone, Debug, Default)]
pub struct ClusterSnapshot {
    pub workloads: Vec<Arc<Workload>>,
    /// Pods of this scheduler, pods of workloads included.
    pub pods: Vec<Arc<Pod>>,
    pub nodes: Vec<NodeSnapshot>,
    pub queues: Vec<Queue>,
}

/// A node of the cluster.
#[derive(Clone, Debug)]
pub struct NodeSnapshot {
    pub node: Arc<Node>,
    /// Report of the monitor.
    pub devices: Option<Arc<GpuNode>>,
    /// Free thousandths of a core and MiB; none of a node that the scheduler does not manage.
    pub free: Option<(i64, i64)>,
}

impl ClusterState {
    pub fn snapshot(&self) -> ClusterSnapshot {
        let scheduler = self.engine.scheduler();
        let free: BTreeMap<_, _> = scheduler
            .nodes()
            .into_iter()
            .map(|view| (view.node.id.to_string(), (view.cpu_free, view.memory_free)))
            .collect();
        let node = |(node, devices): (Arc<Node>, Option<Arc<GpuNode>>)| {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let free = free.get(name).copied();
            NodeSnapshot { node, devices, free }
        };
        ClusterSnapshot {
            workloads: self.workloads.objects().cloned().collect(),
            pods: self.pods.iter().filter_map(|(_, entry)| entry.pod.clone()).collect(),
            nodes: self.nodes.values().filter_map(|entry| entry.objects().map(node)).collect(),
            queues: self.queues.objects(),
        }
    }
}
