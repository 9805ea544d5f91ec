//! What is asked and told about nodes.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use agentaflow_api::node::{GpuInstance, Heartbeat, Node, NodeRegistration, NodeUpdate};
use agentaflow_engine::NodeId;

use super::handle::{Core, NodeRef};
use crate::api_error::ApiError;

/// A transaction that takes longer has probably lost its database.
const LONGEST_WRITE: Duration = Duration::from_secs(10);

impl Core {
    /// Nodes, by number.
    pub fn nodes(&self) -> Vec<Node> {
        let state = self.inner.lock();
        state.nodes.keys().filter_map(|id| state.show_node(*id)).collect()
    }

    /// One node.
    pub fn node(&self, node: &NodeRef) -> Result<Node, ApiError> {
        let state = self.inner.lock();
        let id = state.find_node(node)?;
        state.show_node(id).ok_or_else(|| ApiError::not_found("there is no such node"))
    }

    /// Last readings of a node's GPUs.
    pub fn node_readings(&self, id: i64) -> Vec<GpuInstance> {
        self.inner.lock().merged_readings(id)
    }

    /// Nodes on which a task of this size would fit now.
    #[allow(clippy::unused_async, reason = "asking is a call like the others")]
    pub async fn available(&self, gpu_memory: u64, cpu_milli: u64) -> Result<Vec<Node>, ApiError> {
        let state = self.inner.lock();
        let fits = |view: &agentaflow_engine::NodeView| {
            let gpu = |gpu: &agentaflow_engine::GpuView| {
                u64::try_from(gpu.memory_free).is_ok_and(|free| free >= gpu_memory)
                    && gpu.health == agentaflow_engine::GpuHealth::Healthy
            };
            let cpu = u64::try_from(view.cpu_free).is_ok_and(|free| free >= cpu_milli);
            view.up
                && view.open
                && (gpu_memory == 0 || view.gpus.iter().any(gpu))
                && (cpu_milli == 0 || cpu)
                && view.node.max_tasks.is_none_or(|most| view.tasks < most)
        };
        let fitting = state.engine.nodes().into_iter().filter(fits).map(|view| view.node.id);
        let fitting: std::collections::BTreeSet<_> = fitting.collect();
        let fits = |id: &&i64| {
            let node = state.nodes.get(id);
            node.is_some_and(|node| fitting.contains(&NodeId::from(node.row.node_id.as_str())))
        };
        Ok(state.nodes.keys().filter(fits).filter_map(|id| state.show_node(*id)).collect())
    }

    /// A node registers, with its key in the answer.
    pub async fn register_node(
        &self,
        node: NodeRegistration,
        peer: IpAddr,
    ) -> Result<Node, ApiError> {
        let (node, key) = self
            .act(|state| {
                let (id, key) = state.register_node(node, peer)?;
                Ok((state.show_node(id).unwrap_or_default(), key))
            })
            .await?;
        Ok(Node { api_key: Some(key), ..node })
    }

    /// An admin changes a node.
    pub async fn update_node(&self, node: &NodeRef, update: NodeUpdate) -> Result<Node, ApiError> {
        self.act(|state| {
            let id = state.find_node(node)?;
            state.update_node(id, update)?;
            Ok(state.show_node(id).unwrap_or_default())
        })
        .await
    }

    /// An admin removes a node.
    pub async fn delete_node(&self, node: &NodeRef) -> Result<Node, ApiError> {
        let (node, id) = self
            .act(|state| {
                let id = state.find_node(node)?;
                let shown = state.show_node(id).unwrap_or_default();
                state.delete_node(id)?;
                Ok((shown, id))
            })
            .await?;
        self.inner.hub.close(id);
        Ok(node)
    }

    /// A sign of life. Answered from memory: nothing has to be written for it.
    #[allow(clippy::unused_async, reason = "asking is a call like the others")]
    pub async fn heartbeat(&self, node: &NodeRef, beat: Heartbeat) -> Result<Node, ApiError> {
        let shown = {
            let mut state = self.inner.lock();
            if let Some(why) = state.closed {
                return Err(ApiError::unavailable(why));
            }
            let id = state.find_node(node)?;
            // Cut off from the database, another server may already be giving our work away.
            if state.writing.is_some_and(|since| since.elapsed() > LONGEST_WRITE) {
                return Err(ApiError::unavailable("the database has not answered for a while"));
            }
            state.heartbeat(id, beat);
            state.show_node(id).unwrap_or_default()
        };
        self.inner.wake.notify_one();
        Ok(shown)
    }

    /// Stops all jobs of this node, back to waiting without the loss of a try, and takes no more work; returns when
    /// they are gone or after `within`.
    pub async fn evacuate(&self, node: &NodeRef, within: Duration) {
        let asked = self
            .act(|state| {
                let id = state.find_node(node)?;
                state.evacuate(id);
                Ok(id)
            })
            .await;
        let Ok(id) = asked else { return };
        let end = Instant::now() + within;
        let empty = || self.inner.lock().nodes.get(&id).is_none_or(|node| node.jobs.is_empty());
        while !empty() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
