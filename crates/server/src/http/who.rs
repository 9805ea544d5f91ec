//! Who is calling, as an argument of handlers: a handler that takes an [`Admin`] cannot be reached by others.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderName, Method, header};

use agentaflow_api::account::Role;
use agentaflow_api::ids::UserId;
use agentaflow_api::units::Stamp;

use super::app::{App, Peer};
use crate::api_error::ApiError;
use crate::auth::{
    Known, Presented, Unknown, address_key, check_host, check_origin, cookie, known, presented,
};
use crate::core::{Caller, Worker};
use crate::store::{Change, CredentialRow};

/// Any user.
#[derive(Clone, Debug)]
pub(crate) struct User(pub(crate) Caller);

/// A user who may change things: not a viewer.
#[derive(Clone, Debug)]
pub(crate) struct Writer(pub(crate) Caller);

/// An admin.
#[derive(Clone, Debug)]
pub(crate) struct Admin(pub(crate) Caller);

/// A machine with a key or a registration token.
#[derive(Clone, Debug)]
pub(crate) struct WorkerAuth(pub(crate) Worker);

/// A user or a machine.
#[derive(Clone, Debug)]
pub(crate) enum Anyone {
    User(Caller),
    Worker(Worker),
}

const NEEDS_USER: &str = "this call needs a user's token: `Authorization: Bearer <token>`; log in with \
    POST /auth/login, make a key with POST /auth/api-keys, or use the one in the file `admin-token` of the \
    server's data directory";
pub(crate) const NEEDS_REGISTRATION: &str = "this call needs a registration token: `Authorization: Bearer \
    <token>`; it is in the file `registration-token` of the server's data directory, and an admin can make \
    more with POST /registration-tokens";
const NEEDS_WORKER: &str = "this call needs the key of the node or agent: `Authorization: Bearer <api_key>`; \
    the `api_key` is in the answer to POST /gpu-workers/nodes/register (or agents/register), and the \
    registration token is in the file `registration-token` of the server's data directory";

impl FromRequestParts<App> for User {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        match identify(parts, app, NEEDS_USER)? {
            Anyone::User(caller) => Ok(Self(caller)),
            Anyone::Worker(_) => {
                Err(ApiError::forbidden(format!("{NEEDS_USER}; a machine's key was sent")))
            }
        }
    }
}

impl FromRequestParts<App> for Writer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let User(caller) = User::from_request_parts(parts, app).await?;
        if caller.user.role == Role::Viewer {
            return Err(ApiError::forbidden("viewers can look at everything and change nothing"));
        }
        Ok(Self(caller))
    }
}

impl FromRequestParts<App> for Admin {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let User(caller) = User::from_request_parts(parts, app).await?;
        if caller.user.role != Role::Admin {
            return Err(ApiError::forbidden("only admins can do this"));
        }
        Ok(Self(caller))
    }
}

impl FromRequestParts<App> for WorkerAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        match identify(parts, app, NEEDS_WORKER)? {
            Anyone::Worker(worker) => Ok(Self(worker)),
            Anyone::User(_) => {
                Err(ApiError::forbidden(format!("{NEEDS_WORKER}; a user's token was sent")))
            }
        }
    }
}

impl FromRequestParts<App> for Anyone {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        identify(parts, app, NEEDS_USER)
    }
}

/// Whether the caller sees what belongs to others.
pub(crate) fn sees_all(caller: &Caller) -> bool {
    matches!(caller.user.role, Role::Admin | Role::Viewer)
}

/// The address that a request came from.
pub(crate) fn peer(extensions: &Extensions) -> IpAddr {
    extensions.get::<Peer>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0)
}

/// Who holds this token, if anybody: for tokens that do not come in a header.
pub(crate) fn holder(app: &App, token: &str, now: Stamp) -> Result<Known, Unknown> {
    let token = presented(&app.auth.jwt, token);
    app.core.directory(|directory| known(directory, &token, now))
}

/// A stranger's try, which is counted by address.
pub(crate) fn stranger(app: &App, address: IpAddr, refusal: ApiError) -> ApiError {
    match app.auth.strangers.take(address_key(address)) {
        Ok(()) => refusal,
        Err(seconds) => {
            ApiError::too_many("too many calls without a valid token from this address", seconds)
        }
    }
}

/// The token of the `Authorization` header.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let wrong = || {
        ApiError::unauthenticated(
            "the Authorization header must be `Bearer <token>`, and nothing else",
        )
    };
    let text = value.to_str().map_err(|_| wrong())?;
    let (scheme, token) = text.trim().split_once(' ').ok_or_else(wrong)?;
    let token = token.trim();
    let fits = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && !token.contains(' ');
    if fits { Ok(Some(token)) } else { Err(wrong()) }
}

/// The value of a cookie of ours, after the checks that all use of cookies needs.
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

fn identify(parts: &Parts, app: &App, needs: &str) -> Result<Anyone, ApiError> {
    let address = peer(&parts.extensions);
    find(parts, app, needs).map_err(|refusal| match refusal.status {
        401 => stranger(app, address, refusal),
        _ => refusal,
    })
}

fn find(parts: &Parts, app: &App, needs: &str) -> Result<Anyone, ApiError> {
    let (token, by_cookie) = if let Some(token) = bearer(&parts.headers)? {
        (token, false)
    } else {
        let name = &app.cookies.access;
        let found = browser_cookie(app, &parts.headers, &parts.method, name)?;
        (found.ok_or_else(|| ApiError::unauthenticated(needs))?, true)
    };
    let now = Stamp::now();
    let token = presented(&app.auth.jwt, token);
    // A cookie holds a session and nothing else.
    if by_cookie && !matches!(token, Presented::Session(_)) {
        return Err(ApiError::unauthenticated(needs));
    }
    let found = app.core.directory(|directory| known(directory, &token, now));
    match found {
        Ok(Known::User(user, key)) => {
            within_rate(app, user.id)?;
            note_use(app, key, now);
            Ok(Anyone::User(Caller { user: Arc::new(*user), by_cookie }))
        }
        Ok(Known::Worker(worker, key)) => {
            note_use(app, key, now);
            Ok(Anyone::Worker(worker))
        }
        Err(why) => Err(ApiError::unauthenticated(format!("{}. {}", why.words(), capital(needs)))),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn within_rate(app: &App, user: UserId) -> Result<(), ApiError> {
    app.auth.accounts.take(user).map_err(|seconds| {
        ApiError::too_many("too many requests for this account; slow down a little", seconds)
    })
}

/// Writes down that a key was used: later, and at most once a minute.
pub(crate) fn note_use(app: &App, used: Option<(i64, Option<Stamp>)>, now: Stamp) {
    let Some((id, last)) = used else { return };
    if !app.auth.worth_noting(id, last, now) {
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
            tracing::debug!(%refusal, "the use of a key could not be written down");
        }
    });
}
