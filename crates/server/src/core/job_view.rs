//! Jobs and agents as the API shows them.

use agentaflow_api::agent::{Agent, AgentStatus};
use agentaflow_api::ids::MicroUsd;
use agentaflow_api::job::{Job, JobStatus, TaskPlace};
use agentaflow_api::node::Health;
use agentaflow_api::pending::PendingReason;
use agentaflow_api::units::{Dollars, Stamp};

use super::node::NodeView;
use super::pricing::{self, RunningCost};
use super::published::Published;
use crate::store::{AgentRow, JobRow, TaskAssignment};

/// A job as the API shows it. The cost includes running tasks. `username` is the owner's name, `pending` the reason of a
/// pending job.
pub(crate) fn show_job(
    row: JobRow,
    username: Option<String>,
    pending: Option<PendingReason>,
    published: &Published,
    now: Stamp,
) -> Job {
    let running = RunningCost::of_job(&row).at(now);
    let price_per_hour = matches!(row.state.status, JobStatus::Scheduled | JobStatus::Running)
        .then(|| dollars(pricing::hourly_cost(&row)));
    let JobRow { id, user_id, spec, secret_names, trace, created_at, state, .. } = row;
    let placed = state.status != JobStatus::Pending;
    let pending = pending.filter(|_| !placed);
    let first = state.tasks.first();
    let simulated = first.is_some_and(|task| {
        let node = published.node_view(task.node);
        !task.grants.is_empty() && node.is_some_and(|node| node.node().spec.simulated)
    });
    let gpus: Vec<String> =
        state.tasks.iter().flat_map(|task| pricing::gpu_names(&task.grants)).collect();
    let duration = match (state.completed_at, state.started_at) {
        (None, Some(from)) => Some(now.0.saturating_sub(from.0).max(0) as u64),
        (Some(_), Some(_)) => Some(state.ran_ms),
        _ => None,
    };
    let tasks = state.tasks.iter().filter(|_| placed).map(|task| show_task(task, published));
    let first = first.filter(|_| placed);
    let kubernetes = first.and_then(|task| task.kubernetes.as_ref());
    Job {
        id,
        user_id,
        status: state.status,
        assigned_node_id: first.map(|task| task.node),
        assigned_gpu_id: (placed && !gpus.is_empty()).then(|| gpus.join(",").into()),
        k8s_pod_name: kubernetes.map(|object| object.pod_name.clone()),
        k8s_job_name: kubernetes.map(|object| object.job_name.clone()),
        k8s_namespace: kubernetes.map(|object| object.namespace.clone()),
        gpu_memory_used: state.usage.gpu_memory,
        cpu_cores_used: state.usage.cpu_cores,
        memory_used: state.usage.memory,
        storage_used: state.usage.storage,
        gpu_usage: state.gpu.map(|account| account.usage),
        scheduled_at: state.scheduled_at,
        started_at: state.started_at,
        completed_at: state.completed_at,
        duration_seconds: duration.map(|ms| ms as f64 / 1000.0),
        cost: Dollars(state.cost.0.saturating_add(running.0)),
        created_at,
        updated_at: state.updated_at,
        exit_code: state.exit_code,
        end_reason: state.end_reason.filter(|_| state.status.is_final()),
        end_cause: state.end_cause.filter(|_| state.status.is_final()),
        trace_id: trace.map(|trace| trace.trace_id),
        attempt: state.epoch,
        retries_used: state.retries_used,
        secret_env_names: secret_names,
        cancel_requested: state.cancel_requested,
        simulated,
        tasks: tasks.collect(),
        wait_reason: pending
            .as_ref()
            .map(|reason| agentaflow_explain::pending::reason(reason, now)),
        pending_reason: pending,
        price_per_hour,
        username,
        output_data: state.output_data,
        error_message: state.error_message,
        spec,
    }
}

fn show_task(task: &TaskAssignment, published: &Published) -> TaskPlace {
    let node = published.node_view(task.node);
    let node = node.as_ref().map(|view| view.node());
    TaskPlace {
        task: task.task,
        node_id: node.map_or_else(String::new, |node| node.node_id.clone()),
        node_name: node.map_or_else(|| task.node.to_string(), |node| node.spec.node_name.clone()),
        gpus: pricing::gpu_names(&task.grants),
        state: task.state,
        exit_code: task.exit_code,
    }
}

/// An agent as the API shows it; `node` is the node that the agent works for.
pub(crate) fn show_agent(row: &AgentRow, view: Option<&NodeView>) -> Agent {
    let connected = view.is_some_and(|view| view.is_connected(row.id));
    let node = view.map(NodeView::node);
    let row = row.clone();
    Agent {
        id: row.id,
        agent_id: row.agent_id,
        agent_version: row.agent_version,
        config: row.config,
        capabilities: row.capabilities,
        api_endpoint: row.api_endpoint,
        websocket_endpoint: row.websocket_endpoint,
        node_id: row.node_id,
        status: if connected { AgentStatus::Active } else { AgentStatus::Inactive },
        health_status: node.map_or(Health::Unknown, |node| node.health_status),
        last_heartbeat: node.and_then(|node| node.last_heartbeat),
        created_at: row.created_at,
        updated_at: row.updated_at,
        started_at: row.started_at,
        api_key: None,
    }
}

fn dollars(amount: MicroUsd) -> Dollars {
    Dollars(amount.0)
}
