//! Sessions: single-use refresh tokens, and the access tokens issued with them.

use std::net::IpAddr;

use agentaflow_api::account::Tokens;
use agentaflow_api::ids::UserId;
use agentaflow_api::units::{Secret, Stamp};

use super::jwt::{ACCESS_SECONDS, JwtKeys};
use super::limiter::address_key;
use super::tokens::{Minted, digest, mint};
use crate::api_error::ApiError;
use crate::core::{DirectoryWrite, Ids};
use crate::directory::Directory;
use crate::store::{Change, CredentialKind, CredentialRow, UserRow};

/// Lifetime of an unused session.
const REFRESH_MS: i64 = 30 * 24 * 3600 * 1000;
/// Used tokens kept per session, to detect the reuse of a stolen token.
const REMEMBERED: usize = 20;
/// Maximum number of sessions per user; a new session ends the oldest one.
const SESSIONS: usize = 50;

/// A new or refreshed session.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Tokens for the client.
    pub tokens: Tokens,
    /// Owner of the session.
    pub user: UserRow,
}

/// Opens a session for this user.
pub fn open_session(
    user: UserId,
    from: IpAddr,
    jwt: JwtKeys,
) -> Result<DirectoryWrite<Opened>, ApiError> {
    let mut minted = mint(CredentialKind::Refresh, "")?;
    minted.row.opened_from = Some(from);
    Ok(Box::new(move |directory, ids, now| {
        let user = directory.users.get(&user).filter(|user| user.active);
        let user = user.ok_or_else(|| ApiError::unauthenticated("the account is disabled"))?;
        let mut changes = make_room(directory, user.id, now);
        let opened = start(&mut changes, ids, user, minted, None, &jwt, now)?;
        Ok((changes, opened))
    }))
}

/// Exchanges a refresh token for a new one. A second use reveals a stolen token and ends the whole session.
pub fn refresh(
    token: &Secret,
    jwt: JwtKeys,
) -> Result<DirectoryWrite<Result<Opened, ApiError>>, ApiError> {
    let hash = digest(token.expose());
    let mut minted = mint(CredentialKind::Refresh, "")?;
    Ok(Box::new(move |directory, ids, now| {
        let Some(old) = refresh_row(directory, &hash) else {
            return Ok((Vec::new(), Err(not_a_session())));
        };
        if old.revoked_at.is_some() {
            let changes = end_family(directory, old, now, true);
            return Ok((changes, Err(used_twice())));
        }
        let user = old.user_id.and_then(|id| directory.users.get(&id)).filter(|user| user.active);
        let Some(user) = user.filter(|_| old.expires_at.is_none_or(|end| end > now)) else {
            return Ok((Vec::new(), Err(not_a_session())));
        };
        minted.row.opened_from = old.opened_from;
        let mut changes = forget_used(directory, old);
        changes.push(revoked(old, now));
        let opened = start(&mut changes, ids, user, minted, Some(&old.name), &jwt, now)?;
        Ok((changes, Ok(opened)))
    }))
}

/// Returns true if a session of this user was opened from this address, and has not ended.
pub fn has_session_from(directory: &Directory, user: &str, from: IpAddr, now: Stamp) -> bool {
    let Some(user) = directory.user_named(user) else { return false };
    let same = |address: IpAddr| address_key(address) == address_key(from);
    let mut sessions = directory.sessions.values().filter_map(|id| directory.credentials.get(id));
    sessions.any(|row| {
        row.user_id == Some(user.id)
            && row.opened_from.is_some_and(same)
            && row.expires_at.is_none_or(|end| end > now)
    })
}

/// Ends the session of a refresh token. An unknown token succeeds: its session has ended already.
pub fn end_session(token: &Secret) -> DirectoryWrite<()> {
    let hash = digest(token.expose());
    Box::new(move |directory, _, now| {
        let row = refresh_row(directory, &hash);
        Ok((row.map_or_else(Vec::new, |row| end_family(directory, row, now, false)), ()))
    })
}

/// Ends a session by its name.
pub fn end_session_named(sid: String) -> DirectoryWrite<()> {
    Box::new(move |directory, _, now| {
        let row = directory.sessions.get(&sid).and_then(|id| directory.credentials.get(id));
        Ok((row.map_or_else(Vec::new, |row| end_family(directory, row, now, false)), ()))
    })
}

/// Exchanges a one-time link for a browser session.
pub fn use_link(code: &str, jwt: JwtKeys) -> Result<DirectoryWrite<Opened>, ApiError> {
    let hash = digest(code);
    let minted = mint(CredentialKind::Refresh, "")?;
    Ok(Box::new(move |directory, ids, now| {
        let void = || {
            ApiError::unauthenticated(
                "this link was used already or has ended; the server prints a new one at its start",
            )
        };
        let link = directory.credential(&hash, now);
        let link = link.filter(|row| row.kind == CredentialKind::BrowserLink).ok_or_else(void)?;
        let user = link.user_id.and_then(|id| directory.users.get(&id)).filter(|user| user.active);
        let user = user.ok_or_else(void)?;
        let mut changes = make_room(directory, user.id, now);
        changes.push(Change::CredentialGone(link.id));
        let opened = start(&mut changes, ids, user, minted, None, &jwt, now)?;
        Ok((changes, opened))
    }))
}

/// Ends all sessions of a user.
pub(super) fn end_all(directory: &Directory, user: UserId) -> Vec<Change> {
    let of_user =
        |row: &&CredentialRow| row.kind == CredentialKind::Refresh && row.user_id == Some(user);
    directory
        .credentials
        .values()
        .filter(of_user)
        .map(|row| Change::CredentialGone(row.id))
        .collect()
}

fn start(
    changes: &mut Vec<Change>,
    ids: &mut Ids,
    user: &UserRow,
    minted: Minted,
    session: Option<&str>,
    jwt: &JwtKeys,
    now: Stamp,
) -> Result<Opened, ApiError> {
    ids.0.credential = ids.0.credential.next();
    let name = session.map_or_else(|| minted.row.hash[..32].to_owned(), str::to_owned);
    let row = CredentialRow {
        id: ids.0.credential,
        name,
        user_id: Some(user.id),
        created_at: now,
        expires_at: Some(Stamp(now.0.saturating_add(REFRESH_MS))),
        ..minted.row
    };
    let tokens = Tokens {
        access_token: jwt.issue(user.id, user.session_epoch, &row.name, now)?,
        refresh_token: minted.secret,
        token_type: "bearer".to_owned(),
        expires_in: ACCESS_SECONDS,
    };
    changes.push(Change::Credential(Box::new(row)));
    Ok(Opened { tokens, user: user.clone() })
}

fn refresh_row<'a>(directory: &'a Directory, hash: &str) -> Option<&'a CredentialRow> {
    let row = directory.credentials.get(directory.by_hash.get(hash)?)?;
    (row.kind == CredentialKind::Refresh).then_some(row)
}

fn family<'a>(directory: &'a Directory, name: &'a str) -> impl Iterator<Item = &'a CredentialRow> {
    let of_family =
        move |row: &&CredentialRow| row.kind == CredentialKind::Refresh && row.name == name;
    directory.credentials.values().filter(of_family)
}

fn end_family(directory: &Directory, row: &CredentialRow, now: Stamp, stolen: bool) -> Vec<Change> {
    let live = family(directory, &row.name).filter(|row| row.revoked_at.is_none());
    let mut changes: Vec<_> = live.map(|row| revoked(row, now)).collect();
    let user = row.user_id.and_then(|id| directory.users.get(&id));
    // The thief may hold access tokens too, so all of them are invalidated; legitimate sessions refresh.
    if let Some(user) = user.filter(|_| stolen && !changes.is_empty()) {
        let session_epoch = user.session_epoch.wrapping_add(1);
        changes.push(Change::User(Box::new(UserRow { session_epoch, ..user.clone() })));
    }
    changes
}

fn forget_used(directory: &Directory, row: &CredentialRow) -> Vec<Change> {
    let used: Vec<_> = family(directory, &row.name)
        .filter(|row| row.revoked_at.is_some())
        .map(|row| row.id)
        .collect();
    let many = used.len().saturating_sub(REMEMBERED);
    used.into_iter().take(many).map(Change::CredentialGone).collect()
}

/// Removes expired sessions and links of a user, and the oldest sessions beyond the limit.
fn make_room(directory: &Directory, user: UserId, now: Stamp) -> Vec<Change> {
    let mine = |row: &&CredentialRow| {
        row.user_id == Some(user)
            && matches!(row.kind, CredentialKind::Refresh | CredentialKind::BrowserLink)
    };
    let ended = |row: &CredentialRow| row.expires_at.is_some_and(|end| end <= now);
    let (over, rest): (Vec<_>, Vec<_>) =
        directory.credentials.values().filter(mine).partition(|row| ended(row));
    let live: Vec<_> = rest
        .into_iter()
        .filter(|row| row.kind == CredentialKind::Refresh && row.revoked_at.is_none())
        .collect();
    let many = (live.len() + 1).saturating_sub(SESSIONS);
    let oldest = live.into_iter().take(many);
    over.into_iter().chain(oldest).map(|row| Change::CredentialGone(row.id)).collect()
}

fn revoked(row: &CredentialRow, now: Stamp) -> Change {
    Change::Credential(Box::new(CredentialRow { revoked_at: Some(now), ..row.clone() }))
}

fn not_a_session() -> ApiError {
    ApiError::unauthenticated(
        "this refresh token is not known or has ended; log in again with POST /auth/login",
    )
}

fn used_twice() -> ApiError {
    ApiError::unauthenticated(
        "this refresh token was used before, so the session was ended for safety; log in again",
    )
}
