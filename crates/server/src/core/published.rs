//! Views for readers, outside of the core's lock.
//!
//! `GET /queues`, `/auth/me`, `/gpu-workers/nodes`, `/available-nodes`, `/agents` and the names in lists of jobs come from
//! here. The core publishes a
//! changed view before it answers the request that changed it, so that a caller reads its own writes. A reader holds one of
//! these locks only for the time of a lookup.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustc_hash::FxHashMap;

use agentaflow_api::agent::Agent;
use agentaflow_api::error::ResourceKind;
use agentaflow_api::ids::{AgentId, NodeId, UserId};
use agentaflow_api::node::{GpuInstance, Node};
use agentaflow_api::queue::Queue;
use agentaflow_api::units::{Cores, GpuAmount, Stamp};
use agentaflow_engine::Price;

use super::clock::Clock;
use super::handle::NodeRef;
use super::job::{PendingReasons, QueueJobs};
use super::job_view::show_agent;
use super::ledger::{AccountSummary, AccountView};
use super::node::{NodeView, instances, price};
use super::pricing::{RunningCost, highest_price};
use super::queue_table::ROOT;
use crate::api_error::ApiError;
use crate::store::{AgentRow, QueueRow};

#[derive(Debug, Default)]
pub(crate) struct Published {
    queues: RwLock<Arc<[QueueView]>>,
    reasons: RwLock<Arc<PendingReasons>>,
    running_cost: RwLock<RunningCost>,
    nodes: RwLock<NodeViews>,
    agents: RwLock<AgentRows>,
    accounts: RwLock<FxHashMap<UserId, AccountView>>,
}

#[derive(Debug, Default)]
struct NodeViews {
    by_id: BTreeMap<NodeId, Arc<NodeView>>,
    by_name: FxHashMap<String, NodeId>,
}

#[derive(Debug, Default)]
struct AgentRows {
    by_id: BTreeMap<AgentId, Arc<AgentRow>>,
    by_name: FxHashMap<String, AgentId>,
}

/// A queue with its counters.
#[derive(Clone, Debug)]
pub(crate) struct QueueView {
    pub(crate) name: String,
    /// None for the root queue.
    pub(crate) row: Option<Arc<QueueRow>>,
    pub(crate) jobs: QueueJobs,
    pub(crate) gpu_milli: u64,
    pub(crate) cpu_milli: u64,
    /// MiB.
    pub(crate) memory: u64,
}

impl QueueView {
    fn shown(&self) -> Queue {
        let row = self.row.as_deref().cloned().unwrap_or_default();
        let mut spec = row.spec;
        spec.name.clone_from(&self.name);
        Queue {
            spec,
            pending: self.jobs.pending,
            running: self.jobs.placed(),
            gpus_used: GpuAmount(self.gpu_milli),
            cpu_used: Cores(self.cpu_milli),
            memory_used: self.memory,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl Published {
    /// Removes the views of nodes and accounts that a reload of the state no longer has. `nodes` is sorted.
    pub(crate) fn retain(&self, nodes: &[NodeId]) {
        let mut views = write(&self.nodes);
        views.by_id.retain(|id, _| nodes.binary_search(id).is_ok());
        views.by_name.retain(|_, id| nodes.binary_search(id).is_ok());
        write(&self.accounts).clear();
        *write(&self.agents) = AgentRows::default();
    }

    /// Replaces all queues; the root queue comes first.
    pub(crate) fn set_queues(&self, mut queues: Vec<QueueView>) {
        queues.sort_by(|a, b| (a.name != ROOT, &a.name).cmp(&(b.name != ROOT, &b.name)));
        *write(&self.queues) = queues.into();
    }

    pub(crate) fn queue_views(&self) -> Arc<[QueueView]> {
        read(&self.queues).clone()
    }

    pub(crate) fn set_pending_reasons(&self, reasons: PendingReasons) {
        *write(&self.reasons) = Arc::new(reasons);
    }

    pub(crate) fn pending_reasons(&self) -> Arc<PendingReasons> {
        read(&self.reasons).clone()
    }

    pub(crate) fn set_running_cost(&self, cost: RunningCost) {
        *write(&self.running_cost) = cost;
    }

    /// Cost of all running tasks.
    pub(crate) fn running_cost(&self) -> RunningCost {
        *read(&self.running_cost)
    }

    pub(crate) fn node_views(&self) -> Vec<Arc<NodeView>> {
        read(&self.nodes).by_id.values().cloned().collect()
    }

    pub(crate) fn set_node(&self, id: NodeId, view: Arc<NodeView>) {
        let mut nodes = write(&self.nodes);
        if !nodes.by_id.contains_key(&id) {
            nodes.by_name.insert(view.node().node_id.clone(), id);
        }
        nodes.by_id.insert(id, view);
    }

    pub(crate) fn remove_node(&self, id: NodeId) {
        let mut nodes = write(&self.nodes);
        if let Some(view) = nodes.by_id.remove(&id) {
            nodes.by_name.remove(&view.node().node_id);
        }
    }

    /// Replaces the record of an agent; none removes it.
    pub(crate) fn set_agent(&self, id: AgentId, row: Option<AgentRow>) {
        let mut agents = write(&self.agents);
        if let Some(old) = agents.by_id.remove(&id) {
            agents.by_name.remove(&old.agent_id);
        }
        if let Some(row) = row {
            agents.by_name.insert(row.agent_id.clone(), id);
            agents.by_id.insert(id, Arc::new(row));
        }
    }

    /// All agents by number.
    pub(crate) fn agents(&self) -> Vec<Agent> {
        let rows: Vec<Arc<AgentRow>> = read(&self.agents).by_id.values().cloned().collect();
        rows.iter().map(|row| self.shown_agent(row)).collect()
    }

    /// Agent by name or number.
    pub(crate) fn agent(&self, agent: &str) -> Option<Agent> {
        let row = {
            let agents = read(&self.agents);
            let named = agents.by_name.get(agent).copied();
            let id = named.or_else(|| agent.parse().ok())?;
            agents.by_id.get(&id).cloned()?
        };
        Some(self.shown_agent(&row))
    }

    fn shown_agent(&self, row: &AgentRow) -> Agent {
        show_agent(row, self.node_view(row.node_id).as_deref())
    }

    pub(crate) fn set_account(&self, user: UserId, account: AccountView) {
        write(&self.accounts).insert(user, account);
    }

    pub(crate) fn queues(&self) -> Vec<Queue> {
        let queues = read(&self.queues).clone();
        queues.iter().map(QueueView::shown).collect()
    }

    pub(crate) fn queue(&self, name: &str) -> Option<Queue> {
        let queues = read(&self.queues).clone();
        queues.iter().find(|queue| queue.name == name).map(QueueView::shown)
    }

    /// All nodes by number.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let views = self.node_views();
        views.iter().map(|view| view.shown()).collect()
    }

    /// Nodes on which a task of this size fits.
    pub(crate) fn nodes_with_room(&self, gpu_memory: u64, cpu_milli: u64) -> Vec<Node> {
        let views = self.node_views();
        let fitting = views.iter().filter(|view| view.has_room(gpu_memory, cpu_milli));
        fitting.map(|view| view.shown()).collect()
    }

    /// Highest price of each resource among the nodes.
    pub(crate) fn highest_price(&self, default: Price) -> Price {
        let nodes = read(&self.nodes);
        let prices = nodes.by_id.values().map(|view| price(&view.node().spec));
        highest_price(prices).unwrap_or(default)
    }

    pub(crate) fn node_count(&self) -> usize {
        read(&self.nodes).by_id.len()
    }

    pub(crate) fn has_node_named(&self, name: &str) -> bool {
        read(&self.nodes).by_name.contains_key(name)
    }

    /// Node with this `gpu-…` name.
    pub(crate) fn node_named(&self, name: &str) -> Option<Arc<NodeView>> {
        let nodes = read(&self.nodes);
        nodes.by_id.get(nodes.by_name.get(name)?).cloned()
    }

    pub(crate) fn node_view(&self, id: NodeId) -> Option<Arc<NodeView>> {
        read(&self.nodes).by_id.get(&id).cloned()
    }

    pub(crate) fn find_node(&self, node: &NodeRef) -> Result<Arc<NodeView>, ApiError> {
        let id = self.find_node_id(node)?;
        self.node_view(id).ok_or_else(|| ApiError::not_found(ResourceKind::Node, id))
    }

    pub(crate) fn find_node_id(&self, node: &NodeRef) -> Result<NodeId, ApiError> {
        let nodes = read(&self.nodes);
        let id = match node {
            NodeRef::Number(id) => nodes.by_id.contains_key(id).then_some(*id),
            NodeRef::Name(name) => nodes.by_name.get(name).copied(),
        };
        id.ok_or_else(|| node.not_found())
    }

    /// GPUs of a node with their last readings.
    pub(crate) fn node_gpus(&self, id: NodeId) -> Vec<GpuInstance> {
        self.node_view(id).map_or_else(Vec::new, |view| instances(&view.node().spec))
    }

    /// Account of a user as of now; zero for a user without bookings.
    pub(crate) fn account(&self, user: UserId, now: Stamp, clock: Clock) -> AccountSummary {
        let account = read(&self.accounts).get(&user).cloned();
        account.map_or_else(AccountSummary::default, |account| account.summary(now, clock))
    }
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
