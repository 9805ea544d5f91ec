//! Users, for admins.

use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;

use agentaflow_api::account::{User as Shown, UserCreate, UserUpdate};
use agentaflow_api::billing::Credit;
use agentaflow_api::error::ResourceKind;
use agentaflow_api::ids::{MicroUsd, UserId};

use crate::api_error::ApiError;
use crate::auth::{UserPatch, create_user, deactivate_user, show_user, update_user};
use crate::http::answer::Listed;
use crate::http::app::App;
use crate::http::caller::Admin;
use crate::http::check::{check_user, check_user_update, plain};
use crate::http::limits;
use crate::http::params::Paging;
use crate::http::read::{Exact, QueryParams, Segments};
use crate::store::UserRow;

/// Creates a user. Without a password, the response contains a code with which the user signs up at `/auth/register`.
#[utoipa::path(post, path = "/users", tag = "users", security(("user" = [])),
    request_body(content = UserCreate, example = json!({"username": "ada", "role": "user", "grants": ["process"]})),
    responses((status = 201, description = "User", body = Shown)))]
pub(crate) async fn create(
    State(app): State<App>,
    _: Admin,
    Exact(new): Exact<UserCreate>,
) -> Result<(StatusCode, Answer<Shown>), ApiError> {
    check_user(&new)?;
    let queue = new.default_queue.unwrap_or_else(|| "root".to_owned());
    known_queue(&app, &queue)?;
    let password_hash = match &new.password {
        Some(password) => Some(app.auth.passwords.hash(password).await?),
        None => None,
    };
    let user = UserRow {
        username: new.username,
        email: new.email.filter(|email| !email.is_empty()),
        role: new.role.unwrap_or_default(),
        grants: new.grants,
        default_queue: queue,
        prepaid: new.prepaid,
        spending_limit: new.spending_limit.map(|limit| MicroUsd(limit.0)),
        password_hash,
        ..UserRow::default()
    };
    let (user, invite) = app.core.write(create_user(user)?).await?;
    Ok((StatusCode::CREATED, Answer(Shown { invite, ..shown(&app, &user) })))
}

/// Users, by number.
#[utoipa::path(get, path = "/users", tag = "users", security(("user" = [])), params(Paging),
    responses((status = 200, description = "Users", body = [Shown])))]
pub(crate) async fn list(
    State(app): State<App>,
    _: Admin,
    query: QueryParams,
) -> Result<Listed<Shown>, ApiError> {
    let page = query.page()?;
    let rows = app.core.directory(|directory| directory.users.values().cloned().collect());
    let Listed { rows, total } = Listed::<UserRow>::page(rows, page);
    Ok(Listed { rows: rows.iter().map(|row| shown(&app, row)).collect(), total })
}

/// One user.
#[utoipa::path(get, path = "/users/{id}", tag = "users", security(("user" = [])),
    params(("id" = i64, Path, description = "User number")),
    responses((status = 200, description = "User", body = Shown)))]
pub(crate) async fn show(
    State(app): State<App>,
    _: Admin,
    path: Segments,
) -> Result<Answer<Shown>, ApiError> {
    let row = find(&app, path.number("id")?)?;
    Ok(Answer(shown(&app, &row)))
}

/// Changes a user. A new password ends all sessions.
#[utoipa::path(put, path = "/users/{id}", tag = "users", security(("user" = [])),
    params(("id" = i64, Path, description = "User number")),
    request_body(content = UserUpdate, example = json!({"role": "viewer"})),
    responses((status = 200, description = "Updated user", body = Shown)))]
pub(crate) async fn update(
    State(app): State<App>,
    _: Admin,
    path: Segments,
    Exact(update): Exact<UserUpdate>,
) -> Result<Answer<Shown>, ApiError> {
    let id = path.number("id")?;
    check_user_update(&update)?;
    find(&app, id)?;
    if let Some(queue) = &update.default_queue {
        known_queue(&app, queue)?;
    }
    let password_hash = match &update.password {
        Some(password) => Some(app.auth.passwords.hash(password).await?),
        None => None,
    };
    let changes = UserPatch {
        email: update.email,
        password_hash,
        role: update.role,
        grants: update.grants,
        active: update.active,
        default_queue: update.default_queue,
        spending_limit: update.spending_limit.map(|limit| MicroUsd(limit.0)),
        prepaid: update.prepaid,
    };
    let row = app.core.write(update_user(id, changes)).await?;
    Ok(Answer(shown(&app, &row)))
}

/// Deactivates a user: logins, keys and sessions are no longer valid. Jobs and ledger entries stay.
#[utoipa::path(delete, path = "/users/{id}", tag = "users", security(("user" = [])),
    params(("id" = i64, Path, description = "User number")),
    responses((status = 200, description = "Updated user", body = Shown)))]
pub(crate) async fn delete(
    State(app): State<App>,
    _: Admin,
    path: Segments,
) -> Result<Answer<Shown>, ApiError> {
    let id = path.number("id")?;
    let row = app.core.write(deactivate_user(id)).await?;
    Ok(Answer(shown(&app, &row)))
}

/// Books a credit for a user, or a withdrawal if the amount is negative.
#[utoipa::path(post, path = "/users/{id}/credit", tag = "users", security(("user" = [])),
    params(("id" = i64, Path, description = "User number")),
    request_body(content = Credit, example = json!({"amount": 100, "note": "November"})),
    responses((status = 200, description = "User with the new balance", body = Shown)))]
pub(crate) async fn credit(
    State(app): State<App>,
    _: Admin,
    path: Segments,
    Exact(credit): Exact<Credit>,
) -> Result<Answer<Shown>, ApiError> {
    let id = path.number("id")?;
    if credit.amount.0 == 0 || credit.amount.0.unsigned_abs() > limits::CREDIT {
        let detail =
            "`amount` is missing, 0 or too large: dollars to pay in, negative to take back";
        return Err(ApiError::invalid("amount", detail));
    }
    plain("note", credit.note.as_deref().unwrap_or_default(), limits::TEXT)?;
    find(&app, id)?;
    app.core.credit(id, MicroUsd(credit.amount.0), credit.note).await?;
    let row = find(&app, id)?;
    Ok(Answer(shown(&app, &row)))
}

/// Converts a stored user for the API.
pub(crate) fn shown(app: &App, row: &UserRow) -> Shown {
    show_user(row, app.core.account(row.id))
}

fn find(app: &App, id: UserId) -> Result<UserRow, ApiError> {
    let row = app.core.directory(|directory| directory.users.get(&id).cloned());
    row.ok_or_else(|| ApiError::not_found(ResourceKind::User, id))
}

fn known_queue(app: &App, name: &str) -> Result<(), ApiError> {
    if name == "root" || app.core.queue(name).is_some() {
        return Ok(());
    }
    Err(ApiError::unknown_object("default_queue", ResourceKind::Queue, name))
}
