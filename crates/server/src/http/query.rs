//! Rejection of query parameters that a call does not have: a mistyped filter must not mean no filter.

use std::sync::OnceLock;

use axum::extract::Request;
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::RefOr;
use utoipa::openapi::path::{Operation, ParameterIn};

use super::limits;
use crate::api_error::ApiError;

/// Probes of load balancers, which may add parameters of their own.
const PROBES: [&str; 3] = ["/healthz", "/readyz", "/health"];

/// Query parameters of the calls of one path; none where there is no such call.
#[derive(Debug, Default)]
struct PathCalls {
    get: Option<Vec<String>>,
    post: Option<Vec<String>>,
    put: Option<Vec<String>>,
    delete: Option<Vec<String>>,
}

/// Rejects unknown query parameters. The OpenAPI document lists the known ones.
pub(super) async fn known_parameters(request: Request, next: Next) -> Response {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    if !query.is_empty()
        && !PROBES.contains(&path)
        && let Err(refusal) = check(path, request.method(), query)
    {
        return refusal.into_response();
    }
    next.run(request).await
}

fn check(path: &str, method: &Method, query: &str) -> Result<(), ApiError> {
    // A path without a variable segment takes precedence, as in the router.
    let template = |(template, _): &&(String, PathCalls)| matches(template, path);
    let exact = calls().iter().find(|(template, _)| template == path);
    let Some((_, calls)) = exact.or_else(|| calls().iter().find(template)) else { return Ok(()) };
    let known = match *method {
        Method::GET | Method::HEAD => &calls.get,
        Method::POST => &calls.post,
        Method::PUT => &calls.put,
        Method::DELETE => &calls.delete,
        _ => return Ok(()),
    };
    let Some(known) = known else { return Ok(()) };
    let mut names = url::form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name);
    let Some(unknown) = names.find(|name| !known.iter().any(|known| known == name)) else {
        return Ok(());
    };
    let shown = &unknown[..unknown.floor_char_boundary(limits::NAME)];
    let remedy = if known.is_empty() {
        "this call has none".to_owned()
    } else {
        format!("known parameters: {}", known.join(", "))
    };
    Err(ApiError::invalid(shown, format!("unknown query parameter `{shown}`; {remedy}")))
}

/// Returns true if the segments of a path match a template, in which `{…}` is any segment.
fn matches(template: &str, path: &str) -> bool {
    let same = |(wanted, given): (&str, &str)| wanted.starts_with('{') || wanted == given;
    template.split('/').count() == path.split('/').count()
        && template.split('/').zip(path.split('/')).all(same)
}

fn calls() -> &'static [(String, PathCalls)] {
    static CALLS: OnceLock<Vec<(String, PathCalls)>> = OnceLock::new();
    CALLS.get_or_init(|| {
        let names = |operation: &Option<Operation>| {
            let all = operation.as_ref()?.parameters.iter().flatten();
            let query = all.filter_map(|parameter| match parameter {
                RefOr::T(own) if own.parameter_in == ParameterIn::Query => Some(own.name.clone()),
                _ => None,
            });
            Some(query.collect())
        };
        let paths = super::described().paths.paths.into_iter();
        paths
            .map(|(path, item)| {
                let (get, post) = (names(&item.get), names(&item.post));
                let (put, delete) = (names(&item.put), names(&item.delete));
                (path, PathCalls { get, post, put, delete })
            })
            .collect()
    })
}
