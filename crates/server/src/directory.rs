//! Users and credentials in memory, for the authentication of every request.
//!
//! Only the core changes the directory, together with the store. Requests read it without the core's lock.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustc_hash::FxHashMap;

use agentaflow_api::ids::{CredentialId, UserId};
use agentaflow_api::units::Stamp;

use crate::store::{CredentialKind, CredentialRow, UserRow};

/// The directory, shared by the core and all requests. Each access is short.
#[derive(Clone, Debug, Default)]
pub struct SharedDirectory(Arc<RwLock<Directory>>);

impl SharedDirectory {
    pub fn read(&self) -> RwLockReadGuard<'_, Directory> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Directory> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn replace(&self, directory: Directory) {
        *self.write() = directory;
    }
}

/// Users and credentials, with their indexes.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    pub users: BTreeMap<UserId, UserRow>,
    pub credentials: BTreeMap<CredentialId, CredentialRow>,
    /// Credential ids by the hash of the secret.
    pub by_hash: FxHashMap<String, CredentialId>,
    /// User ids by lower-case name.
    pub by_name: FxHashMap<String, UserId>,
    /// Ids of the valid refresh tokens by the name of their session.
    pub sessions: FxHashMap<String, CredentialId>,
}

impl Directory {
    pub fn new(users: Vec<UserRow>, credentials: Vec<CredentialRow>) -> Self {
        let mut directory = Self::default();
        for user in users {
            directory.put_user(user);
        }
        for credential in credentials {
            directory.put_credential(credential);
        }
        directory
    }

    /// Adds or replaces a user.
    pub fn put_user(&mut self, user: UserRow) {
        let name = user.username.to_lowercase();
        if let Some(old) = self.users.get(&user.id) {
            let old = old.username.to_lowercase();
            if old != name {
                self.by_name.remove(&old);
            }
        }
        self.by_name.insert(name, user.id);
        self.users.insert(user.id, user);
    }

    /// Adds or replaces a credential.
    pub fn put_credential(&mut self, credential: CredentialRow) {
        self.drop_credential(credential.id);
        self.by_hash.insert(credential.hash.clone(), credential.id);
        if credential.kind == CredentialKind::Refresh && credential.revoked_at.is_none() {
            self.sessions.insert(credential.name.clone(), credential.id);
        }
        self.credentials.insert(credential.id, credential);
    }

    pub fn drop_credential(&mut self, id: CredentialId) {
        let Some(credential) = self.credentials.remove(&id) else { return };
        self.by_hash.remove(&credential.hash);
        if credential.kind == CredentialKind::Refresh
            && self.sessions.get(&credential.name) == Some(&id)
        {
            self.sessions.remove(&credential.name);
        }
    }

    /// User with this name; case does not matter.
    pub fn user_named(&self, name: &str) -> Option<&UserRow> {
        self.users.get(self.by_name.get(&name.to_lowercase())?)
    }

    /// Credential whose secret has this hash, if it is valid at `now`.
    pub fn credential(&self, hash: &str, now: Stamp) -> Option<&CredentialRow> {
        let found = self.credentials.get(self.by_hash.get(hash)?)?;
        let ended = found.expires_at.is_some_and(|end| end <= now);
        let spent = found.uses_left == Some(0);
        (found.revoked_at.is_none() && !ended && !spent).then_some(found)
    }

    /// Returns true if this session of the user is valid at `now`.
    pub fn session_lives(&self, session: &str, user: UserId, now: Stamp) -> bool {
        let row = self.sessions.get(session).and_then(|id| self.credentials.get(id));
        row.is_some_and(|row| {
            row.user_id == Some(user) && row.expires_at.is_none_or(|end| end > now)
        })
    }
}
