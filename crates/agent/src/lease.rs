//! Lease of the node: until it expires, the server does not assign the node's tasks to another node.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{boot_ms, millis};
use crate::guardian::client::Guardian;
use crate::runtime::Runtime;

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Lease {
    /// Boot-time clock, in milliseconds.
    until: Arc<AtomicU64>,
    /// Length of the last renewal, in milliseconds.
    length: Arc<AtomicU64>,
    guardian: Option<Guardian>,
    /// Extends leased tasks on a remote node at each renewal.
    remote_runtime: Option<Arc<dyn Runtime>>,
}

impl Lease {
    /// Starts a lease for the time until the first contact. Tasks of an earlier agent have the lease that the guardian
    /// remembers, or the deadline of their Job.
    pub(crate) fn new(length: Duration, guardian: Option<Guardian>) -> Self {
        let until = Arc::new(AtomicU64::new(boot_ms() + millis(length)));
        let length = Arc::new(AtomicU64::new(millis(length)));
        Self { until, length, guardian, remote_runtime: None }
    }

    pub(crate) fn with_remote_runtime(self, remote_runtime: Option<Arc<dyn Runtime>>) -> Self {
        Self { remote_runtime, ..self }
    }

    /// Renews the lease after the response to a request sent at `sent_ms`. The lease counts from the sending, as the
    /// response may have been delayed.
    pub(crate) fn renew(&self, sent_ms: u64, length: Duration) {
        self.length.store(millis(length), Ordering::Relaxed);
        let until = sent_ms + millis(length);
        self.until.fetch_max(until, Ordering::Relaxed);
        if let Some(guardian) = &self.guardian {
            guardian.renew(until);
        }
        if let Some(runtime) = &self.remote_runtime {
            runtime.renew_lease(crate::clock::until(self.until.load(Ordering::Relaxed)));
        }
    }

    /// Moment of the boot-time clock at which the lease expired; `None` while the lease is valid.
    pub(crate) fn expired_at(&self) -> Option<u64> {
        Some(self.until.load(Ordering::Relaxed)).filter(|until| boot_ms() >= *until)
    }

    /// Interval that detects expiry within an eighth of the lease's length.
    pub(crate) fn check_interval(&self) -> Duration {
        let length = Duration::from_millis(self.length.load(Ordering::Relaxed));
        (length / 8).max(Duration::from_millis(10))
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("until", &self.until).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_has_the_length_of_the_server_and_counts_from_the_sending() {
        let length = Duration::from_millis(100);
        let lease = Lease::new(length, None);
        assert_eq!(lease.expired_at(), None);
        std::thread::sleep(Duration::from_millis(110));
        let end = lease.expired_at().unwrap();
        assert!(end <= boot_ms());
        // A response that took longer than the lease renews nothing.
        lease.renew(boot_ms().saturating_sub(100), length);
        assert!(lease.expired_at().is_some_and(|later| later >= end));
        lease.renew(boot_ms(), length);
        assert_eq!(lease.expired_at(), None);
    }
}
