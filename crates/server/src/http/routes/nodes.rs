//! Nodes: registration, heartbeats, statistics and changes.

use std::net::IpAddr;

use axum::Json as Answer;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use serde_json::Value;

use agentaflow_api::error::{Credential, TokenProblem};
use agentaflow_api::ids::{CredentialId, NodeId};
use agentaflow_api::node::{
    AvailableNodes, GpuInstance, Heartbeat, Node, NodeApproval, NodeRegistration, NodeStats,
    NodeStatus, NodeUpdate,
};
use agentaflow_api::units::{Cores, Stamp};

use crate::api_error::ApiError;
use crate::auth::Principal;
use crate::core::{NodeRef, Registrant, Worker};
use crate::http::answer::Listed;
use crate::http::app::App;
use crate::http::caller::{
    Admin, ClientAddress, User, WorkerAuth, bearer, holder, limit_unauthenticated, needs, peer,
    record_use, wrong_kind,
};
use crate::http::check::{check_heartbeat, check_node, check_node_update};
use crate::http::limits;
use crate::http::params::{NodeList, Room};
use crate::http::read::{QueryParams, Segments, Sent, body, object};

/// Registers a node, or updates the node of that name. The response contains its `api_key`, once.
#[utoipa::path(post, path = "/gpu-workers/nodes/register", tag = "nodes", security(("registration" = [])),
    request_body(content = NodeRegistration, example = json!({"node_name": "gpu-server-1", "gpu_count": 2,
        "gpu_type": "RTX 4090", "gpu_memory_total": 49152, "cpu_cores": 16, "memory_total": 32768})),
    responses((status = 200, description = "Node with its key", body = Node)))]
pub(crate) async fn register(
    State(app): State<App>,
    request: Request,
) -> Result<Answer<Node>, ApiError> {
    let address = peer(request.extensions());
    let headers = request.headers().clone();
    // Verifies the header before reading the body; without a token in the header, the body may hold it.
    let early = registrant(&app, &headers, None, address);
    let bytes = match &early {
        Err(refusal) if refusal.status == 403 || refusal.status == 429 => {
            return Err(refusal.clone());
        }
        Err(_) => body(request, limits::STRANGER).await?,
        Ok(_) => body(request, limits::BODY).await?,
    };
    let node: Result<NodeRegistration, ApiError> = object(&bytes);
    let registrant = match early {
        Ok(registrant) => registrant,
        Err(refusal) => {
            let token = node.as_ref().ok().and_then(|node| node.registration_token.as_ref());
            let token = token.ok_or(refusal)?;
            registrant(&app, &headers, Some(token.expose()), address)?
        }
    };
    let node = NodeRegistration { registration_token: None, ..node? };
    check_node(&node)?;
    app.core.register_node(node, address, registrant).await.map(Answer)
}

/// Nodes, by number.
#[utoipa::path(get, path = "/gpu-workers/nodes", tag = "nodes", security(("user" = [])), params(NodeList),
    responses((status = 200, description = "Nodes; `X-Total-Count` is their number", body = [Node])))]
pub(crate) async fn list(
    State(app): State<App>,
    _: User,
    query: QueryParams,
) -> Result<Listed<Node>, ApiError> {
    let page = query.page()?;
    let status = query.text("status")?.map(node_status).transpose()?;
    let mut nodes = app.core.nodes();
    nodes.retain(|node| status.is_none_or(|status| node.status == status));
    Ok(Listed::page(nodes, page))
}

/// One node.
#[utoipa::path(get, path = "/gpu-workers/nodes/{node_id}", tag = "nodes", security(("user" = [])),
    params(("node_id" = String, Path, description = "Node name (`gpu-…`) or number")),
    responses((status = 200, description = "Node", body = Node)))]
pub(crate) async fn show(
    State(app): State<App>,
    _: User,
    path: Segments,
) -> Result<Answer<Node>, ApiError> {
    app.core.node(&node_ref(&path)?).map(Answer)
}

/// Changes a node: cordons, uncordons or drains it, or sets its prices.
#[utoipa::path(put, path = "/gpu-workers/nodes/{node_id}", tag = "nodes", security(("user" = [])),
    params(("node_id" = String, Path, description = "Node name (`gpu-…`) or number")),
    request_body(content = NodeUpdate, example = json!({"status": "maintenance", "drain": true})),
    responses((status = 200, description = "Updated node", body = Node)))]
pub(crate) async fn update(
    State(app): State<App>,
    _: Admin,
    path: Segments,
    Sent(update): Sent<NodeUpdate>,
) -> Result<Answer<Node>, ApiError> {
    check_node_update(&update)?;
    app.core.update_node(&node_ref(&path)?, update).await.map(Answer)
}

/// Approves a registration with the name of this node that came from another address, without the key of the node.
#[utoipa::path(post, path = "/gpu-workers/nodes/{node_id}/approve", tag = "nodes", security(("user" = [])),
    params(("node_id" = String, Path, description = "Node name (`gpu-…`) or number")),
    request_body(content = NodeApproval, example = json!({"address": "192.0.2.7"})),
    responses((status = 200, description = "Node; the next registration from the address is accepted for one hour", body = Node)))]
pub(crate) async fn approve(
    State(app): State<App>,
    _: Admin,
    path: Segments,
    Sent(approval): Sent<NodeApproval>,
) -> Result<Answer<Node>, ApiError> {
    app.core.approve_node(&node_ref(&path)?, approval.address).await.map(Answer)
}

/// Deletes a node; fails while the node has live jobs.
#[utoipa::path(delete, path = "/gpu-workers/nodes/{node_id}", tag = "nodes", security(("user" = [])),
    params(("node_id" = String, Path, description = "Node name (`gpu-…`) or number")),
    responses((status = 200, description = "Removed node", body = Node)))]
pub(crate) async fn delete(
    State(app): State<App>,
    _: Admin,
    path: Segments,
) -> Result<Answer<Node>, ApiError> {
    app.core.delete_node(&node_ref(&path)?).await.map(Answer)
}

/// Records a heartbeat of a node.
#[utoipa::path(post, path = "/gpu-workers/nodes/{node_id}/heartbeat", tag = "nodes", security(("worker" = [])),
    params(("node_id" = String, Path, description = "Node name (`gpu-…`) or number")),
    request_body(content = Heartbeat, example = json!({"gpu_memory_available": 20000, "cpu_cores_available": 14,
        "current_jobs": 1, "health_status": "healthy"})),
    responses((status = 200, description = "Node", body = Node)))]
pub(crate) async fn heartbeat(
    State(app): State<App>,
    WorkerAuth(worker): WorkerAuth,
    ClientAddress(address): ClientAddress,
    path: Segments,
    Sent(beat): Sent<Heartbeat>,
) -> Result<Answer<Node>, ApiError> {
    let node = node_ref(&path)?;
    check_heartbeat(&beat)?;
    owns(&app, &worker, &node, address)?;
    same_node(&app, &node, beat.node_id.as_ref())?;
    app.core.heartbeat(&node, beat).map(Answer)
}

/// Statistics of a node.
#[utoipa::path(get, path = "/gpu-workers/nodes/{node_id}/stats", tag = "nodes", security(("user" = [])),
    params(("node_id" = String, Path, description = "Node name (`gpu-…`) or number")),
    responses((status = 200, description = "Statistics", body = NodeStats)))]
pub(crate) async fn stats(
    State(app): State<App>,
    _: User,
    path: Segments,
) -> Result<Answer<NodeStats>, ApiError> {
    let node = app.core.node(&node_ref(&path)?)?;
    let gpus = app.core.node_gpus(node.id);
    let (total, free) = (node.spec.gpu_memory_total, node.gpu_memory_available);
    let booked = total.saturating_sub(free) as f64 * 100.0 / total.max(1) as f64;
    Ok(Answer(NodeStats {
        total_gpu_memory: total,
        available_gpu_memory: free,
        total_cpu_cores: node.spec.cpu_cores,
        available_cpu_cores: node.cpu_cores_available,
        total_memory: node.spec.memory_total,
        available_memory: node.memory_available,
        current_jobs: node.current_jobs,
        max_concurrent_jobs: node.spec.max_concurrent_jobs,
        utilization_percentage: (booked * 100.0).round() / 100.0,
        gpu_utilization: gpus.iter().map(|gpu| gpu.utilization.unwrap_or(0.0)).collect(),
        temperature: all_readings(&gpus, |gpu| gpu.temperature),
        power_usage: all_readings(&gpus, |gpu| gpu.power_usage),
        simulated: node.spec.simulated,
    }))
}

/// Readings of all GPUs; empty if one is missing: clients require numbers.
fn all_readings(gpus: &[GpuInstance], reading: impl Fn(&GpuInstance) -> Option<f64>) -> Vec<f64> {
    gpus.iter().map(reading).collect::<Option<_>>().unwrap_or_default()
}

/// Nodes on which a task of this size fits now.
#[utoipa::path(get, path = "/gpu-workers/available-nodes", tag = "nodes", security(("user" = [])), params(Room),
    responses((status = 200, description = "Nodes and their number", body = AvailableNodes)))]
pub(crate) async fn available(
    State(app): State<App>,
    _: User,
    query: QueryParams,
) -> Result<Answer<AvailableNodes>, ApiError> {
    let memory = query.whole("gpu_memory_required")?.unwrap_or(0).min(limits::SIZE);
    let cpu = query.milli("cpu_cores_required")?.map_or(0, |milli| Cores(milli).0);
    let nodes = app.core.available_nodes(memory, cpu.min(limits::CPU_MILLI));
    let available_nodes = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    Ok(Answer(AvailableNodes { available_nodes, nodes }))
}

/// Node that the path names.
pub(crate) fn node_ref(path: &Segments) -> Result<NodeRef, ApiError> {
    let text = path.name("node_id")?;
    let number = text.parse().ok().filter(|number: &i64| *number > 0);
    Ok(number
        .map_or_else(|| NodeRef::Name(text.to_owned()), |number| NodeRef::Number(NodeId(number))))
}

/// Rejects a worker that may not act for this node. A registration token may act for nodes that registered from the same
/// address.
fn owns(app: &App, worker: &Worker, node: &NodeRef, address: IpAddr) -> Result<(), ApiError> {
    let asked = match node {
        NodeRef::Number(number) => *number,
        NodeRef::Name(_) => app.core.node_id(node)?,
    };
    let may = match worker {
        Worker::Node(own) | Worker::Agent { node: own, .. } => asked == *own,
        Worker::Token if app.core.registered_from(asked, address) => true,
        Worker::Token => {
            return Err(ApiError::forbidden(
                "the node registered from another address; a registration token does not suffice, use the node's key",
            ));
        }
    };
    if may {
        return Ok(());
    }
    Err(ApiError::forbidden("this key belongs to another node than the one in the path"))
}

/// Rejects a body that names another node than the path.
fn same_node(app: &App, node: &NodeRef, message: Option<&Value>) -> Result<(), ApiError> {
    let message = match message {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string().trim_end_matches(".0").to_owned(),
    };
    let direct = match node {
        NodeRef::Name(name) => *name == message,
        NodeRef::Number(number) => number.to_string() == message,
    };
    if direct {
        return Ok(());
    }
    let found = app.core.node(node)?;
    if found.node_id == message || found.id.to_string() == message {
        return Ok(());
    }
    Err(ApiError::invalid(
        "node_id",
        "`node_id` in the body is another node than the one in the path",
    ))
}

/// Verifies the credential of a registration: the key of the node or its agent, or a registration token, in the header
/// or, for clients that cannot send a header, in the body.
pub(crate) fn registrant(
    app: &App,
    headers: &HeaderMap,
    in_body: Option<&str>,
    address: IpAddr,
) -> Result<Registrant, ApiError> {
    let now = Stamp::now();
    let refused =
        |problem| limit_unauthenticated(app, address, needs(Credential::Registration, problem));
    let token = match in_body {
        Some(token) => token,
        None => bearer(headers)?.ok_or_else(|| refused(TokenProblem::Missing))?,
    };
    match holder(app, token, now) {
        Ok(Principal::Worker(Worker::Token, used)) => {
            let limited = used.map(|(id, _)| id).filter(|id| is_limited(app, *id));
            if limited.is_none() {
                record_use(app, used, now);
            }
            Ok(Registrant::Token { limited })
        }
        Ok(Principal::Worker(Worker::Node(node) | Worker::Agent { node, .. }, _)) => {
            Ok(Registrant::Key(node))
        }
        Ok(Principal::User(..)) => Err(wrong_kind(Credential::Registration, Credential::User)),
        Err(problem) => Err(refused(problem)),
    }
}

/// Returns true for a token with limited uses. The core counts them.
fn is_limited(app: &App, id: CredentialId) -> bool {
    app.core.directory(|directory| {
        directory.credentials.get(&id).is_some_and(|row| row.uses_left.is_some())
    })
}

fn node_status(text: &str) -> Result<NodeStatus, ApiError> {
    serde_json::from_value(Value::String(text.to_owned())).map_err(|_| {
        let detail = "`status` must be `pending`, `active`, `inactive`, `error` or `maintenance`";
        ApiError::invalid("status", detail)
    })
}
