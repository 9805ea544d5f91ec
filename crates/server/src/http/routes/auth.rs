//! Login, logout, and the account of the caller.

use std::net::IpAddr;

use axum::Json as Answer;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use agentaflow_api::account::{Login, Refresh, Register, Tokens, User as Shown, UserUpdate};
use agentaflow_api::error::ErrorCode;
use agentaflow_api::ids::UserId;
use agentaflow_api::units::Secret;

use crate::api_error::ApiError;
use crate::auth::{
    self, ACCESS_SECONDS, Device, Opened, PresentedToken, UserPatch, check_host, check_origin,
    end_session, end_session_named, has_session_from, open_session, presented, set_cookie,
    update_user, use_link,
};
use crate::http::answer::page;
use crate::http::app::App;
use crate::http::caller::{User, bearer, browser_cookie, peer};
use crate::http::check::{check_password, check_register, check_user_update};
use crate::http::limits;
use crate::http::read::{Exact, QueryParams, body, object, object_or_nothing};
use crate::http::routes::users::shown;

/// Path of the refresh cookie.
const REFRESH_PATH: &str = "/auth";
/// Lifetime of the refresh cookie.
const REFRESH_SECONDS: u64 = 30 * 24 * 3600;
/// Lifetime of the cookie of a device.
const DEVICE_SECONDS: u64 = 365 * 24 * 3600;

/// Signs up a user: with the code of an invitation, or without one if sign-up is open.
#[utoipa::path(post, path = "/auth/register", tag = "auth",
    request_body(content = Register, example = json!({"username": "ada", "password": "correct horse battery",
        "invite": "afi_…"})),
    responses((status = 201, description = "User; log in next", body = Shown)))]
pub(crate) async fn register(
    State(app): State<App>,
    request: Request,
) -> Result<(StatusCode, Answer<Shown>), ApiError> {
    slow_down(&app, &request)?;
    let new: Register = object(&body(request, limits::LOGIN).await?)?;
    if new.invite.is_none() && !app.settings.open_signup {
        return Err(ApiError::forbidden(
            "sign-up is closed here: ask an admin for an invitation and send its code as `invite`",
        ));
    }
    check_register(&new)?;
    free_of_queues(&app, &new)?;
    let hash = app.auth.passwords.hash(&new.password).await?;
    let open = app.settings.open_signup;
    let write = auth::register(new.username, new.email, hash, new.invite.as_ref(), open);
    let user = app.core.write(write).await?;
    Ok((StatusCode::CREATED, Answer(shown(&app, &user))))
}

/// Logs in: returns tokens, or sets cookies for a browser.
#[utoipa::path(post, path = "/auth/login", tag = "auth",
    request_body(content = Login, example = json!({"username": "ada", "password": "correct horse battery"})),
    responses((status = 200, description = "Tokens; empty for a cookie login", body = Tokens)))]
pub(crate) async fn login(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let address = peer(request.extensions());
    let headers = request.headers().clone();
    let device = presented_device(&app, &headers);
    // Strangers at the address of a device must not lock it out.
    if device.is_none() {
        take_login(&app, address)?;
    }
    let bytes = body(request, limits::LOGIN).await?;
    let form = is_form(&headers) && !bytes.trim_ascii_start().starts_with(b"{");
    let mut login = if form { login_form(&bytes) } else { object(&bytes)? };
    if let Some(email) = login.email.take().filter(|_| login.username.is_empty()) {
        login.username = username_of(&app, email);
    }
    if login.cookie {
        check_origin(&app.site, text(&headers, &header::ORIGIN), text(&headers, &header::HOST))?;
    }
    if login.username.is_empty() || login.username.len() > limits::NAME {
        return Err(ApiError::invalid("username", "`username` or `email` is missing or too long"));
    }
    take_try(&app, &login.username, address, device)?;
    let user = verified(&app, &login).await?;
    let opened = app.core.write(open_session(user, address, app.auth.jwt.clone())?).await?;
    if !form && !login.cookie {
        return Ok(Answer(opened.tokens).into_response());
    }
    let response = if form { to_start() } else { Answer(Tokens::default()).into_response() };
    let mut response = with_cookies(&app, &headers, &opened, response);
    let token = Device::issue(user, &app.auth.jwt)?;
    let secure = is_secure(&app, &headers);
    let cookie =
        set_cookie(&app.cookies.device, token.expose(), REFRESH_PATH, DEVICE_SECONDS, secure);
    append_cookie(&mut response, &cookie);
    Ok(response)
}

fn take_login(app: &App, address: IpAddr) -> Result<(), ApiError> {
    app.auth.logins.take(address).map_err(|seconds| {
        ApiError::too_many("too many logins from this address; try again later", seconds)
    })
}

/// Device that a login comes from, by its cookie or the token of an earlier login.
fn presented_device(app: &App, headers: &HeaderMap) -> Option<Device> {
    let cookie = browser_cookie(app, headers, &Method::POST, &app.cookies.device).ok().flatten();
    let bearer = bearer(headers).ok().flatten();
    cookie.into_iter().chain(bearer).find_map(|token| {
        app.core.directory(|directory| Device::holding(directory, &app.auth.jwt, token))
    })
}

/// Takes one try of the password of a user.
fn take_try(
    app: &App,
    username: &str,
    address: IpAddr,
    device: Option<Device>,
) -> Result<(), ApiError> {
    let has_device = device.is_some();
    let named = app.core.directory(|directory| directory.user_named(username).map(|user| user.id));
    let taken = if let Some(device) = device.filter(|device| Some(device.user) == named) {
        app.auth.password_tries.take_device(device)
    } else {
        if has_device {
            take_login(app, address)?;
        }
        let now = app.core.now();
        let has_session =
            || app.core.directory(|all| has_session_from(all, username, address, now));
        app.auth.password_tries.take(username, address, has_session)
    };
    taken.map_err(|seconds| {
        let message = "too many logins with this name; keys still work";
        ApiError::too_many(message, seconds)
    })
}

/// Exchanges a refresh token for new tokens. A second use of a token ends its session.
#[utoipa::path(post, path = "/auth/refresh", tag = "auth",
    request_body(content = Refresh, example = json!({"refresh_token": "aff_…"})),
    responses((status = 200, description = "New tokens", body = Tokens)))]
pub(crate) async fn refresh(
    State(app): State<App>,
    request: Request,
) -> Result<Response, ApiError> {
    slow_down(&app, &request)?;
    let headers = request.headers().clone();
    let asked = optional(request).await?;
    let by_cookie = asked.refresh_token.is_none();
    let token = match asked.refresh_token {
        Some(token) => token,
        None => refresh_cookie(&app, &headers)?.ok_or_else(|| {
            ApiError::unauthenticated(
                "`refresh_token` is missing: the one from the answer to POST /auth/login",
            )
        })?,
    };
    let opened = app.core.write(auth::refresh(&token, app.auth.jwt.clone())?).await??;
    Ok(if by_cookie {
        with_cookies(&app, &headers, &opened, Answer(Tokens::default()).into_response())
    } else {
        Answer(opened.tokens).into_response()
    })
}

/// Ends the session of the refresh token, the cookie or the access token.
#[utoipa::path(post, path = "/auth/logout", tag = "auth", security(("user" = [])),
    request_body(content = Refresh, example = json!({})),
    responses((status = 204, description = "Session ended")))]
pub(crate) async fn logout(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    slow_down(&app, &request)?;
    let headers = request.headers().clone();
    let token = optional(request).await?.refresh_token;
    let token = match token {
        Some(token) => Some(token),
        None => refresh_cookie(&app, &headers)?,
    };
    let claims = bearer(&headers)?.map(|token| presented(&app.auth.jwt, token));
    match (token, claims) {
        (Some(token), _) => app.core.write(end_session(&token)).await?,
        (None, Some(PresentedToken::Session(claims))) => {
            app.core.write(end_session_named(claims.sid)).await?;
        }
        (None, Some(PresentedToken::Key(_))) => {
            return Err(ApiError::conflict(
                ErrorCode::NotASession,
                "a key has no session to end; revoke it with DELETE /auth/api-keys/{id}",
            ));
        }
        (None, None) => {
            return Err(ApiError::unauthenticated(
                "nothing to log out: send the access token in the Authorization header, or `refresh_token`",
            ));
        }
    }
    let plain = || StatusCode::NO_CONTENT.into_response();
    let mut response = if is_form(&headers) { to_start() } else { plain() };
    cookies(&app, &headers, &mut response, "", "");
    Ok(response)
}

/// Account of the caller.
#[utoipa::path(get, path = "/auth/me", tag = "auth", security(("user" = [])),
    responses((status = 200, description = "Authenticated user", body = Shown)))]
pub(crate) async fn me(State(app): State<App>, User(caller): User) -> Answer<Shown> {
    Answer(shown(&app, &caller.user))
}

/// Changes the caller's mail address or password. A new password ends all sessions.
#[utoipa::path(put, path = "/auth/me", tag = "auth", security(("user" = [])),
    request_body(content = UserUpdate, example = json!({"email": "ada@example.com"})),
    responses((status = 200, description = "Updated user", body = Shown)))]
pub(crate) async fn update_me(
    State(app): State<App>,
    User(caller): User,
    Exact(update): Exact<UserUpdate>,
) -> Result<Answer<Shown>, ApiError> {
    check_user_update(&update)?;
    let foreign = update.role.is_some()
        || update.grants.is_some()
        || update.active.is_some()
        || update.default_queue.is_some()
        || update.spending_limit.is_some()
        || update.prepaid.is_some();
    if foreign {
        return Err(ApiError::forbidden(
            "Only `email` and `password` can be changed here; an admin changes other fields with PUT /users/{id}",
        ));
    }
    let password_hash = match &update.password {
        Some(password) => {
            old_password(&app, &caller.user, update.old_password.as_ref()).await?;
            Some(app.auth.passwords.hash(password).await?)
        }
        None => None,
    };
    let patch = UserPatch { email: update.email, password_hash, ..UserPatch::default() };
    let row = app.core.write(update_user(caller.user.id, patch)).await?;
    Ok(Answer(shown(&app, &row)))
}

/// Exchanges a one-time link: sets the cookies of a browser and leads to the start page.
#[utoipa::path(get, path = "/auth/link", tag = "auth",
    params(("code" = String, Query, description = "Code of the login link")),
    responses((status = 200, description = "Page that redirects to the start page, logged in")))]
pub(crate) async fn link(
    State(app): State<App>,
    query: QueryParams,
    request: Request,
) -> Result<Response, ApiError> {
    slow_down(&app, &request)?;
    let headers = request.headers().clone();
    // A HEAD request of a mail scanner or a browser must not use up the link.
    if request.method() == Method::HEAD {
        return Ok(StatusCode::OK.into_response());
    }
    check_host(&app.site, text(&headers, &header::HOST))?;
    let code = query.text("code")?.ok_or_else(|| {
        ApiError::unauthenticated("`code` is missing: open the whole link that the server printed")
    })?;
    let opened = app.core.write(use_link(code, app.auth.jwt.clone())?).await?;
    // Not a redirect: after a link on another site, browsers would not send strict cookies with it.
    let onward = "<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=\"0;url=/\"><title>agentaflow</title>\
                  <a href=/>agentaflow</a>";
    Ok(with_cookies(&app, &headers, &opened, page(onward.to_owned())))
}

/// Returns true if the request is an HTML form. Pages of the server have no scripts that could send JSON.
fn is_form(headers: &HeaderMap) -> bool {
    let kind = text(headers, &header::CONTENT_TYPE).unwrap_or_default();
    kind.starts_with("application/x-www-form-urlencoded")
}

fn login_form(bytes: &[u8]) -> Login {
    let mut login = Login { cookie: true, ..Login::default() };
    for (name, value) in url::form_urlencoded::parse(bytes) {
        match &*name {
            "username" => login.username = value.into_owned(),
            "password" => login.password = Secret(value.into_owned()),
            _ => {}
        }
    }
    login
}

/// Redirect to the start page.
fn to_start() -> Response {
    let to = [(header::LOCATION, HeaderValue::from_static("/"))];
    (StatusCode::SEE_OTHER, to).into_response()
}

/// Rate limit by address, for calls without an authenticated user.
fn slow_down(app: &App, request: &Request) -> Result<(), ApiError> {
    app.auth.sessions.take(peer(request.extensions())).map_err(|seconds| {
        ApiError::too_many("too many logins or logouts from this address; try again later", seconds)
    })
}

async fn optional(request: Request) -> Result<Refresh, ApiError> {
    object_or_nothing(&body(request, limits::LOGIN).await?)
}

/// Rejects a sign-up with a name that a queue lists: the name would grant the rights of its intended owner.
fn free_of_queues(app: &App, new: &Register) -> Result<(), ApiError> {
    let name = new.username.as_deref().filter(|_| new.invite.is_none());
    let Some(queue) = name.and_then(|name| app.core.queue_naming(name)) else { return Ok(()) };
    let detail = format!("the name is reserved: queue `{queue}` lists it; choose another");
    Err(ApiError::conflict(ErrorCode::NameTaken, detail))
}

/// Name of the only user with this mail address; the address itself, which is no name, if there is none.
fn username_of(app: &App, email: String) -> String {
    let wanted = email.to_lowercase();
    let name = app.core.directory(|directory| {
        let has_it = |user: &&crate::store::UserRow| {
            user.email.as_ref().is_some_and(|known| known.to_lowercase() == wanted)
        };
        let mut users = directory.users.values().filter(has_it);
        users.next().filter(|_| users.next().is_none()).map(|user| user.username.clone())
    });
    name.unwrap_or(email)
}

/// Id of the user, if name and password match. Takes the same time for unknown names.
async fn verified(app: &App, login: &Login) -> Result<UserId, ApiError> {
    let found = app.core.directory(|directory| {
        let user = directory.user_named(&login.username).filter(|user| user.active);
        user.and_then(|user| Some((user.id, user.password_hash.clone()?)))
    });
    let (id, hash) = found.map_or((UserId(0), None), |(id, hash)| (id, Some(hash)));
    let sane = check_password("password", &login.password).is_ok();
    let password = if sane { login.password.clone() } else { Secret::default() };
    if app.auth.passwords.verify(&password, hash).await? && sane {
        return Ok(id);
    }
    Err(ApiError::unauthenticated("the name or the password is wrong"))
}

/// Verifies the old password, so that a borrowed browser or key cannot replace it.
async fn old_password(
    app: &App,
    user: &crate::store::UserRow,
    old: Option<&Secret>,
) -> Result<(), ApiError> {
    let Some(hash) = user.password_hash.clone() else { return Ok(()) };
    app.auth
        .password_tries
        .take_device(Device::of_session(user.id))
        .map_err(|seconds| ApiError::too_many("too many tries; try again later", seconds))?;
    let right = match old {
        Some(old) => app.auth.passwords.verify(old, Some(hash)).await?,
        None => false,
    };
    if right {
        return Ok(());
    }
    Err(ApiError::invalid("old_password", "`old_password` is missing or wrong"))
}

fn refresh_cookie(app: &App, headers: &HeaderMap) -> Result<Option<Secret>, ApiError> {
    let found = browser_cookie(app, headers, &Method::POST, &app.cookies.refresh)?;
    Ok(found.map(Secret::from))
}

fn with_cookies(
    app: &App,
    headers: &HeaderMap,
    opened: &Opened,
    mut response: Response,
) -> Response {
    let tokens = &opened.tokens;
    let (access, refresh) = (tokens.access_token.expose(), tokens.refresh_token.expose());
    cookies(app, headers, &mut response, access, refresh);
    response
}

fn cookies(app: &App, headers: &HeaderMap, response: &mut Response, access: &str, refresh: &str) {
    let secure = is_secure(app, headers);
    let all = [
        set_cookie(&app.cookies.access, access, "/", ACCESS_SECONDS, secure),
        set_cookie(&app.cookies.refresh, refresh, REFRESH_PATH, REFRESH_SECONDS, secure),
    ];
    for cookie in all {
        append_cookie(response, &cookie);
    }
}

fn append_cookie(response: &mut Response, cookie: &str) {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

/// Returns true if the browser reached the server through TLS.
fn is_secure(app: &App, headers: &HeaderMap) -> bool {
    let origin = text(headers, &header::ORIGIN).unwrap_or_default();
    let proxied = headers.get("x-forwarded-proto").and_then(|value| value.to_str().ok());
    app.site.certificates.is_some() || proxied == Some("https") || origin.starts_with("https://")
}

fn text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
