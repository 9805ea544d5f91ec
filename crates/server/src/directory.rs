//! People and keys in memory: what every request asks for first.
//!
//! Owned by the core, which changes it together with the store; shared for reading behind a lock that is
//! only held for a look.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use agentaflow_api::units::Stamp;

use crate::store::{CredentialKind, CredentialRow, UserRow};

/// Users and credentials, with the ways to find them.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    /// By number.
    pub users: BTreeMap<i64, UserRow>,
    /// By number.
    pub credentials: BTreeMap<i64, CredentialRow>,
    /// Credential numbers by the hash of the secret.
    pub by_hash: FxHashMap<String, i64>,
    /// User numbers by lower-cased name.
    pub by_name: FxHashMap<String, i64>,
    /// Numbers of the refresh tokens that count now, by the name of their session.
    pub sessions: FxHashMap<String, i64>,
}

impl Directory {
    /// A directory of these.
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

    /// Adds or changes a user.
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

    /// Adds or changes a credential.
    pub fn put_credential(&mut self, credential: CredentialRow) {
        self.drop_credential(credential.id);
        self.by_hash.insert(credential.hash.clone(), credential.id);
        if credential.kind == CredentialKind::Refresh && credential.revoked_at.is_none() {
            self.sessions.insert(credential.name.clone(), credential.id);
        }
        self.credentials.insert(credential.id, credential);
    }

    /// Forgets a credential.
    pub fn drop_credential(&mut self, id: i64) {
        let Some(credential) = self.credentials.remove(&id) else { return };
        self.by_hash.remove(&credential.hash);
        if credential.kind == CredentialKind::Refresh
            && self.sessions.get(&credential.name) == Some(&id)
        {
            self.sessions.remove(&credential.name);
        }
    }

    /// The user with this name, whatever its case.
    pub fn user_named(&self, name: &str) -> Option<&UserRow> {
        self.users.get(self.by_name.get(&name.to_lowercase())?)
    }

    /// The credential whose secret has this hash, if it still counts at that time.
    pub fn credential(&self, hash: &str, now: Stamp) -> Option<&CredentialRow> {
        let found = self.credentials.get(self.by_hash.get(hash)?)?;
        let ended = found.expires_at.is_some_and(|end| end <= now);
        (found.revoked_at.is_none() && !ended).then_some(found)
    }

    /// Whether this session of this user goes on.
    pub fn session_lives(&self, session: &str, user: i64, now: Stamp) -> bool {
        let row = self.sessions.get(session).and_then(|id| self.credentials.get(id));
        row.is_some_and(|row| {
            row.user_id == Some(user) && row.expires_at.is_none_or(|end| end > now)
        })
    }
}
