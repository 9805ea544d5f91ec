//! Stored bytes of each account: the last measurement, and what was added since.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agentaflow_api::ids::UserId;
use tokio::sync::Notify;

/// Stored bytes of all accounts. Additions are estimates until the retention pass measures again.
#[derive(Debug)]
pub struct Storage {
    limit: Option<u64>,
    accounts: Mutex<BTreeMap<UserId, Stored>>,
    crowded: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stored {
    measured: u64,
    added: u64,
}

/// Additions before a measurement, which the measurement contains.
#[derive(Debug)]
pub(crate) struct Additions(BTreeMap<UserId, u64>);

/// Storage of one account.
#[derive(Clone, Debug)]
pub struct AccountStorage {
    storage: Arc<Storage>,
    user: UserId,
}

/// Size of an account above which old data is deleted, so that it has room before it reaches its limit.
pub(crate) fn crowded_above(limit: u64) -> u64 {
    limit - limit / 20
}

impl Storage {
    /// `limit` is the maximum number of bytes of an account.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self { limit, accounts: Mutex::default(), crowded: Notify::new() }
    }

    pub(crate) fn account(self: &Arc<Self>, user: UserId) -> AccountStorage {
        AccountStorage { storage: self.clone(), user }
    }

    /// Returns once an account needs a retention pass.
    pub(crate) async fn crowded(&self) {
        self.crowded.notified().await;
    }

    pub(crate) fn begin_measurement(&self) -> Additions {
        Additions(self.lock().iter().map(|(user, stored)| (*user, stored.added)).collect())
    }

    /// Publishes a measurement that began with `before`.
    pub(crate) fn finish_measurement(&self, before: &Additions, measured: &BTreeMap<UserId, u64>) {
        let mut accounts = self.lock();
        for (user, stored) in accounts.iter_mut() {
            stored.measured = 0;
            stored.added = stored.added.saturating_sub(before.0.get(user).copied().unwrap_or(0));
        }
        for (user, bytes) in measured {
            accounts.entry(*user).or_default().measured = *bytes;
        }
        accounts.retain(|_, stored| stored.measured + stored.added > 0);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<UserId, Stored>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AccountStorage {
    /// Returns true if the account has no room for further bytes.
    pub(crate) fn is_full(&self) -> bool {
        let accounts = self.storage.lock();
        let stored = accounts.get(&self.user).copied().unwrap_or_default();
        self.storage.limit.is_some_and(|limit| stored.measured + stored.added >= limit)
    }

    pub(crate) fn add(&self, bytes: u64) {
        let mut accounts = self.storage.lock();
        let stored = accounts.entry(self.user).or_default();
        stored.added += bytes;
        let now = stored.measured + stored.added;
        if self.storage.limit.is_some_and(|limit| now > crowded_above(limit)) {
            self.storage.crowded.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANA: UserId = UserId(1);

    #[test]
    fn additions_during_a_measurement_count_on_top_of_it() {
        let storage = Arc::new(Storage::new(Some(100)));
        let account = storage.account(ANA);
        account.add(60);
        let before = storage.begin_measurement();
        account.add(30);
        storage.finish_measurement(&before, &[(ANA, 69)].into());
        assert!(!account.is_full());
        account.add(1);
        assert!(account.is_full());
        storage.finish_measurement(&storage.begin_measurement(), &BTreeMap::new());
        assert!(!account.is_full() && storage.lock().is_empty());
    }
}
