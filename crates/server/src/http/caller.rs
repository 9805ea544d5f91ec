//! Authenticated callers as handler arguments: only admins reach a handler that takes an [`Admin`].

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderName, Method, header};

use agentaflow_api::account::Role;
use agentaflow_api::error::{Credential, TokenProblem};
use agentaflow_api::ids::{CredentialId, UserId};
use agentaflow_api::units::Stamp;

use super::app::{App, Peer};
use crate::api_error::ApiError;
use crate::auth::{PresentedToken, Principal, check_host, check_origin, cookie, known, presented};
use crate::core::{Caller, Worker};
use crate::store::{Change, CredentialRow};

/// Any user.
#[derive(Clone, Debug)]
pub(crate) struct User(pub(crate) Caller);

/// A user with write access: not a viewer.
#[derive(Clone, Debug)]
pub(crate) struct Writer(pub(crate) Caller);

/// An admin.
#[derive(Clone, Debug)]
pub(crate) struct Admin(pub(crate) Caller);

/// A node or agent with its key, or a registration token.
#[derive(Clone, Debug)]
pub(crate) struct WorkerAuth(pub(crate) Worker);

/// A user or a worker.
#[derive(Clone, Debug)]
pub(crate) enum AnyCaller {
    User(Caller),
    Worker(Worker),
}

/// Client address of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// Error for a call without a valid credential of this kind.
pub(crate) fn needs(credential: Credential, problem: TokenProblem) -> ApiError {
    let how = match credential {
        Credential::Registration => {
            "A registration token is required: `Authorization: Bearer <token>`. The token is in the file \
             `registration-token` of the server's data directory; an admin creates more with POST /registration-tokens"
        }
        Credential::Worker => {
            "The key of the node or agent is required: `Authorization: Bearer <api_key>`. The response to POST \
             /gpu-workers/nodes/register (or agents/register) contains `api_key`; the registration token is in the \
             file `registration-token` of the server's data directory"
        }
        _ => {
            "A user token is required: `Authorization: Bearer <token>`. Log in with POST /auth/login, create a key \
             with POST /auth/api-keys, or use the key in the file `admin-token` of the server's data directory"
        }
    };
    let message = match problem {
        TokenProblem::Missing => how.to_owned(),
        _ => format!("{}. {how}", agentaflow_explain::error::token_problem(problem)),
    };
    ApiError::unauthenticated(message).needs(credential).token(problem)
}

/// Error for a call with a valid credential of the wrong kind.
pub(crate) fn wrong_kind(needed: Credential, sent: Credential) -> ApiError {
    let error = needs(needed, TokenProblem::Missing);
    let message = format!("{}. The request has a token of another kind", error.message);
    ApiError::forbidden(message).needs(needed).sent(sent)
}

impl FromRequestParts<App> for User {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        match identify(parts, app, Credential::User)? {
            AnyCaller::User(caller) => Ok(Self(caller)),
            AnyCaller::Worker(_) => Err(wrong_kind(Credential::User, Credential::Worker)),
        }
    }
}

impl FromRequestParts<App> for Writer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let User(caller) = User::from_request_parts(parts, app).await?;
        if caller.user.role == Role::Viewer {
            return Err(ApiError::forbidden("Viewers have read-only access"));
        }
        Ok(Self(caller))
    }
}

impl FromRequestParts<App> for Admin {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let User(caller) = User::from_request_parts(parts, app).await?;
        if caller.user.role != Role::Admin {
            return Err(ApiError::forbidden("Admin role required"));
        }
        Ok(Self(caller))
    }
}

impl FromRequestParts<App> for WorkerAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        match identify(parts, app, Credential::Worker)? {
            AnyCaller::Worker(worker) => Ok(Self(worker)),
            AnyCaller::User(_) => Err(wrong_kind(Credential::Worker, Credential::User)),
        }
    }
}

impl FromRequestParts<App> for ClientAddress {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        Ok(Self(peer(&parts.extensions)))
    }
}

impl FromRequestParts<App> for AnyCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        identify(parts, app, Credential::User)
    }
}

/// Returns true if the caller may see objects of other users.
pub(crate) fn sees_all(caller: &Caller) -> bool {
    matches!(caller.user.role, Role::Admin | Role::Viewer)
}

/// Client address of a request.
pub(crate) fn peer(extensions: &Extensions) -> IpAddr {
    extensions.get::<Peer>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0)
}

/// Holder of a token that does not come in a header.
pub(crate) fn holder(app: &App, token: &str, now: Stamp) -> Result<Principal, TokenProblem> {
    let token = presented(&app.auth.jwt, token);
    app.core.directory(|directory| known(directory, &token, now))
}

/// Counts a call without a valid token by address; returns the error to send.
pub(crate) fn limit_unauthenticated(app: &App, address: IpAddr, refusal: ApiError) -> ApiError {
    match app.auth.unauthenticated.take(address) {
        Ok(()) => refusal,
        Err(seconds) => {
            ApiError::too_many("Too many requests without a valid token from this address", seconds)
        }
    }
}

/// Token of the `Authorization` header.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let wrong = || {
        ApiError::unauthenticated("The Authorization header must be `Bearer <token>`")
            .token(TokenProblem::Header)
    };
    let text = value.to_str().map_err(|_| wrong())?;
    let (scheme, token) = text.trim().split_once(' ').ok_or_else(wrong)?;
    let token = token.trim();
    let fits = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && !token.contains(' ');
    if fits { Ok(Some(token)) } else { Err(wrong()) }
}

/// Value of a cookie of this server, after the checks that every use of a cookie needs.
pub(crate) fn browser_cookie<'a>(
    app: &App,
    headers: &'a HeaderMap,
    method: &Method,
    name: &str,
) -> Result<Option<&'a str>, ApiError> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let mut all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let Some(value) = all.find_map(|header| cookie(header, name)) else { return Ok(None) };
    let host = text(header::HOST);
    if method.is_safe() {
        check_host(&app.site, host)?;
    } else {
        check_origin(&app.site, text(header::ORIGIN), host)?;
    }
    Ok(Some(value))
}

fn identify(parts: &Parts, app: &App, needed: Credential) -> Result<AnyCaller, ApiError> {
    let address = peer(&parts.extensions);
    find(parts, app, needed).map_err(|refusal| match refusal.status {
        401 => limit_unauthenticated(app, address, refusal),
        _ => refusal,
    })
}

fn find(parts: &Parts, app: &App, needed: Credential) -> Result<AnyCaller, ApiError> {
    let (token, by_cookie) = if let Some(token) = bearer(&parts.headers)? {
        (token, false)
    } else {
        let name = &app.cookies.access;
        let found = browser_cookie(app, &parts.headers, &parts.method, name)?;
        (found.ok_or_else(|| needs(needed, TokenProblem::Missing))?, true)
    };
    let now = Stamp::now();
    let token = presented(&app.auth.jwt, token);
    // A cookie may only hold a session.
    if by_cookie && !matches!(token, PresentedToken::Session(_)) {
        return Err(needs(needed, TokenProblem::Unrecognised));
    }
    let found = app.core.directory(|directory| known(directory, &token, now));
    match found {
        Ok(Principal::User(user, key)) => {
            within_rate(app, user.id)?;
            record_use(app, key, now);
            Ok(AnyCaller::User(Caller { user: Arc::new(*user), by_cookie }))
        }
        Ok(Principal::Worker(worker, key)) => {
            record_use(app, key, now);
            Ok(AnyCaller::Worker(worker))
        }
        Err(problem) => Err(needs(needed, problem)),
    }
}

fn within_rate(app: &App, user: UserId) -> Result<(), ApiError> {
    app.auth
        .accounts
        .take(user)
        .map_err(|seconds| ApiError::too_many("Rate limit of this account exceeded", seconds))
}

/// Records the use of a key: asynchronously, and at most once a minute.
pub(crate) fn record_use(app: &App, used: Option<(CredentialId, Option<Stamp>)>, now: Stamp) {
    let Some((id, last)) = used else { return };
    if !app.auth.should_record_use(id, last, now) {
        return;
    }
    let core = app.core.clone();
    tokio::spawn(async move {
        let noted = core.write::<()>(Box::new(move |directory, _, now| {
            let row = directory.credentials.get(&id);
            let change = row.map(|row| {
                Change::Credential(Box::new(CredentialRow {
                    last_used_at: Some(now),
                    ..row.clone()
                }))
            });
            Ok((change.into_iter().collect(), ()))
        }));
        if let Err(refusal) = noted.await {
            tracing::debug!(%refusal, "Cannot record the use of a key");
        }
    });
}
