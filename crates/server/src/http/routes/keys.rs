//! API keys of users and registration tokens of machines.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;

use agentaflow_api::account::{ApiKey, ApiKeyCreate, Role};
use agentaflow_api::error::ErrorCode;
use agentaflow_api::ids::{CredentialId, UserId};

use crate::api_error::ApiError;
use crate::auth::{
    ADMIN_TOKEN, NewKey, REGISTRATION_TOKEN, create_key, list_keys, revoke_key, rotate_key,
};
use crate::core::Caller;
use crate::http::answer::Listed;
use crate::http::app::App;
use crate::http::caller::{Admin, User};
use crate::http::check::check_key;
use crate::http::params::Paging;
use crate::http::read::{Exact, QueryParams, Segments};
use crate::secrets::write_secret_file;
use crate::store::CredentialKind;

/// Creates an API key for the caller. The response contains the key, once.
#[utoipa::path(post, path = "/auth/api-keys", tag = "auth", security(("user" = [])),
    request_body(content = ApiKeyCreate, example = json!({"name": "laptop", "expires_in_days": 90})),
    responses((status = 201, description = "Key", body = ApiKey)))]
pub(crate) async fn create(
    State(app): State<App>,
    User(caller): User,
    Exact(new): Exact<ApiKeyCreate>,
) -> Result<(StatusCode, Answer<ApiKey>), ApiError> {
    make(&app, &caller, CredentialKind::ApiKey, new).await
}

/// API keys of the caller.
#[utoipa::path(get, path = "/auth/api-keys", tag = "auth", security(("user" = [])), params(Paging),
    responses((status = 200, description = "Keys without their secrets", body = [ApiKey])))]
pub(crate) async fn list(
    State(app): State<App>,
    User(caller): User,
    query: QueryParams,
) -> Result<Listed<ApiKey>, ApiError> {
    let page = query.page()?;
    let own = Some(caller.user.id);
    let keys = app.core.directory(|directory| list_keys(directory, CredentialKind::ApiKey, own));
    Ok(Listed::page(keys, page))
}

/// Revokes an API key. Admins may revoke keys of all users.
#[utoipa::path(delete, path = "/auth/api-keys/{id}", tag = "auth", security(("user" = [])),
    params(("id" = i64, Path, description = "Key number")),
    responses((status = 200, description = "Revoked key", body = ApiKey)))]
pub(crate) async fn revoke(
    State(app): State<App>,
    User(caller): User,
    path: Segments,
) -> Result<Answer<ApiKey>, ApiError> {
    let id = path.number("id")?;
    app.core.write(revoke_key(CredentialKind::ApiKey, id, owner(&caller))).await.map(Answer)
}

/// Replaces the secret of a key; the old secret is no longer valid. For `admin-token`, the server also writes the file.
#[utoipa::path(post, path = "/auth/api-keys/{id}/rotate", tag = "auth", security(("user" = [])),
    params(("id" = i64, Path, description = "Key number")),
    responses((status = 200, description = "Key with its new secret", body = ApiKey)))]
pub(crate) async fn rotate(
    State(app): State<App>,
    User(caller): User,
    path: Segments,
) -> Result<Answer<ApiKey>, ApiError> {
    let id = path.number("id")?;
    let in_file = is_in_file(&app, id);
    // An admin who rotates the key of another user would obtain it; the server's own key belongs to all admins.
    let all = in_file && caller.user.role == Role::Admin;
    let owner = (!all).then_some(caller.user.id);
    let key = app.core.write(rotate_key(CredentialKind::ApiKey, id, owner)?).await?;
    if let Some(secret) = key.key.as_ref().filter(|_| in_file) {
        write_file(&app, ADMIN_TOKEN, secret.expose());
    }
    Ok(Answer(key))
}

/// Creates a registration token for nodes and agents. The response contains the token, once.
#[utoipa::path(post, path = "/registration-tokens", tag = "registration tokens", security(("user" = [])),
    request_body(content = ApiKeyCreate, example = json!({"name": "rack 7", "expires_in_seconds": 3600, "uses": 1})),
    responses((status = 201, description = "Token", body = ApiKey)))]
pub(crate) async fn create_token(
    State(app): State<App>,
    Admin(caller): Admin,
    Exact(new): Exact<ApiKeyCreate>,
) -> Result<(StatusCode, Answer<ApiKey>), ApiError> {
    make(&app, &caller, CredentialKind::Registration, new).await
}

/// Registration tokens.
#[utoipa::path(get, path = "/registration-tokens", tag = "registration tokens", security(("user" = [])),
    params(Paging), responses((status = 200, description = "Tokens without their secrets", body = [ApiKey])))]
pub(crate) async fn list_tokens(
    State(app): State<App>,
    _: Admin,
    query: QueryParams,
) -> Result<Listed<ApiKey>, ApiError> {
    let page = query.page()?;
    let kind = CredentialKind::Registration;
    let tokens = app.core.directory(|directory| list_keys(directory, kind, None));
    Ok(Listed::page(tokens, page))
}

/// Revokes a registration token. Nodes and agents that registered with it stay.
#[utoipa::path(delete, path = "/registration-tokens/{id}", tag = "registration tokens", security(("user" = [])),
    params(("id" = i64, Path, description = "Token number")),
    responses((status = 200, description = "Revoked token", body = ApiKey)))]
pub(crate) async fn revoke_token(
    State(app): State<App>,
    _: Admin,
    path: Segments,
) -> Result<Answer<ApiKey>, ApiError> {
    let id = path.number("id")?;
    app.core.write(revoke_key(CredentialKind::Registration, id, None)).await.map(Answer)
}

async fn make(
    app: &App,
    caller: &Caller,
    kind: CredentialKind,
    new: ApiKeyCreate,
) -> Result<(StatusCode, Answer<ApiKey>), ApiError> {
    check_key(&new)?;
    if matches!(new.name.as_str(), ADMIN_TOKEN | REGISTRATION_TOKEN) {
        let detail = "this name belongs to the key in the server's data directory; choose another";
        return Err(ApiError::conflict(ErrorCode::NameTaken, detail));
    }
    let days = new.expires_in_days.map(|days| u64::from(days) * 24 * 3600);
    let new = NewKey {
        kind,
        user: caller.user.id,
        name: new.name,
        seconds: new.expires_in_seconds.or(days),
        uses: new.uses.filter(|_| kind == CredentialKind::Registration),
        replace: false,
    };
    let key = app.core.write(create_key(new)?).await?;
    Ok((StatusCode::CREATED, Answer(key)))
}

/// Owner filter of the caller; none for admins, who may access the keys of all users.
fn owner(caller: &Caller) -> Option<UserId> {
    (caller.user.role != Role::Admin).then_some(caller.user.id)
}

/// Returns true for the key in the file `admin-token`. No other key can have that name.
fn is_in_file(app: &App, id: CredentialId) -> bool {
    app.core.directory(|directory| {
        directory.credentials.get(&id).is_some_and(|row| row.name == ADMIN_TOKEN)
    })
}

/// Writes the rotated key to its file. A failure is only logged: the caller has the key, and the next start repairs the
/// file.
fn write_file(app: &App, name: &str, secret: &str) {
    let path = app.settings.data_dir.join(name);
    if let Err(error) = write_secret_file(&path, format!("{secret}\n").as_bytes()) {
        tracing::error!(error = &error as &dyn std::error::Error, path = %path.display(),
            "Cannot write the rotated key to its file");
    }
}
