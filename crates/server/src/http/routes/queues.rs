//! Queues: quotas of the cluster.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;

use agentaflow_api::error::ResourceKind;
use agentaflow_api::queue::{Queue, QueueSpec};

use crate::api_error::ApiError;
use crate::http::answer::Listed;
use crate::http::app::App;
use crate::http::caller::{Admin, User};
use crate::http::check::check_queue;
use crate::http::params::Paging;
use crate::http::read::{Exact, QueryParams, Segments};

/// Queues, by name.
#[utoipa::path(get, path = "/queues", tag = "queues", security(("user" = [])), params(Paging),
    responses((status = 200, description = "Queues with their usage", body = [Queue])))]
pub(crate) async fn list(
    State(app): State<App>,
    _: User,
    query: QueryParams,
) -> Result<Listed<Queue>, ApiError> {
    Ok(Listed::page(app.core.queues(), query.page()?))
}

/// Creates a queue.
#[utoipa::path(post, path = "/queues", tag = "queues", security(("user" = [])),
    request_body(content = QueueSpec, example = json!({"name": "research", "guaranteed": {"gpus": 4},
        "limit": {"gpus": 8}})),
    responses((status = 201, description = "Queue", body = Queue)))]
pub(crate) async fn create(
    State(app): State<App>,
    _: Admin,
    Exact(queue): Exact<QueueSpec>,
) -> Result<(StatusCode, Answer<Queue>), ApiError> {
    check_queue(&queue)?;
    let (queue, _) = app.core.put_queue(queue, true).await?;
    Ok((StatusCode::CREATED, Answer(queue)))
}

/// One queue.
#[utoipa::path(get, path = "/queues/{name}", tag = "queues", security(("user" = [])),
    params(("name" = String, Path, description = "Queue name")),
    responses((status = 200, description = "Queue", body = Queue)))]
pub(crate) async fn show(
    State(app): State<App>,
    _: User,
    path: Segments,
) -> Result<Answer<Queue>, ApiError> {
    let name = path.name("name")?;
    app.core.queue(name).map(Answer).ok_or_else(|| ApiError::not_found(ResourceKind::Queue, name))
}

/// Creates or replaces a queue.
#[utoipa::path(put, path = "/queues/{name}", tag = "queues", security(("user" = [])),
    params(("name" = String, Path, description = "Queue name")),
    request_body(content = QueueSpec, example = json!({"weight": 200, "limit": {"gpus": 16}})),
    responses((status = 200, description = "Updated queue", body = Queue),
        (status = 201, description = "New queue", body = Queue)))]
pub(crate) async fn put(
    State(app): State<App>,
    _: Admin,
    path: Segments,
    Exact(queue): Exact<QueueSpec>,
) -> Result<(StatusCode, Answer<Queue>), ApiError> {
    let name = path.name("name")?;
    if !queue.name.is_empty() && queue.name != name {
        let detail = "`name` in the body is another queue than the one in the path";
        return Err(ApiError::invalid("name", detail));
    }
    let queue = QueueSpec { name: name.to_owned(), ..queue };
    check_queue(&queue)?;
    let (queue, new) = app.core.put_queue(queue, false).await?;
    Ok((if new { StatusCode::CREATED } else { StatusCode::OK }, Answer(queue)))
}

/// Deletes a queue; fails while the queue has jobs or child queues.
#[utoipa::path(delete, path = "/queues/{name}", tag = "queues", security(("user" = [])),
    params(("name" = String, Path, description = "Queue name")),
    responses((status = 204, description = "Deleted")))]
pub(crate) async fn delete(
    State(app): State<App>,
    _: Admin,
    path: Segments,
) -> Result<StatusCode, ApiError> {
    app.core.delete_queue(path.name("name")?).await?;
    Ok(StatusCode::NO_CONTENT)
}
