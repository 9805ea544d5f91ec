//! Nodes and queues, which have no namespace.

use agentaflow_kube_core::names;
use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::answer::Problem;
use crate::person::Person;
use crate::router::App;
use crate::rows::GROUP;
use crate::sight::may_list;

/// Header with the number of all rows.
pub(crate) const TOTAL: &str = "x-total-count";
/// Most rows of a response.
pub(crate) const MOST: usize = 1000;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Page {
    skip: usize,
    limit: Option<usize>,
}

/// Readings of GPUs come from the monitors' reports, for readers who may list them.
pub(crate) async fn nodes(
    State(app): State<App>,
    person: Person,
    Query(page): Query<Page>,
) -> Result<Response, Problem> {
    let nodes = may_list(&app.rights, &person.user, "", "nodes", "");
    let reports = may_list(&app.rights, &person.user, GROUP, "gpunodes", &app.system);
    let (nodes, reports) = tokio::try_join!(nodes, reports)?;
    if !nodes {
        return Err(hidden("nodes"));
    }
    let rows = app.board.rows().await?;
    let nodes = if reports { &rows.nodes } else { &rows.bare_nodes };
    let limit = page.limit.unwrap_or(MOST).min(MOST);
    let shown: Vec<_> = nodes.iter().skip(page.skip).take(limit).collect();
    Ok(([(TOTAL, nodes.len().to_string())], Json(shown)).into_response())
}

pub(crate) async fn queues(State(app): State<App>, person: Person) -> Result<Response, Problem> {
    if !may_list(&app.rights, &person.user, GROUP, "gpuqueues", "").await? {
        return Err(hidden("queues"));
    }
    let rows = app.board.rows().await?;
    Ok(([(TOTAL, rows.queues.len().to_string())], Json(&rows.queues)).into_response())
}

fn hidden(what: &str) -> Problem {
    let role = names::NODE_VIEWER_ROLE;
    Problem::forbidden(format!(
        "You may not list {what}; ask for a ClusterRoleBinding to the ClusterRole {role}"
    ))
}
