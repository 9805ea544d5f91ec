//! Idempotency keys of recent submissions.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use agentaflow_api::ids::{JobId, UserId};

/// Keys stay in memory this long. The store has older keys; memory covers submissions that are not durable yet.
const LIFETIME: Duration = Duration::from_mins(10);

#[derive(Debug, Default)]
pub(crate) struct RecentKeys(FxHashMap<Key, Submission>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    user: UserId,
    key: String,
}

/// Submission that used a key.
#[derive(Debug)]
pub(crate) struct Submission {
    /// SHA-256 of the body, in hexadecimal.
    pub(crate) body: String,
    pub(crate) job: JobId,
    at: Instant,
}

impl RecentKeys {
    pub(crate) fn get(&self, user: UserId, key: &str) -> Option<&Submission> {
        self.0.get(&Key { user, key: key.to_owned() })
    }

    pub(crate) fn insert(&mut self, user: UserId, key: &str, body: &str, job: JobId) {
        let submission = Submission { body: body.to_owned(), job, at: Instant::now() };
        self.0.insert(Key { user, key: key.to_owned() }, submission);
    }

    pub(crate) fn expire(&mut self) {
        self.0.retain(|_, submission| submission.at.elapsed() < LIFETIME);
    }
}
