//! What is to be simulated.

use agentaflow_engine::{Node, Policy, Queue, Span, Time, Workload};

use crate::SimError;

/// The most machines of one cluster: more are a slip of the pen that fills the memory.
pub(crate) const MOST_NODES: u64 = 200_000;
/// The most GPUs of one cluster.
pub(crate) const MOST_GPUS: u64 = 1_000_000;
/// The most GPUs of one machine, as in the engine.
pub(crate) const MOST_NODE_GPUS: u64 = agentaflow_engine::MAX_NODE_GPUS as u64;

/// A cluster, its settings and everything that will be handed in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// The machines, there from the beginning.
    pub nodes: Vec<Node>,
    /// The queues, parents first; `root` is always there.
    pub queues: Vec<Queue>,
    /// What is handed in, in any order.
    pub jobs: Vec<Job>,
    /// Settings; the run's options replace its strategy and may replace its order.
    pub policy: Policy,
}

/// A workload that will be handed in.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// When.
    pub at: Time,
    /// What. Its `estimate` is what the scheduler believes.
    pub workload: Workload,
    /// How long it really runs.
    pub duration: Span,
}

/// Refuses equal machines that are none, or too many to be meant.
pub(crate) fn check_size(nodes: u32, gpus_per_node: u32) -> Result<(), SimError> {
    let (nodes, gpus) = (u64::from(nodes), u64::from(gpus_per_node));
    let wrong =
        |name, value: u64, help| Err(SimError::Parameter { name, value: value.to_string(), help });
    if !(1..=MOST_NODES).contains(&nodes) {
        return wrong("the number of nodes", nodes, "give 1 to 200000");
    }
    if !(1..=MOST_NODE_GPUS).contains(&gpus) {
        return wrong("the number of GPUs of a node", gpus, "give 1 to 64");
    }
    if nodes * gpus > MOST_GPUS {
        return wrong("the number of GPUs of all nodes", nodes * gpus, "give at most 1000000");
    }
    Ok(())
}
