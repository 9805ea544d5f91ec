//! The lease: as long as it holds, the server does not give this node's tasks to others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::boot_ms;
use crate::guardian::client::Guardian;

/// The lease of this agent. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    until: Arc<AtomicU64>,
    length: Duration,
    guardian: Option<Guardian>,
}

impl Lease {
    /// A lease that holds for two intervals after each renewal.
    pub(crate) fn new(interval: Duration, guardian: Option<Guardian>) -> Self {
        Self { until: Arc::default(), length: interval * 2, guardian }
    }

    /// The server answered something that was sent at this moment: it counts from there, since the answer may have
    /// been on its way for long.
    pub(crate) fn renew(&self, sent_ms: u64) {
        let until = sent_ms + self.length.as_millis() as u64;
        self.until.fetch_max(until, Ordering::Relaxed);
        if let Some(guardian) = &self.guardian {
            guardian.renew(until);
        }
    }

    /// It was held once, and is over.
    pub(crate) fn is_lost(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        until > 0 && boot_ms() >= until
    }
}
