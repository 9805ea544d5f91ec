//! Nodes and their agents: records, liveness, bookings and views.

mod booking;
mod description;
mod lease;
mod live;
mod push;
mod report;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustc_hash::FxHashMap;

use agentaflow_api::error::ResourceKind;
use agentaflow_api::ids::{AgentId, NodeId};
use agentaflow_engine::Price;

use super::handle::NodeRef;
use super::pricing::highest_price;
use crate::api_error::ApiError;
use crate::store::{AgentRow, HeartbeatRow, NodeRow};

pub(crate) use booking::{TaskBooking, TaskRef};
pub(crate) use description::{closed_gpus, engine_node, gpu_id, instances, price};
pub(crate) use lease::LeaseTerms;
pub(crate) use live::{Contact, LiveNode};
pub(crate) use push::{JobAnswer, PushReach};
pub(crate) use report::UnusableGpu;
pub(crate) use view::NodeView;

/// Setting of an agent: its heartbeat interval in milliseconds.
pub(crate) const INTERVAL: &str = "heartbeat_interval_ms";
/// The same setting of agents of the documented worker protocol, in seconds.
const INTERVAL_SECONDS: &str = "heartbeat_interval";
/// Capability of agents of the documented worker protocol: `false` means that the agent starts no containers.
const DOCKER: &str = "docker";
/// Heartbeat interval of an agent that does not name one.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);

/// Owner of nodes and agents. Changes of a node pass through [`NodeTable::update`], which marks its published view as
/// stale.
#[derive(Debug, Default)]
pub(crate) struct NodeTable {
    nodes: BTreeMap<NodeId, LiveNode>,
    /// By `gpu-…` name.
    by_name: FxHashMap<String, NodeId>,
    agents: BTreeMap<AgentId, AgentRow>,
    last_node: NodeId,
    last_agent: AgentId,
    lease: LeaseTerms,
    /// Nodes whose view changed since the last publication; removed nodes included.
    stale: BTreeSet<NodeId>,
    /// Agents whose record changed since the last publication; removed agents included.
    stale_agents: BTreeSet<AgentId>,
    /// Nodes with room that the engine held after its last pass.
    held: BTreeSet<NodeId>,
}

impl NodeTable {
    pub(crate) fn new(
        nodes: Vec<NodeRow>,
        agents: Vec<AgentRow>,
        last_node: NodeId,
        last_agent: AgentId,
        lease: LeaseTerms,
    ) -> Self {
        let agents: BTreeMap<_, _> = agents.into_iter().map(|agent| (agent.id, agent)).collect();
        let stale_agents = agents.keys().copied().collect();
        let mut table =
            Self { agents, last_node, last_agent, lease, stale_agents, ..Self::default() };
        for row in nodes {
            table.insert(row);
        }
        table
    }

    /// Takes over the state of nodes that is not in the store: liveness, streams, readings. Bookings and the engine's
    /// description are rebuilt.
    pub(crate) fn keep_liveness(&mut self, before: Option<&Self>) {
        for (id, node) in &mut self.nodes {
            if let Some(old) = before.and_then(|before| before.nodes.get(id)) {
                node.keep_liveness(old);
            }
        }
        let ids: Vec<NodeId> = self.ids();
        for id in ids {
            self.apply_agent_settings(id);
        }
    }

    pub(crate) fn lease(&self) -> LeaseTerms {
        self.lease
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&LiveNode> {
        self.nodes.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LiveNode> {
        self.nodes.values()
    }

    pub(crate) fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Node with this `gpu-…` name.
    pub(crate) fn named(&self, name: &str) -> Option<&LiveNode> {
        self.nodes.get(self.by_name.get(name)?)
    }

    /// Node that registered with this `node_name`.
    pub(crate) fn registered_as(&self, node_name: &str) -> Option<&LiveNode> {
        self.nodes.values().find(|node| node.row().spec.node_name == node_name)
    }

    pub(crate) fn find(&self, node: &NodeRef) -> Result<NodeId, ApiError> {
        let found = match node {
            NodeRef::Number(id) => self.nodes.contains_key(id).then_some(*id),
            NodeRef::Name(name) => self.by_name.get(name).copied(),
        };
        found.ok_or_else(|| node.not_found())
    }

    /// `node_name` for messages; the number of a node that is gone.
    pub(crate) fn name(&self, id: NodeId) -> String {
        self.get(id).map_or_else(|| id.to_string(), |node| node.row().spec.node_name.clone())
    }

    /// Id of the next node. An id that is not used is taken again.
    pub(crate) fn next_id(&self) -> NodeId {
        NodeId(self.last_node.0 + 1)
    }

    /// Adds a node, or replaces its record.
    pub(crate) fn insert(&mut self, row: NodeRow) {
        let id = row.id;
        self.last_node = self.last_node.max(id);
        self.by_name.insert(row.node_id.clone(), id);
        self.stale.insert(id);
        match self.nodes.get_mut(&id) {
            Some(node) => node.set_row(row),
            None => {
                self.nodes.insert(id, LiveNode::new(row, self.lease));
            }
        }
    }

    pub(crate) fn update<T>(
        &mut self,
        id: NodeId,
        change: impl FnOnce(&mut LiveNode) -> T,
    ) -> Option<T> {
        let node = self.nodes.get_mut(&id)?;
        self.stale.insert(id);
        Some(change(node))
    }

    pub(crate) fn remove(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.remove(&id) {
            self.by_name.remove(&node.row().node_id);
            self.stale.insert(id);
        }
    }

    pub(crate) fn agent(&self, id: AgentId) -> Option<&AgentRow> {
        self.agents.get(&id)
    }

    pub(crate) fn agents(&self) -> impl Iterator<Item = &AgentRow> {
        self.agents.values()
    }

    pub(crate) fn agent_named(&self, agent_id: &str) -> Option<&AgentRow> {
        self.agents.values().find(|agent| agent.agent_id == agent_id)
    }

    /// Agent by name or number.
    pub(crate) fn find_agent(&self, agent: &str) -> Result<&AgentRow, ApiError> {
        let numbered = || self.agents.get(&agent.parse().ok()?);
        self.agent_named(agent)
            .or_else(numbered)
            .ok_or_else(|| ApiError::not_found(ResourceKind::Agent, agent))
    }

    /// Node that an agent works for.
    pub(crate) fn node_of(&self, agent: AgentId) -> Result<NodeId, ApiError> {
        let row = self.agents.get(&agent);
        row.map(|row| row.node_id).ok_or_else(|| ApiError::not_found(ResourceKind::Agent, agent))
    }

    pub(crate) fn agents_of(&self, node: NodeId) -> impl Iterator<Item = &AgentRow> {
        self.agents.values().filter(move |agent| agent.node_id == node)
    }

    pub(crate) fn next_agent_id(&self) -> AgentId {
        AgentId(self.last_agent.0 + 1)
    }

    /// Adds or replaces an agent, and applies its heartbeat interval and capabilities.
    pub(crate) fn put_agent(&mut self, agent: AgentRow) {
        let node = agent.node_id;
        self.last_agent = self.last_agent.max(agent.id);
        self.stale_agents.insert(agent.id);
        self.agents.insert(agent.id, agent);
        self.apply_agent_settings(node);
    }

    pub(crate) fn remove_agent(&mut self, id: AgentId) {
        self.agents.remove(&id);
        self.stale_agents.insert(id);
    }

    fn apply_agent_settings(&mut self, node: NodeId) {
        let interval = self.agents_of(node).filter_map(interval_ms).max();
        let interval =
            interval.map_or(DEFAULT_INTERVAL, |ms| Duration::from_millis(ms.clamp(50, 600_000)));
        let lacks = |agent: &AgentRow| agent.capabilities.get(DOCKER) == Some(&false.into());
        let lacks_docker = self.agents_of(node).any(lacks);
        self.update(node, |node| {
            node.set_interval(interval);
            node.set_lacks_docker(lacks_docker);
        });
    }

    /// Highest price of any node, so that an estimate is never too low; `default` without nodes.
    pub(crate) fn highest_price(&self, default: Price) -> Price {
        let prices = self.nodes.values().map(|node| price(&node.row().spec));
        highest_price(prices).unwrap_or(default)
    }

    /// Heartbeats since the last call, for the store.
    pub(crate) fn take_unsaved_heartbeats(&mut self) -> Vec<HeartbeatRow> {
        self.nodes.values_mut().filter_map(LiveNode::take_unsaved_heartbeat).collect()
    }

    /// The caller publishes the current view of a node.
    pub(crate) fn clear_stale(&mut self, id: NodeId) {
        self.stale.remove(&id);
    }

    /// Records the nodes with room that the engine holds. The views of nodes that gained or lost a hold become stale.
    pub(crate) fn set_held(&mut self, names: &[agentaflow_engine::NodeId]) {
        let id = |name: &agentaflow_engine::NodeId| self.by_name.get(name.as_str()).copied();
        let held: BTreeSet<NodeId> = names.iter().filter_map(id).collect();
        self.stale.extend(self.held.symmetric_difference(&held));
        self.held = held;
    }

    pub(crate) fn take_stale_agents(&mut self) -> BTreeSet<AgentId> {
        std::mem::take(&mut self.stale_agents)
    }

    pub(crate) fn take_stale(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.stale)
    }
}

/// Heartbeat interval that an agent names.
fn interval_ms(agent: &AgentRow) -> Option<u64> {
    let seconds = || {
        let seconds = agent.config.get(INTERVAL_SECONDS)?.as_f64()?;
        (seconds > 0.0).then_some((seconds * 1000.0) as u64)
    };
    agent.config.get(INTERVAL).and_then(serde_json::Value::as_u64).or_else(seconds)
}
