//! Agents: registration, lists and changes.

use axum::Json as Answer;
use axum::extract::{Request, State};

use agentaflow_api::account::Role;
use agentaflow_api::agent::{Agent, AgentRegistration, AgentUpdate};
use agentaflow_api::ids::AgentId;

use crate::api_error::ApiError;
use crate::core::Worker;
use crate::http::answer::Listed;
use crate::http::app::App;
use crate::http::caller::{AnyCaller, peer};
use crate::http::check::{check_agent, check_agent_update};
use crate::http::limits;
use crate::http::params::Paging;
use crate::http::read::{QueryParams, Segments, Sent, body, object};
use crate::http::routes::nodes::registrant;

/// Registers an agent, or the agent of that name again. The response contains a new `api_key`; older streams end.
#[utoipa::path(post, path = "/gpu-workers/agents/register", tag = "agents", security(("registration" = [])),
    request_body(content = AgentRegistration, example = json!({"agent_id": "agent-1", "node_id": 1,
        "agent_version": "1.0.0", "capabilities": {"stream": true}})),
    responses((status = 200, description = "Agent with its key", body = Agent)))]
pub(crate) async fn register(
    State(app): State<App>,
    request: Request,
) -> Result<Answer<Agent>, ApiError> {
    let address = peer(request.extensions());
    let registrant = registrant(&app, request.headers(), None, address)?;
    let agent: AgentRegistration = object(&body(request, limits::BODY).await?)?;
    check_agent(&agent)?;
    app.core.register_agent(agent, address, registrant).await.map(Answer)
}

/// Agents, by number.
#[utoipa::path(get, path = "/gpu-workers/agents", tag = "agents", security(("user" = []), ("worker" = [])),
    params(Paging), responses((status = 200, description = "Agents", body = [Agent])))]
pub(crate) async fn list(
    State(app): State<App>,
    _: AnyCaller,
    query: QueryParams,
) -> Result<Listed<Agent>, ApiError> {
    Ok(Listed::page(app.core.agents(), query.page()?))
}

/// One agent.
#[utoipa::path(get, path = "/gpu-workers/agents/{agent_id}", tag = "agents",
    security(("user" = []), ("worker" = [])),
    params(("agent_id" = String, Path, description = "Agent name or number")),
    responses((status = 200, description = "Agent", body = Agent)))]
pub(crate) async fn show(
    State(app): State<App>,
    _: AnyCaller,
    path: Segments,
) -> Result<Answer<Agent>, ApiError> {
    app.core.agent(path.name("agent_id")?).map(Answer)
}

/// Changes an agent; for admins and the agent itself.
#[utoipa::path(put, path = "/gpu-workers/agents/{agent_id}", tag = "agents",
    security(("user" = []), ("worker" = [])),
    params(("agent_id" = String, Path, description = "Agent name or number")),
    request_body(content = AgentUpdate, example = json!({"agent_version": "1.0.1"})),
    responses((status = 200, description = "Updated agent", body = Agent)))]
pub(crate) async fn update(
    State(app): State<App>,
    who: AnyCaller,
    path: Segments,
    Sent(update): Sent<AgentUpdate>,
) -> Result<Answer<Agent>, ApiError> {
    check_agent_update(&update)?;
    let name = path.name("agent_id")?;
    let agent = app.core.agent(name)?;
    let may = match who {
        AnyCaller::User(caller) => caller.user.role == Role::Admin,
        AnyCaller::Worker(Worker::Agent { agent: id, .. }) => id == agent.id,
        AnyCaller::Worker(Worker::Node(node)) => node == agent.node_id,
        AnyCaller::Worker(Worker::Token) => false,
    };
    if !may {
        return Err(ApiError::forbidden("only admins and the agent itself can change an agent"));
    }
    app.core.update_agent(name, update).await.map(Answer)
}

/// Number of the agent in the path, if the key belongs to that agent.
pub(crate) fn own_agent(app: &App, worker: &Worker, path: &Segments) -> Result<AgentId, ApiError> {
    let Worker::Agent { agent, .. } = *worker else {
        return Err(ApiError::forbidden(
            "this call needs the key of the agent: the `api_key` in the answer to \
             POST /gpu-workers/agents/register",
        ));
    };
    let name = path.name("agent_id")?;
    if name.parse() == Ok(agent) || app.core.agent(name)?.id == agent {
        return Ok(agent);
    }
    Err(ApiError::forbidden("this key belongs to another agent than the one in the path"))
}
