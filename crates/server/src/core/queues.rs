//! Queues, agents and the strategy: small things that people change.

use agentaflow_api::agent::{AgentRegistration, AgentUpdate};
use agentaflow_api::error::ErrorCode;
use agentaflow_api::event::EventKind;
use agentaflow_api::queue::QueueSpec;
use agentaflow_api::units::{Secret, Stamp};
use agentaflow_engine::{Event, QueueId, Strategy};

use super::nodes::node_name;
use super::pulse::Way;
use super::restore::{STRATEGY, engine_queue};
use super::state::State;
use crate::api_error::ApiError;
use crate::auth;
use crate::store::{AgentRow, Change, CredentialKind, QueueRow};

/// The setting of an agent that says how often it gives a sign of life, in milliseconds.
pub(crate) const INTERVAL: &str = "heartbeat_interval_ms";

impl State {
    /// Makes or changes a queue; true when it is new.
    pub(crate) fn put_queue(
        &mut self,
        spec: QueueSpec,
        must_be_new: bool,
    ) -> Result<bool, ApiError> {
        let name = spec.name.clone();
        let old = self.queues.get(&name);
        if name == "root" {
            return Err(ApiError::invalid(
                "name",
                "`root` holds all other queues and cannot be changed",
            ));
        }
        if old.is_some() && must_be_new {
            return Err(ApiError::conflict(
                ErrorCode::Exists,
                format!("queue `{name}` exists; PUT changes it"),
            ));
        }
        let parent = spec.parent.as_ref().filter(|parent| *parent != "root");
        if let Some(parent) = parent.filter(|parent| !self.queues.contains_key(*parent)) {
            return Err(ApiError::invalid("parent", format!("there is no queue `{parent}`")));
        }
        let created_at = old.map_or_else(Stamp::now, |old| old.created_at);
        let is_new = old.is_none();
        let now = self.clock.now();
        self.engine
            .apply(now, Event::QueueUpdated(Box::new(engine_queue(&spec))))
            .map_err(|rejected| ApiError::invalid("queue", rejected.to_string()))?;
        let row = QueueRow { spec, created_at, updated_at: Stamp::now() };
        self.batch.changes.push(Change::Queue(Box::new(row.clone())));
        self.queues.insert(name, row);
        self.dirty = true;
        Ok(is_new)
    }

    /// Removes a queue that nobody uses.
    pub(crate) fn delete_queue(&mut self, name: &str) -> Result<(), ApiError> {
        if name == "root" {
            let words = "`root` holds all other queues and cannot be removed";
            return Err(ApiError::conflict(ErrorCode::QueueInUse, words));
        }
        if !self.queues.contains_key(name) {
            return Err(ApiError::not_found(format!("there is no queue `{name}`")));
        }
        let now = self.clock.now();
        self.engine.apply(now, Event::QueueRemoved(QueueId::from(name))).map_err(|rejected| {
            ApiError::conflict(
                ErrorCode::QueueInUse,
                format!("queue `{name}` cannot be removed: {rejected}"),
            )
        })?;
        self.queues.remove(name);
        self.batch.changes.push(Change::QueueGone(name.to_owned()));
        Ok(())
    }

    /// Changes how GPUs are chosen from now on.
    pub(crate) fn set_strategy(&mut self, name: &str) -> Result<(), ApiError> {
        let strategy: Strategy =
            name.parse().map_err(|error| ApiError::invalid("strategy", format!("{error}")))?;
        self.tell(Event::StrategyUpdated(strategy));
        self.batch.changes.push(Change::Meta(STRATEGY, name.to_owned()));
        Ok(())
    }

    /// An agent registers: its older key and streams end.
    pub(crate) fn register_agent(
        &mut self,
        given: AgentRegistration,
    ) -> Result<(i64, Secret), ApiError> {
        let node = given
            .node_id
            .and_then(|id| i64::try_from(id).ok())
            .filter(|id| self.nodes.contains_key(id));
        let Some(node) = node else {
            return Err(ApiError::invalid(
                "node_id",
                "there is no such node; register the node first",
            ));
        };
        self.check_identity(&given.agent_id, node)?;
        let key = auth::mint(CredentialKind::Agent, &given.agent_id)?;
        let old = self.agents.values().find(|agent| agent.agent_id == given.agent_id);
        let id = old.map_or(self.ids.0.agent + 1, |old| old.id);
        let now = Stamp::now();
        let row = AgentRow {
            id,
            created_at: old.map_or(now, |old| old.created_at),
            agent_id: given.agent_id,
            node_id: node,
            agent_version: given.agent_version,
            config: given.config,
            capabilities: given.capabilities,
            api_endpoint: given.api_endpoint,
            websocket_endpoint: given.websocket_endpoint,
            updated_at: now,
            started_at: Some(now),
        };
        self.ids.0.agent = self.ids.0.agent.max(id);
        if let Some(endpoint) = row.api_endpoint.clone() {
            self.take_endpoint(node, endpoint);
        }
        self.retire_agents(node, id);
        let key = self.new_worker_key(key, node, Some(id));
        self.batch.changes.push(Change::Agent(Box::new(row.clone())));
        self.agents.insert(id, row);
        self.set_interval(node);
        self.reach(node, Way::Stream(None));
        let name = node_name(self, node);
        self.node_event(
            node,
            EventKind::AgentRegistered,
            format!("the agent of node `{name}` registered"),
        );
        Ok((id, key))
    }

    /// One node, one agent: a second identity would be told to start what the first still runs. A new one is taken
    /// when the old one has been silent for so long that its guardian has stopped everything.
    fn check_identity(&self, agent: &str, node: i64) -> Result<(), ApiError> {
        let alive = |id: i64| {
            let live = self.nodes.get(&id);
            live.filter(|live| !live.is_push() && live.beat.elapsed() <= self.patience(live))
        };
        let moved = self.agents.values().find(|row| row.agent_id == agent && row.node_id != node);
        if moved.and_then(|row| alive(row.node_id)).is_some_and(|live| live.heard) {
            let words = "an agent of this name works for another node that is alive";
            return Err(ApiError::conflict(ErrorCode::AgentTaken, words));
        }
        let other = self.agents.values().any(|row| row.node_id == node && row.agent_id != agent);
        if other && alive(node).is_some_and(|live| !live.jobs.is_empty()) {
            let words = "another agent of this node still has jobs; stop it, or wait until it has been silent for \
                         three heartbeats and the time that its jobs may take to stop";
            return Err(ApiError::conflict(ErrorCode::NodeTaken, words));
        }
        Ok(())
    }

    /// Agents that no longer work for a node are forgotten, with their keys.
    fn retire_agents(&mut self, node: i64, keep: i64) {
        let gone = |row: &&AgentRow| row.node_id == node && row.id != keep;
        let agents: Vec<i64> = self.agents.values().filter(gone).map(|row| row.id).collect();
        let mine = |key: &&crate::store::CredentialRow| {
            key.agent_id.is_some_and(|id| agents.contains(&id))
        };
        let keys: Vec<i64> =
            self.directory.credentials.values().filter(mine).map(|key| key.id).collect();
        for key in keys {
            self.directory.drop_credential(key);
            self.batch.changes.push(Change::CredentialGone(key));
        }
        for agent in agents {
            self.agents.remove(&agent);
            self.batch.changes.push(Change::AgentGone(agent));
        }
    }

    /// An agent of the documents may name its endpoint when it registers, instead of its node.
    fn take_endpoint(&mut self, node: i64, endpoint: String) {
        let Some(live) = self.nodes.get_mut(&node) else { return };
        if live.row.spec.api_endpoint.as_ref() != Some(&endpoint) {
            live.row.spec.api_endpoint = Some(endpoint);
            live.push_answers = false;
            self.batch.changes.push(Change::Node(Box::new(live.row.clone())));
        }
    }

    /// The agent that a caller means, by name or number.
    pub(crate) fn find_agent(&self, agent: &str) -> Result<i64, ApiError> {
        let named = self.agents.values().find(|row| row.agent_id == agent).map(|row| row.id);
        let found = named.or_else(|| agent.parse().ok().filter(|id| self.agents.contains_key(id)));
        found.ok_or_else(|| {
            ApiError::not_found("there is no such agent; GET /gpu-workers/agents lists them")
        })
    }

    /// Changes an agent.
    pub(crate) fn update_agent(&mut self, id: i64, update: AgentUpdate) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        agent.agent_version = update.agent_version.or_else(|| agent.agent_version.take());
        // The interval is what the agent keeps, and only it knows: it is said at registration.
        let interval = agent.config.get(INTERVAL).cloned();
        agent.config = update.config.unwrap_or_else(|| std::mem::take(&mut agent.config));
        agent.config.remove(INTERVAL);
        agent.config.extend(interval.map(|interval| (INTERVAL.to_owned(), interval)));
        agent.capabilities =
            update.capabilities.unwrap_or_else(|| std::mem::take(&mut agent.capabilities));
        agent.updated_at = Stamp::now();
        let (row, node) = (agent.clone(), agent.node_id);
        self.batch.changes.push(Change::Agent(Box::new(row)));
        self.set_interval(node);
    }
}
