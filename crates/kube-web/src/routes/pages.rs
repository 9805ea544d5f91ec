//! Files of the pages.

use agentaflow_dashboard::NOT_BUILT;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;

use crate::answer::Problem;
use crate::router::App;

/// One page for all paths below `/ui`.
pub(crate) async fn page(State(app): State<App>, headers: HeaderMap) -> Result<Response, Problem> {
    let page = app.dashboard.and_then(|dashboard| dashboard.page(&headers));
    let page = page.ok_or_else(|| Problem::not_found(NOT_BUILT))?;
    Ok(page.map(Body::from))
}

pub(crate) async fn file(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let path = request.uri().path().trim_start_matches('/');
    let file = app.dashboard.and_then(|dashboard| dashboard.asset(path, request.headers()));
    file.map(|file| file.map(Body::from)).ok_or_else(|| Problem::not_found("File not found"))
}
