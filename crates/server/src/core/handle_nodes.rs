//! Calls about nodes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentaflow_api::ids::NodeId;
use agentaflow_api::node::{GpuInstance, Heartbeat, Node, NodeRegistration, NodeUpdate};

use super::claims::approval_required;
use super::handle::{Core, NodeRef, Registrant};
use super::node::LiveNode;
use crate::api_error::ApiError;

/// A transaction that takes longer has probably lost its database.
const LONGEST_WRITE: Duration = Duration::from_secs(10);

impl Core {
    /// All nodes by number.
    pub fn nodes(&self) -> Vec<Node> {
        self.inner.published.nodes()
    }

    pub fn node(&self, node: &NodeRef) -> Result<Node, ApiError> {
        Ok(self.inner.published.find_node(node)?.shown())
    }

    pub fn node_id(&self, node: &NodeRef) -> Result<NodeId, ApiError> {
        self.inner.published.find_node_id(node)
    }

    /// GPUs of a node with their last readings.
    pub fn node_gpus(&self, id: NodeId) -> Vec<GpuInstance> {
        self.inner.published.node_gpus(id)
    }

    /// Nodes on which a task of this size fits now.
    pub fn available_nodes(&self, gpu_memory: u64, cpu_milli: u64) -> Vec<Node> {
        self.inner.published.nodes_with_room(gpu_memory, cpu_milli)
    }

    /// Registers a node. The response has its key.
    pub async fn register_node(
        &self,
        node: NodeRegistration,
        peer: IpAddr,
        registrant: Registrant,
    ) -> Result<Node, ApiError> {
        let name = node.node_name.clone();
        let registered = self.change(|state| state.register_node(node, peer, registrant)).await?;
        let registered = registered.ok_or_else(|| approval_required(&name, peer))?;
        let node = self.node(&NodeRef::Number(registered.id))?;
        Ok(Node { api_key: Some(registered.key), ..node })
    }

    /// Approves the pending registration of a node, from `address` if given.
    pub async fn approve_node(
        &self,
        node: &NodeRef,
        address: Option<String>,
    ) -> Result<Node, ApiError> {
        self.change(|state| {
            let id = state.nodes.find(node)?;
            state.approve_claim(id, address.as_deref())
        })
        .await?;
        self.node(node)
    }

    /// Changes a node on behalf of an admin.
    pub async fn update_node(&self, node: &NodeRef, update: NodeUpdate) -> Result<Node, ApiError> {
        self.change(|state| {
            let id = state.nodes.find(node)?;
            state.update_node(id, update)
        })
        .await?;
        self.node(node)
    }

    /// Deletes a node. Returns its last state.
    pub async fn delete_node(&self, node: &NodeRef) -> Result<Node, ApiError> {
        let (id, view) = self
            .change(|state| {
                let id = state.nodes.find(node)?;
                let view = state.node_view(id);
                state.delete_node(id)?;
                Ok((id, view))
            })
            .await?;
        self.inner.outboxes.close(id);
        Ok(view.map(|view| view.shown()).unwrap_or_default())
    }

    /// Records a heartbeat. It is answered from memory, and nothing is written for it.
    pub fn heartbeat(&self, node: &NodeRef, heartbeat: Heartbeat) -> Result<Node, ApiError> {
        let (view, lease_ms) = {
            let mut state = self.inner.lock();
            // Without its database, this server may have been replaced by another that requeues the jobs of the node.
            if !self.inner.store.is_exclusive() {
                state.journal.check_open()?;
                if state.journal.is_writing_longer_than(LONGEST_WRITE) {
                    return Err(ApiError::unavailable("the database has not answered for a while"));
                }
            }
            let id = state.nodes.find(node)?;
            state.record_heartbeat(id, heartbeat);
            let view = state.node_view(id).map(Arc::new);
            state.nodes.clear_stale(id);
            if let Some(view) = &view {
                self.inner.published.set_node(id, view.clone());
            }
            (view, state.nodes.get(id).map(lease_ms))
        };
        self.inner.wake.notify_one();
        let node = view.map(|view| view.shown()).unwrap_or_default();
        Ok(Node { lease_ms, ..node })
    }

    /// Moves all jobs off a node without the loss of a retry, and accepts no more. Returns once they are gone, or after
    /// `limit`.
    pub async fn evacuate(&self, node: &NodeRef, limit: Duration) {
        let asked = self
            .change(|state| {
                let id = state.nodes.find(node)?;
                state.evacuate_node(id);
                Ok(id)
            })
            .await;
        let Ok(id) = asked else { return };
        let end = Instant::now() + limit;
        let empty = || self.inner.lock().nodes.get(id).is_none_or(|node| !node.has_tasks());
        while !empty() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn lease_ms(node: &LiveNode) -> u64 {
    node.lease_length().as_millis() as u64
}
