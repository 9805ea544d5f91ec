//! What a scenario must be as a whole: names that differ, queues that are there, a size that fits.

use std::collections::HashSet;

use super::expand::Wrong;
use super::{Jobs, Nodes, QueueSpec};
use crate::load::{MOST_GPUS, MOST_NODE_GPUS, MOST_NODES};
use crate::{Load, SimError};

/// What was met so far.
#[derive(Default)]
pub(super) struct Seen {
    nodes: u64,
    gpus: u64,
    node_names: HashSet<String>,
    queue_names: HashSet<String>,
    job_names: HashSet<String>,
}

impl Seen {
    /// Counts machines before they are made: a slip of the pen must not fill the memory.
    pub(super) fn size(&mut self, nodes: &Nodes) -> Result<(), Wrong> {
        let most = MOST_NODE_GPUS;
        if u64::from(nodes.gpus) > most {
            return Err(format!(
                "`gpus` is {}; a node has at most {most}, so describe more nodes with `count`",
                nodes.gpus
            ));
        }
        let count = u64::from(nodes.count.unwrap_or(1));
        self.nodes += count;
        self.gpus += count * u64::from(nodes.gpus);
        if self.nodes > MOST_NODES {
            return Err(format!(
                "with its `count` of {count} there are {} nodes; at most {MOST_NODES} are accepted",
                self.nodes
            ));
        }
        if self.gpus > MOST_GPUS {
            return Err(format!(
                "with its `count` of {count} and its `gpus` of {} there are {} GPUs; at most \
                 {MOST_GPUS} are accepted",
                nodes.gpus, self.gpus
            ));
        }
        Ok(())
    }

    pub(super) fn node(&mut self, name: &str) -> Result<(), Wrong> {
        new(&mut self.node_names, name, "node")
    }

    /// A queue stands once, and after the one it is part of.
    pub(super) fn queue(&mut self, queue: &QueueSpec) -> Result<(), Wrong> {
        if let Some(parent) = queue.parent.as_deref().filter(|parent| !self.has_queue(parent)) {
            return Err(format!("its parent `{parent}` is not there; list parents first"));
        }
        new(&mut self.queue_names, &queue.name, "queue")
    }

    pub(super) fn queue_of(&self, jobs: &Jobs) -> Result<(), Wrong> {
        match jobs.queue.as_deref().filter(|queue| !self.has_queue(queue)) {
            Some(queue) => Err(format!("its queue `{queue}` is not among the `queues`")),
            None => Ok(()),
        }
    }

    pub(super) fn job(&mut self, name: &str) -> Result<(), Wrong> {
        new(&mut self.job_names, name, "job")
    }

    fn has_queue(&self, name: &str) -> bool {
        name == "root" || self.queue_names.contains(name)
    }
}

fn new(names: &mut HashSet<String>, name: &str, kind: &str) -> Result<(), Wrong> {
    if names.insert(name.to_owned()) {
        Ok(())
    } else {
        Err(format!("another {kind} is called `{name}` already; names must differ"))
    }
}

/// Nothing can be learnt from a cluster without machines or without work.
pub(super) fn something(load: &Load, origin: &str) -> Result<(), SimError> {
    let missing = |part: &str, help: &str| SimError::ScenarioPart {
        origin: origin.to_owned(),
        part: format!("`{part}`"),
        help: help.to_owned(),
    };
    if load.nodes.is_empty() {
        return Err(missing("nodes", "there are none; describe at least one machine"));
    }
    if load.jobs.is_empty() {
        return Err(missing("jobs", "there are none; describe at least one job"));
    }
    Ok(())
}
