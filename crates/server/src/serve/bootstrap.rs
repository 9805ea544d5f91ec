//! The first admin and the keys in files: created at the first start, repaired at later ones.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use zeroize::Zeroizing;

use agentaflow_api::account::Role;
use agentaflow_api::ids::UserId;
use agentaflow_api::units::{Secret, Stamp};

use super::StartError;
use crate::api_error::ApiError;
use crate::auth::{
    ADMIN_TOKEN, NewKey, PresentedToken, Principal, REGISTRATION_TOKEN, create_key, digest, known,
    mint,
};
use crate::core::{Core, DirectoryWrite, Worker};
use crate::secrets::{SecretError, create_secret_file, read_secret_file, write_secret_file};
use crate::store::{Change, CredentialKind, CredentialRow, UserRow};

/// Lifetime of a one-time link.
const LINK_MS: i64 = 3600 * 1000;

/// The first admin and the keys in files.
pub(super) struct First {
    pub(super) admin: UserId,
    pub(super) admin_token: Secret,
    pub(super) registration_token: Secret,
}

/// Key that signs access tokens; created if missing.
pub(super) fn jwt_key(data: &Path) -> Result<Zeroizing<Vec<u8>>, StartError> {
    let path = data.join("jwt-key");
    let mut bytes = Zeroizing::new([0_u8; 64]);
    getrandom::fill(bytes.as_mut_slice()).map_err(|_| SecretError::NoRandomness)?;
    let fresh = Zeroizing::new(STANDARD_NO_PAD.encode(bytes.as_slice()));
    create_secret_file(&path, fresh.as_bytes())?;
    let kept = read_secret_file(&path)?.unwrap_or(fresh);
    Ok(Zeroizing::new(kept.as_bytes().to_vec()))
}

/// Creates the first admin and the keys in files where they are missing or not valid. `replace` revokes the older keys of
/// these names.
pub(super) async fn first_keys(
    core: &Core,
    data: &Path,
    replace: bool,
) -> Result<First, StartError> {
    let admin = core.write(first_admin()).await.map_err(StartError::Bootstrap)?;
    let admin_token =
        key_in_file(core, data, CredentialKind::ApiKey, ADMIN_TOKEN, (admin, replace)).await?;
    let kind = CredentialKind::Registration;
    let registration_token =
        key_in_file(core, data, kind, REGISTRATION_TOKEN, (admin, replace)).await?;
    Ok(First { admin, admin_token, registration_token })
}

/// Code of a link that logs a browser in as this user, once. Older links end.
pub(super) async fn browser_code(core: &Core, user: UserId) -> Result<Secret, ApiError> {
    let minted = mint(CredentialKind::BrowserLink, "browser link")?;
    let row = minted.row;
    core.write::<()>(Box::new(move |directory, ids, now| {
        let links =
            directory.credentials.values().filter(|row| row.kind == CredentialKind::BrowserLink);
        let mut changes: Vec<_> = links.map(|row| Change::CredentialGone(row.id)).collect();
        ids.0.credential = ids.0.credential.next();
        changes.push(Change::Credential(Box::new(CredentialRow {
            id: ids.0.credential,
            user_id: Some(user),
            created_at: now,
            expires_at: Some(Stamp(now.0 + LINK_MS)),
            ..row
        })));
        Ok((changes, ()))
    }))
    .await?;
    Ok(minted.secret)
}

/// Owner of the keys in files: user `admin`, else the first admin; created if there is none.
fn first_admin() -> DirectoryWrite<UserId> {
    Box::new(|directory, ids, now| {
        let admin = |user: &&UserRow| user.active && user.role == Role::Admin;
        let named = directory.user_named("admin").filter(admin);
        if let Some(user) = named.or_else(|| directory.users.values().find(admin)) {
            return Ok((Vec::new(), user.id));
        }
        ids.0.user.0 += 1;
        let taken = directory.user_named("admin").is_some();
        let username = if taken { format!("admin-{}", ids.0.user) } else { "admin".to_owned() };
        let user = UserRow {
            id: ids.0.user,
            username,
            role: Role::Admin,
            active: true,
            default_queue: "root".to_owned(),
            created_at: now,
            ..UserRow::default()
        };
        Ok((vec![Change::User(Box::new(user))], ids.0.user))
    })
}

/// Key in a file if it is valid; otherwise a new key, which replaces the one of that name.
async fn key_in_file(
    core: &Core,
    data: &Path,
    kind: CredentialKind,
    name: &str,
    (user, replace): (UserId, bool),
) -> Result<Secret, StartError> {
    let path = data.join(name);
    let kept = read_secret_file(&path)?;
    if let Some(kept) = kept.filter(|kept| is_valid(core, kind, kept)) {
        return Ok(Secret(kept.to_string()));
    }
    let new = NewKey { kind, user, name: name.to_owned(), seconds: None, uses: None, replace };
    let made = create_key(new).map_err(StartError::Bootstrap)?;
    let key = core.write(made).await.map_err(StartError::Bootstrap)?.key.unwrap_or_default();
    write_secret_file(&path, format!("{}\n", key.expose()).as_bytes())?;
    Ok(key)
}

fn is_valid(core: &Core, kind: CredentialKind, secret: &str) -> bool {
    let token = PresentedToken::Key(digest(secret));
    let found = core.directory(|directory| known(directory, &token, Stamp::now()));
    match found {
        Ok(Principal::User(user, Some(_))) => {
            kind == CredentialKind::ApiKey && user.role == Role::Admin
        }
        Ok(Principal::Worker(Worker::Token, _)) => kind == CredentialKind::Registration,
        _ => false,
    }
}
