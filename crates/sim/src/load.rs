//! What is to be simulated.

use agentaflow_engine::{Node, Policy, Queue, Span, Time, Workload};

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
