//! Changes by an admin: nodes, agents, queues and the strategy.

use std::collections::BTreeSet;

use agentaflow_api::agent::AgentUpdate;
use agentaflow_api::error::{ErrorCode, ResourceKind};
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{AgentId, NodeId, UserId};
use agentaflow_api::node::{GpuInstance, NodeSpec, NodeStatus, NodeUpdate};
use agentaflow_api::queue::QueueSpec;
use agentaflow_engine::{Event, GpuHealth, QueueId, Strategy};

use super::node::{INTERVAL, closed_gpus, gpu_id, instances};
use super::queue_table::{ROOT, engine_queue};
use super::restore::STRATEGY;
use super::state::State;
use crate::api_error::ApiError;
use crate::store::{Change, NodeRow, QueueRow};

impl State {
    pub(super) fn update_node(&mut self, id: NodeId, update: NodeUpdate) -> Result<(), ApiError> {
        let Some(node) = self.nodes.get(id) else { return Ok(()) };
        let before = node.row().clone();
        let closed = closed_gpus_after(&before, &update)?;
        let status = update.status;
        if !matches!(status, None | Some(NodeStatus::Maintenance | NodeStatus::Active)) {
            let message = "only `maintenance` (no new work) and `active` can be set";
            return Err(ApiError::invalid("status", message));
        }
        let now = self.now();
        let after = self.nodes.update(id, |node| {
            node.change_row(|row| {
                match status {
                    Some(NodeStatus::Maintenance) => row.cordoned = true,
                    Some(_) => {
                        row.cordoned = false;
                        row.draining = false;
                    }
                    None => {}
                }
                row.draining = update.drain.unwrap_or(row.draining);
                row.overrides.cordoned_gpus = closed.cordoned;
                row.overrides.draining_gpus = closed.draining;
                row.overrides.merge(update);
                row.overrides.apply(&mut row.spec, &mut row.price_source);
                row.updated_at = now;
            })
        });
        let Some(after) = after else { return Ok(()) };
        self.record_node_changes(&before, &after);
        self.journal.write(Change::Node(Box::new(after)));
        self.report_node(id);
        Ok(())
    }

    fn record_node_changes(&mut self, before: &NodeRow, after: &NodeRow) {
        let id = after.id;
        let name = &after.spec.node_name;
        if before.cordoned != after.cordoned {
            let (kind, text) = if after.cordoned {
                (EventKind::NodeCordoned, "cordoned")
            } else {
                (EventKind::NodeUncordoned, "uncordoned")
            };
            self.node_event(id, kind, format!("Node `{name}` {text}"));
        }
        if before.draining != after.draining {
            let (kind, text) = if after.draining {
                (EventKind::NodeDraining, "draining")
            } else {
                (EventKind::NodeDrainEnded, "drain ended")
            };
            self.node_event(id, kind, format!("Node `{name}` {text}"));
        }
        let (was, is) = (closed_gpus(&before.overrides), closed_gpus(&after.overrides));
        for gpu in was.keys().chain(is.keys()).collect::<BTreeSet<_>>() {
            if was.get(gpu) == is.get(gpu) {
                continue;
            }
            let (kind, text) = match is.get(gpu) {
                None => (EventKind::GpuUncordoned, "uncordoned"),
                Some(GpuHealth::Draining) => (EventKind::GpuDraining, "draining"),
                Some(_) => (EventKind::GpuCordoned, "cordoned"),
            };
            self.node_event(id, kind, format!("GPU {gpu} of node `{name}` {text}"));
        }
    }

    /// Deletes a node without live jobs, with its agents and keys.
    pub(super) fn delete_node(&mut self, id: NodeId) -> Result<(), ApiError> {
        let Some(node) = self.nodes.get(id) else { return Ok(()) };
        if node.has_tasks() {
            let message = format!(
                "the node has {} live jobs; drain it first (PUT with `drain: true`)",
                node.jobs().len()
            );
            let name = Some(self.nodes.name(id));
            return Err(
                ApiError::conflict(ErrorCode::NodeBusy, message).about(ResourceKind::Node, name)
            );
        }
        let (node_id, is_known) = (node.row().node_id.clone(), node.is_known_to_engine());
        self.node_event(
            id,
            EventKind::NodeRemoved,
            format!("node `{}` was deleted", self.nodes.name(id)),
        );
        let pinned = self.jobs.iter().filter(|job| job.pinned.as_deref() == Some(&*node_id));
        for job in pinned.map(|job| job.id).collect::<Vec<_>>() {
            let name = self.nodes.name(id);
            let message =
                format!("node `{name}` ({node_id}), which the job is pinned to, was deleted");
            self.job_event(job, EventKind::Warning, message);
        }
        if is_known {
            self.engine.apply(Event::NodeRemoved(node_id.into()));
        }
        self.remove_agents_of(id, None);
        self.remove_credentials(|key| key.node_id == Some(id));
        self.nodes.remove(id);
        self.journal.write(Change::NodeGone(id));
        Ok(())
    }

    pub(super) fn update_agent(&mut self, id: AgentId, update: AgentUpdate) {
        let Some(mut agent) = self.nodes.agent(id).cloned() else { return };
        agent.agent_version = update.agent_version.or(agent.agent_version);
        // Only the agent knows its heartbeat interval, and names it at registration.
        let interval = agent.config.remove(INTERVAL);
        agent.config = update.config.unwrap_or(agent.config);
        agent.config.remove(INTERVAL);
        agent.config.extend(interval.map(|interval| (INTERVAL.to_owned(), interval)));
        agent.capabilities = update.capabilities.unwrap_or(agent.capabilities);
        agent.updated_at = self.now();
        self.journal.write(Change::Agent(Box::new(agent.clone())));
        let node = agent.node_id;
        self.nodes.put_agent(agent);
        self.report_node(node);
    }

    /// Creates or replaces a queue; true if it is new.
    pub(super) fn put_queue(
        &mut self,
        mut spec: QueueSpec,
        must_be_new: bool,
    ) -> Result<bool, ApiError> {
        let name = spec.name.clone();
        let old = self.queues.get(&name);
        if name == ROOT {
            let message = "`root` contains all other queues and cannot be changed";
            return Err(ApiError::invalid("name", message));
        }
        if old.is_some() && must_be_new {
            let message = format!("queue `{name}` exists; PUT changes it");
            return Err(ApiError::conflict(ErrorCode::Exists, message));
        }
        let parent = spec.parent.as_deref().filter(|parent| *parent != ROOT);
        if let Some(parent) = parent.filter(|parent| self.queues.get(parent).is_none()) {
            return Err(ApiError::unknown_object("parent", ResourceKind::Queue, parent));
        }
        let members = self.queue_members(&mut spec)?;
        let created_at = old.map_or_else(|| self.now(), |old| old.created_at);
        let is_new = old.is_none();
        self.engine
            .try_apply(Event::QueueUpdated(Box::new(engine_queue(&spec))))
            .map_err(|rejected| ApiError::invalid("queue", rejected.to_string()))?;
        let row = QueueRow { spec, members, created_at, updated_at: self.now() };
        self.journal.write(Change::Queue(Box::new(row.clone())));
        self.queues.put(row);
        Ok(is_new)
    }

    /// Users that a queue names. Their names are written as the users have them.
    fn queue_members(&self, spec: &mut QueueSpec) -> Result<Vec<UserId>, ApiError> {
        let directory = self.directory.read();
        let mut members = Vec::new();
        for name in &mut spec.users {
            let Some(user) = directory.user_named(name) else {
                return Err(ApiError::unknown_object("users", ResourceKind::User, name));
            };
            name.clone_from(&user.username);
            members.push(user.id);
        }
        Ok(members)
    }

    /// Deletes a queue without jobs and child queues.
    pub(super) fn delete_queue(&mut self, name: &str) -> Result<(), ApiError> {
        if name == ROOT {
            let message = "`root` contains all other queues and cannot be deleted";
            return Err(ApiError::conflict(ErrorCode::QueueInUse, message));
        }
        if self.queues.get(name).is_none() {
            return Err(ApiError::not_found(ResourceKind::Queue, name));
        }
        self.engine.try_apply(Event::QueueRemoved(QueueId::from(name))).map_err(|rejected| {
            let message = format!("queue `{name}` cannot be deleted: {rejected}");
            ApiError::conflict(ErrorCode::QueueInUse, message)
        })?;
        self.queues.remove(name);
        self.journal.write(Change::QueueGone(name.to_owned()));
        Ok(())
    }

    /// Sets the strategy for all later placements.
    pub(super) fn set_strategy(&mut self, name: &str) -> Result<(), ApiError> {
        let strategy: Strategy =
            name.parse().map_err(|error| ApiError::invalid("strategy", format!("{error}")))?;
        self.engine.apply(Event::StrategyUpdated(strategy));
        self.journal.write(Change::Meta(STRATEGY, name.to_owned()));
        Ok(())
    }
}

/// GPUs of a node that take no new work.
struct ClosedGpus {
    cordoned: BTreeSet<String>,
    draining: BTreeSet<String>,
}

/// Closed GPUs of a node after an update. Whole lists replace the present ones; additions and removals apply to them, so
/// that two admins do not undo each other.
fn closed_gpus_after(node: &NodeRow, update: &NodeUpdate) -> Result<ClosedGpus, ApiError> {
    let named = |field, gpus: &Option<Vec<String>>| {
        gpus.as_ref().map(|gpus| named_gpus(&node.spec, field, gpus)).transpose()
    };
    let set = &node.overrides;
    let mut cordoned =
        named("cordoned_gpus", &update.cordoned_gpus)?.unwrap_or_else(|| set.cordoned_gpus.clone());
    let mut draining =
        named("draining_gpus", &update.draining_gpus)?.unwrap_or_else(|| set.draining_gpus.clone());
    cordoned.extend(named("cordon_gpus", &update.cordon_gpus)?.unwrap_or_default());
    for gpu in named("drain_gpus", &update.drain_gpus)?.unwrap_or_default() {
        cordoned.insert(gpu.clone());
        draining.insert(gpu);
    }
    for gpu in named("uncordon_gpus", &update.uncordon_gpus)?.unwrap_or_default() {
        cordoned.remove(&gpu);
        draining.remove(&gpu);
    }
    Ok(ClosedGpus { cordoned, draining })
}

/// Engine names of GPUs that an admin names by index or UUID.
fn named_gpus(
    spec: &NodeSpec,
    field: &str,
    named: &[String],
) -> Result<BTreeSet<String>, ApiError> {
    let known = instances(spec);
    let id = |name: &String| {
        let is = |(position, gpu): &(usize, &GpuInstance)| {
            gpu.gpu_uuid.as_deref() == Some(name) || gpu_id(gpu, *position).as_str() == name
        };
        let found = known.iter().enumerate().find(is);
        found
            .map(|(position, gpu)| gpu_id(gpu, position).to_string())
            .ok_or_else(|| ApiError::invalid(field, format!("the node has no GPU `{name}`")))
    };
    named.iter().map(id).collect()
}
