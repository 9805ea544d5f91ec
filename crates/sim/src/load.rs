//! The input of a simulation.

use agentaflow_engine::{Node, Policy, Queue, Span, Time, Workload};

use crate::SimError;

/// Limit of nodes per cluster; a typo must not fill the memory.
pub(crate) const MAX_NODES: u64 = 200_000;
/// Limit of GPUs per cluster.
pub(crate) const MAX_GPUS: u64 = 1_000_000;
/// Limit of GPUs per node, as in the engine.
pub(crate) const MAX_NODE_GPUS: u64 = agentaflow_engine::MAX_NODE_GPUS as u64;

/// A cluster, its policy and all submissions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// Present from the beginning.
    pub nodes: Vec<Node>,
    /// Parents first; `root` always exists.
    pub queues: Vec<Queue>,
    /// In any order.
    pub jobs: Vec<Job>,
    /// The run's options replace the strategy and may replace the order.
    pub policy: Policy,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub at: Time,
    /// Its `estimate` is the scheduler's information.
    pub workload: Workload,
    /// Actual run time.
    pub duration: Span,
}

/// Rejects empty and oversized clusters.
pub(crate) fn check_size(nodes: u32, gpus_per_node: u32) -> Result<(), SimError> {
    let (nodes, gpus) = (u64::from(nodes), u64::from(gpus_per_node));
    let wrong =
        |name, value: u64, help| Err(SimError::Parameter { name, value: value.to_string(), help });
    if !(1..=MAX_NODES).contains(&nodes) {
        return wrong("the number of nodes", nodes, "give 1 to 200000");
    }
    if !(1..=MAX_NODE_GPUS).contains(&gpus) {
        return wrong("the number of GPUs of a node", gpus, "give 1 to 4096");
    }
    if nodes * gpus > MAX_GPUS {
        return wrong("the number of GPUs of all nodes", nodes * gpus, "give at most 1000000");
    }
    Ok(())
}
