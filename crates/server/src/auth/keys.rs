//! API keys of users and registration tokens of machines.

use agentaflow_api::account::ApiKey;
use agentaflow_api::error::{ErrorCode, ResourceKind};
use agentaflow_api::ids::{CredentialId, UserId};
use agentaflow_api::units::{Secret, Stamp};

use super::tokens::mint;
use crate::api_error::ApiError;
use crate::core::DirectoryWrite;
use crate::directory::Directory;
use crate::store::{Change, CredentialKind, CredentialRow};

/// Keys of one kind that one user may have at a time.
const MOST: usize = 100;
/// Time for which lists still show a revoked key.
const SHOWN_AFTER: i64 = 30 * 24 * 3600 * 1000;

/// Specification of a new key.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// An API key or a registration token.
    pub kind: CredentialKind,
    /// Owner of the key.
    pub user: UserId,
    pub name: String,
    /// Seconds until expiry; none means never.
    pub seconds: Option<u64>,
    /// Node registrations of a registration token; none means unlimited.
    pub uses: Option<u32>,
    /// Revoke older keys of the same kind and name of the user.
    pub replace: bool,
}

/// Creates a key; the response contains its secret.
pub fn create_key(new: NewKey) -> Result<DirectoryWrite<ApiKey>, ApiError> {
    let minted = mint(new.kind, &new.name)?;
    Ok(Box::new(move |directory, ids, now| {
        let mut changes = Vec::new();
        let mut live = 0;
        for row in of(directory, new.kind, Some(new.user)) {
            match row.revoked_at {
                Some(at) if now.0 - at.0 > SHOWN_AFTER => {
                    changes.push(Change::CredentialGone(row.id));
                }
                None if new.replace && row.name == new.name => changes.push(revoke(row, now)),
                None => live += 1,
                Some(_) => {}
            }
        }
        if live >= MOST {
            let detail = format!("there are {MOST} keys already; revoke one that is not needed");
            return Err(ApiError::conflict(ErrorCode::TooManyKeys, detail));
        }
        ids.0.credential = ids.0.credential.next();
        let row = CredentialRow {
            id: ids.0.credential,
            user_id: Some(new.user),
            created_at: now,
            expires_at: new.seconds.map(|seconds| expiry(now, seconds)),
            uses_left: new.uses,
            ..minted.row
        };
        let shown = show_key(&row, Some(minted.secret));
        changes.push(Change::Credential(Box::new(row)));
        Ok((changes, shown))
    }))
}

fn expiry(now: Stamp, seconds: u64) -> Stamp {
    let ms = i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX);
    Stamp(now.0.saturating_add(ms))
}

/// Revokes a key. `owner` restricts the call to keys of that user.
pub fn revoke_key(
    kind: CredentialKind,
    id: CredentialId,
    owner: Option<UserId>,
) -> DirectoryWrite<ApiKey> {
    Box::new(move |directory, _, now| {
        let row = find(directory, kind, id, owner)?;
        let row = CredentialRow { revoked_at: row.revoked_at.or(Some(now)), ..row.clone() };
        let shown = show_key(&row, None);
        Ok((vec![Change::Credential(Box::new(row))], shown))
    })
}

/// Replaces the secret of a key; the old secret is no longer valid.
pub fn rotate_key(
    kind: CredentialKind,
    id: CredentialId,
    owner: Option<UserId>,
) -> Result<DirectoryWrite<ApiKey>, ApiError> {
    let minted = mint(kind, "")?;
    Ok(Box::new(move |directory, _, now| {
        let old = find(directory, kind, id, owner)?;
        if old.revoked_at.is_some() || old.expires_at.is_some_and(|end| end <= now) {
            return Err(ApiError::conflict(
                ErrorCode::KeyEnded,
                "this key was revoked or has ended; make a new one",
            ));
        }
        let row = CredentialRow {
            hash: minted.row.hash,
            prefix: minted.row.prefix,
            last_used_at: None,
            ..old.clone()
        };
        let shown = show_key(&row, Some(minted.secret));
        Ok((vec![Change::Credential(Box::new(row))], shown))
    }))
}

/// Keys of this kind, oldest first; of one user or of all users.
pub fn list_keys(directory: &Directory, kind: CredentialKind, user: Option<UserId>) -> Vec<ApiKey> {
    of(directory, kind, user).map(|row| show_key(row, None)).collect()
}

/// Converts a stored key for the API.
pub fn show_key(row: &CredentialRow, key: Option<Secret>) -> ApiKey {
    ApiKey {
        id: row.id,
        name: row.name.clone(),
        prefix: row.prefix.clone(),
        created_at: row.created_at,
        expires_at: row.expires_at,
        last_used_at: row.last_used_at,
        revoked: row.revoked_at.is_some(),
        uses_left: row.uses_left,
        key,
    }
}

fn of(
    directory: &Directory,
    kind: CredentialKind,
    user: Option<UserId>,
) -> impl Iterator<Item = &CredentialRow> {
    let fits = move |row: &&CredentialRow| {
        row.kind == kind && user.is_none_or(|user| row.user_id == Some(user))
    };
    directory.credentials.values().filter(fits)
}

fn find(
    directory: &Directory,
    kind: CredentialKind,
    id: CredentialId,
    owner: Option<UserId>,
) -> Result<&CredentialRow, ApiError> {
    let row = directory.credentials.get(&id).filter(|row| row.kind == kind);
    let row = row.filter(|row| owner.is_none_or(|owner| row.user_id == Some(owner)));
    row.ok_or_else(|| ApiError::not_found(ResourceKind::Key, id))
}

fn revoke(row: &CredentialRow, now: Stamp) -> Change {
    Change::Credential(Box::new(CredentialRow { revoked_at: Some(now), ..row.clone() }))
}
