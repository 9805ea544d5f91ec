//! The dashboard: one page for all paths below `/ui`, and its files.

use agentaflow_api::error::ResourceKind;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::Response;

use agentaflow_dashboard::{Dashboard, NOT_BUILT, accepts};

use super::app::App;
use super::routes::system::nowhere;
use crate::api_error::ApiError;

/// The page of the dashboard. Programs that ask for a path below `/ui` get an error, not a page.
pub(crate) async fn page(State(app): State<App>, headers: HeaderMap) -> Result<Response, ApiError> {
    if !accepts(&headers, header::ACCEPT, "text/html") {
        return Err(nowhere().await);
    }
    let dashboard =
        app.settings.dashboard.ok_or_else(|| ApiError::absent(ResourceKind::Path, NOT_BUILT))?;
    shell(dashboard, &headers)
}

/// Content of `index.html`.
pub(crate) fn shell(dashboard: Dashboard, headers: &HeaderMap) -> Result<Response, ApiError> {
    let page = dashboard.page(headers).map(|page| page.map(Body::from));
    page.ok_or_else(|| ApiError::absent(ResourceKind::Path, NOT_BUILT))
}

/// A file of the dashboard.
pub(crate) async fn file(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let path = request.uri().path().trim_start_matches('/');
    let found = app.settings.dashboard.and_then(|all| all.asset(path, request.headers()));
    match found {
        Some(response) => Ok(response.map(Body::from)),
        None => Err(nowhere().await),
    }
}
