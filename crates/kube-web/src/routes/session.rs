//! Login with a token, logout, and the reader.

use agentaflow_api::Stamp;
use agentaflow_api::account::{Role, User};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::Problem;
use crate::person::{MAX_TOKEN, Person, check_origin, is_token, set_cookie};
use crate::router::App;

/// Pages with calls of this program. A page that is not listed is hidden.
const PAGES: [&str; 5] = ["overview", "workloads", "gpus", "nodes", "queues"];

#[derive(Deserialize)]
pub(crate) struct Login {
    token: String,
}

pub(crate) async fn version(State(app): State<App>) -> Json<Value> {
    Json(json!({
        "name": "agentaflow",
        "version": env!("CARGO_PKG_VERSION"),
        "started_at": app.started,
        "time": Stamp::now(),
        "notice": null,
        "login": "token",
        "pages": PAGES,
    }))
}

/// Sets the cookie if the API server accepts the token.
pub(crate) async fn login(
    State(app): State<App>,
    headers: HeaderMap,
    Json(login): Json<Login>,
) -> Result<Response, Problem> {
    check_origin(&Method::POST, &headers)?;
    let token = login.token.trim();
    if token.len() > MAX_TOKEN {
        let detail =
            format!("The token is longer than {MAX_TOKEN} bytes; use one of a ServiceAccount");
        return Err(Problem::malformed(detail));
    }
    if !is_token(token) || app.sessions.user(token).await?.is_none() {
        return Err(Problem::unauthenticated("The API server does not accept this token"));
    }
    let cookie = [(header::SET_COOKIE, set_cookie(Some(token)))];
    Ok((cookie, Json(json!({}))).into_response())
}

/// Deletes the cookie. The token itself stays valid until it expires.
pub(crate) async fn logout(
    State(app): State<App>,
    headers: HeaderMap,
    person: Person,
) -> Result<Response, Problem> {
    check_origin(&Method::POST, &headers)?;
    app.sessions.forget(&person.token);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, set_cookie(None))]).into_response())
}

pub(crate) async fn me(person: Person) -> Json<User> {
    let username = person.user.name;
    Json(User { username, role: Role::User, active: true, ..User::default() })
}
