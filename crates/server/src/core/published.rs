//! Views for readers, outside of the core's lock.
//!
//! `GET /queues`, `/auth/me`, `/gpu-workers/nodes` and the names in lists of jobs come from here. The core publishes a
//! changed view before it answers the request that changed it, so that a caller reads its own writes. A reader holds one of
//! these locks only for the time of a lookup.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustc_hash::FxHashMap;

use agentaflow_api::ids::{NodeId, UserId};
use agentaflow_api::node::{GpuInstance, Node};
use agentaflow_api::queue::Queue;
use agentaflow_api::units::{Cores, GpuAmount, Stamp};

use super::handle::NodeRef;
use super::job::QueueJobs;
use super::ledger::{AccountSummary, AccountView};
use super::node::{NodeView, instances};
use super::queue_table::ROOT;
use crate::api_error::ApiError;
use crate::store::QueueRow;

#[derive(Debug, Default)]
pub(crate) struct Published {
    queues: RwLock<Arc<[QueueView]>>,
    nodes: RwLock<NodeViews>,
    accounts: RwLock<FxHashMap<UserId, AccountView>>,
}

#[derive(Debug, Default)]
struct NodeViews {
    by_id: BTreeMap<NodeId, Arc<NodeView>>,
    by_name: FxHashMap<String, NodeId>,
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
            running: self.jobs.placed,
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
    }

    /// Replaces all queues; the root queue comes first.
    pub(crate) fn set_queues(&self, mut queues: Vec<QueueView>) {
        queues.sort_by(|a, b| (a.name != ROOT, &a.name).cmp(&(b.name != ROOT, &b.name)));
        *write(&self.queues) = queues.into();
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
        let views: Vec<Arc<NodeView>> = read(&self.nodes).by_id.values().cloned().collect();
        views.iter().map(|view| view.shown()).collect()
    }

    pub(crate) fn node_count(&self) -> usize {
        read(&self.nodes).by_id.len()
    }

    pub(crate) fn has_node_named(&self, name: &str) -> bool {
        read(&self.nodes).by_name.contains_key(name)
    }

    pub(crate) fn node_view(&self, id: NodeId) -> Option<Arc<NodeView>> {
        read(&self.nodes).by_id.get(&id).cloned()
    }

    pub(crate) fn find_node(&self, node: &NodeRef) -> Result<Arc<NodeView>, ApiError> {
        let id = self.find_node_id(node)?;
        self.node_view(id).ok_or_else(no_such_node)
    }

    pub(crate) fn find_node_id(&self, node: &NodeRef) -> Result<NodeId, ApiError> {
        let nodes = read(&self.nodes);
        let id = match node {
            NodeRef::Number(id) => nodes.by_id.contains_key(id).then_some(*id),
            NodeRef::Name(name) => nodes.by_name.get(name).copied(),
        };
        id.ok_or_else(no_such_node)
    }

    /// GPUs of a node with their last readings.
    pub(crate) fn node_gpus(&self, id: NodeId) -> Vec<GpuInstance> {
        self.node_view(id).map_or_else(Vec::new, |view| instances(&view.node().spec))
    }

    /// Account of a user as of now; zero for a user without bookings.
    pub(crate) fn account(&self, user: UserId, now: Stamp) -> AccountSummary {
        let account = read(&self.accounts).get(&user).cloned();
        account.map_or_else(AccountSummary::default, |account| account.summary(now))
    }
}

fn no_such_node() -> ApiError {
    ApiError::not_found("node not found; list nodes with GET /gpu-workers/nodes")
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
