//! Users: creation, invitation, change and deactivation.

use agentaflow_api::account::{Role, User};
use agentaflow_api::error::{ErrorCode, ResourceKind};
use agentaflow_api::ids::{MicroUsd, UserId};
use agentaflow_api::units::{Dollars, Secret, Stamp};

use super::sessions::end_all;
use super::tokens::{Minted, digest, mint};
use crate::api_error::ApiError;
use crate::core::{AccountSummary, DirectoryWrite};
use crate::directory::Directory;
use crate::store::{Change, CredentialKind, CredentialRow, UserRow};

/// Validity of an invitation.
const INVITE_MS: i64 = 7 * 24 * 3600 * 1000;

/// Changes to a user; absent fields stay.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the fields of `UserRow`")]
pub struct UserPatch {
    pub email: Option<String>,
    pub password_hash: Option<String>,
    pub role: Option<Role>,
    pub grants: Option<Vec<String>>,
    pub active: Option<bool>,
    pub default_queue: Option<String>,
    /// A negative amount removes the limit.
    pub spending_limit: Option<MicroUsd>,
    pub prepaid: Option<bool>,
}

/// Creates a user. Without a password, creates an invitation and returns its code.
pub fn create_user(user: UserRow) -> Result<DirectoryWrite<(UserRow, Option<Secret>)>, ApiError> {
    let invite = match &user.password_hash {
        Some(_) => None,
        None => Some(mint(CredentialKind::Invite, "invitation")?),
    };
    Ok(Box::new(move |directory, ids, now| {
        free_name(directory, &user.username)?;
        ids.0.user.0 += 1;
        let user = UserRow { id: ids.0.user, created_at: now, active: true, ..user };
        let mut changes = vec![Change::User(Box::new(user.clone()))];
        let code = invite.map(|Minted { secret, row }| {
            ids.0.credential = ids.0.credential.next();
            changes.push(Change::Credential(Box::new(CredentialRow {
                id: ids.0.credential,
                user_id: Some(user.id),
                created_at: now,
                expires_at: Some(Stamp(now.0 + INVITE_MS)),
                ..row
            })));
            secret
        });
        Ok((changes, (user, code)))
    }))
}

/// Signs a user up: with the code of an invitation, or as a new user if sign-up is open.
pub fn register(
    username: Option<String>,
    email: Option<String>,
    password_hash: String,
    invite: Option<&Secret>,
    open: bool,
) -> DirectoryWrite<UserRow> {
    let invite = invite.map(|code| digest(code.expose()));
    Box::new(move |directory, ids, now| {
        let Some(code) = invite else {
            let user = sign_up(directory, username, email, password_hash, open)?;
            ids.0.user.0 += 1;
            let user = UserRow { id: ids.0.user, created_at: now, ..user };
            return Ok((vec![Change::User(Box::new(user.clone()))], user));
        };
        let found = directory.credential(&code, now);
        let found = found.filter(|row| row.kind == CredentialKind::Invite);
        let invited = found.and_then(|row| directory.users.get(&row.user_id?));
        let Some(invited) = invited.filter(|user| user.active) else {
            return Err(ApiError::forbidden(
                "this invitation was used already or has ended; ask an admin for a new one",
            ));
        };
        invited_name(username.as_deref(), &invited.username)?;
        let user = UserRow {
            email: email.or_else(|| invited.email.clone()),
            password_hash: Some(password_hash),
            ..invited.clone()
        };
        let mut changes = end_invites(directory, user.id);
        changes.push(Change::User(Box::new(user.clone())));
        Ok((changes, user))
    })
}

/// Changes a user. A new password ends all sessions and the invitation.
pub fn update_user(id: UserId, patch: UserPatch) -> DirectoryWrite<UserRow> {
    Box::new(move |directory, _, _| {
        let old = find(directory, id)?;
        let mut user = old.clone();
        let mut changes = Vec::new();
        if patch.password_hash.is_some() || patch.active == Some(false) {
            user.session_epoch = user.session_epoch.wrapping_add(1);
            changes = end_all(directory, id);
        }
        // The code of an invitation must not set a password once the user has one.
        if patch.password_hash.is_some() {
            changes.extend(end_invites(directory, id));
        }
        apply(&mut user, patch);
        keeps_an_admin(directory, &user)?;
        changes.push(Change::User(Box::new(user.clone())));
        Ok((changes, user))
    })
}

/// Deactivates a user: logins, keys and sessions are no longer valid. Jobs and ledger entries stay.
pub fn deactivate_user(id: UserId) -> DirectoryWrite<UserRow> {
    update_user(id, UserPatch { active: Some(false), ..UserPatch::default() })
}

/// Converts a stored user for the API.
pub fn show_user(row: &UserRow, account: AccountSummary) -> User {
    User {
        id: row.id,
        username: row.username.clone(),
        email: row.email.clone(),
        role: row.role,
        grants: row.grants.clone(),
        active: row.active,
        default_queue: row.default_queue.clone(),
        balance: account.balance,
        prepaid: row.prepaid,
        spending_limit: row.spending_limit.map(|limit| Dollars(limit.0)),
        spent_this_month: account.spent_this_month,
        created_at: row.created_at,
        invite: None,
    }
}

fn sign_up(
    directory: &Directory,
    username: Option<String>,
    email: Option<String>,
    password_hash: String,
    open: bool,
) -> Result<UserRow, ApiError> {
    if !open {
        return Err(ApiError::forbidden(
            "Sign-up is disabled: ask an admin for an invitation and send its code as `invite`",
        ));
    }
    let username =
        username.ok_or_else(|| ApiError::invalid("username", "`username` is missing"))?;
    free_name(directory, &username)?;
    Ok(UserRow {
        username,
        email,
        active: true,
        default_queue: "root".to_owned(),
        password_hash: Some(password_hash),
        ..UserRow::default()
    })
}

fn apply(user: &mut UserRow, patch: UserPatch) {
    if let Some(email) = patch.email {
        user.email = (!email.is_empty()).then_some(email);
    }
    if let Some(limit) = patch.spending_limit {
        user.spending_limit = (limit.0 >= 0).then_some(limit);
    }
    user.password_hash = patch.password_hash.or(user.password_hash.take());
    user.role = patch.role.unwrap_or(user.role);
    user.active = patch.active.unwrap_or(user.active);
    user.prepaid = patch.prepaid.unwrap_or(user.prepaid);
    if let Some(grants) = patch.grants {
        user.grants = grants;
    }
    if let Some(queue) = patch.default_queue {
        user.default_queue = queue;
    }
}

fn find(directory: &Directory, id: UserId) -> Result<&UserRow, ApiError> {
    directory.users.get(&id).ok_or_else(|| ApiError::not_found(ResourceKind::User, id))
}

/// Rejects any name but the invited one: queues and grants refer to users by name.
fn invited_name(asked: Option<&str>, invited: &str) -> Result<(), ApiError> {
    if asked.is_none_or(|asked| asked.to_lowercase() == invited.to_lowercase()) {
        return Ok(());
    }
    let detail = format!(
        "this invitation is for the name `{invited}`; leave `username` out, or ask an admin for another invitation"
    );
    Err(ApiError::invalid("username", detail))
}

fn end_invites(directory: &Directory, user: UserId) -> Vec<Change> {
    let of_user =
        |row: &&CredentialRow| row.kind == CredentialKind::Invite && row.user_id == Some(user);
    let invites = directory.credentials.values().filter(of_user);
    invites.map(|row| Change::CredentialGone(row.id)).collect()
}

fn free_name(directory: &Directory, name: &str) -> Result<(), ApiError> {
    if directory.user_named(name).is_some() {
        let detail = format!("the name `{name}` is taken; choose another");
        return Err(ApiError::conflict(ErrorCode::NameTaken, detail));
    }
    Ok(())
}

/// Rejects a change that would leave no active admin.
fn keeps_an_admin(directory: &Directory, changed: &UserRow) -> Result<(), ApiError> {
    let admin = |user: &UserRow| user.active && user.role == Role::Admin;
    let was = directory.users.get(&changed.id).is_some_and(admin);
    let others = directory.users.values().any(|user| user.id != changed.id && admin(user));
    if !was || admin(changed) || others {
        return Ok(());
    }
    Err(ApiError::conflict(
        ErrorCode::LastAdmin,
        "this is the last active admin; make another user an admin first",
    ))
}
