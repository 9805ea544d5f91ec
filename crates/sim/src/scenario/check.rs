//! Checks across a scenario: unique names, existing queues, cluster size.

use std::collections::HashSet;

use super::expand::PartError;
use super::{Jobs, Nodes, QueueSpec};
use crate::load::{MAX_GPUS, MAX_NODE_GPUS, MAX_NODES};
use crate::{Load, SimError};

/// Names and sizes found so far.
#[derive(Default)]
pub(super) struct ScenarioNames {
    nodes: u64,
    gpus: u64,
    node_names: HashSet<String>,
    queue_names: HashSet<String>,
    job_names: HashSet<String>,
}

impl ScenarioNames {
    /// Counts nodes before their creation: a typo must not fill the memory.
    pub(super) fn size(&mut self, nodes: &Nodes) -> Result<(), PartError> {
        let most = MAX_NODE_GPUS;
        if u64::from(nodes.gpus) > most {
            return Err(format!(
                "`gpus` is {}; a node has at most {most}; use `count` for more nodes",
                nodes.gpus
            ));
        }
        let count = u64::from(nodes.count.unwrap_or(1));
        self.nodes += count;
        self.gpus += count * u64::from(nodes.gpus);
        if self.nodes > MAX_NODES {
            return Err(format!(
                "with its `count` of {count} there are {} nodes; at most {MAX_NODES} are allowed",
                self.nodes
            ));
        }
        if self.gpus > MAX_GPUS {
            return Err(format!(
                "with its `count` of {count} and its `gpus` of {} there are {} GPUs; at most \
                 {MAX_GPUS} are allowed",
                nodes.gpus, self.gpus
            ));
        }
        Ok(())
    }

    pub(super) fn node(&mut self, name: &str) -> Result<(), PartError> {
        add_unique(&mut self.node_names, name, "node")
    }

    /// A queue appears once, after its parent.
    pub(super) fn queue(&mut self, queue: &QueueSpec) -> Result<(), PartError> {
        if let Some(parent) = queue.parent.as_deref().filter(|parent| !self.has_queue(parent)) {
            return Err(format!("parent `{parent}` is not defined; list parents first"));
        }
        add_unique(&mut self.queue_names, &queue.name, "queue")
    }

    pub(super) fn queue_of(&self, jobs: &Jobs) -> Result<(), PartError> {
        match jobs.queue.as_deref().filter(|queue| !self.has_queue(queue)) {
            Some(queue) => Err(format!("queue `{queue}` is not defined in `queues`")),
            None => Ok(()),
        }
    }

    pub(super) fn job(&mut self, name: &str) -> Result<(), PartError> {
        add_unique(&mut self.job_names, name, "job")
    }

    fn has_queue(&self, name: &str) -> bool {
        name == "root" || self.queue_names.contains(name)
    }
}

fn add_unique(names: &mut HashSet<String>, name: &str, kind: &str) -> Result<(), PartError> {
    if names.insert(name.to_owned()) {
        Ok(())
    } else {
        Err(format!("the {kind} name `{name}` is already in use; names must be unique"))
    }
}

/// Rejects a cluster without nodes or without jobs.
pub(super) fn check_not_empty(load: &Load, origin: &str) -> Result<(), SimError> {
    let missing = |part: &str, help: &str| SimError::ScenarioPart {
        origin: origin.to_owned(),
        part: format!("`{part}`"),
        help: help.to_owned(),
    };
    if load.nodes.is_empty() {
        return Err(missing("nodes", "must not be empty; add at least one node"));
    }
    if load.jobs.is_empty() {
        return Err(missing("jobs", "must not be empty; add at least one job"));
    }
    Ok(())
}
