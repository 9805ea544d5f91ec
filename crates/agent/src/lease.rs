//! The lease: as long as it holds, the server does not give this node's tasks to others.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{boot_ms, millis};
use crate::guardian::client::Guardian;
use crate::runtime::Runtime;

/// The lease of this agent. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Lease {
    until: Arc<AtomicU64>,
    length: Duration,
    guardian: Option<Guardian>,
    /// Keeps leased tasks alive elsewhere.
    runtime: Option<Arc<dyn Runtime>>,
}

impl Lease {
    /// A lease that holds for two intervals: from now, and again after each renewal.
    pub(crate) fn new(interval: Duration, guardian: Option<Guardian>) -> Self {
        let length = interval * 2;
        let until = Arc::new(AtomicU64::new(boot_ms() + millis(length)));
        Self { until, length, guardian, runtime: None }
    }

    /// Tells a runtime of every renewal.
    pub(crate) fn telling(self, runtime: Option<Arc<dyn Runtime>>) -> Self {
        Self { runtime, ..self }
    }

    /// The server answered something that was sent at this moment: it counts from there, since the answer may have
    /// been on its way for long.
    pub(crate) fn renew(&self, sent_ms: u64) {
        let until = sent_ms + millis(self.length);
        self.until.fetch_max(until, Ordering::Relaxed);
        if let Some(guardian) = &self.guardian {
            guardian.renew(until);
        }
        if let Some(runtime) = &self.runtime {
            runtime.renewed(crate::clock::until(self.until.load(Ordering::Relaxed)));
        }
    }

    /// The moment of the boot-time clock at which it ran out, if it did.
    pub(crate) fn lost(&self) -> Option<u64> {
        Some(self.until.load(Ordering::Relaxed)).filter(|until| boot_ms() >= *until)
    }

    /// How often to look at it: late by an eighth of it at most.
    pub(crate) fn pace(&self) -> Duration {
        (self.length / 8).max(Duration::from_millis(10))
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
    fn the_first_lease_is_two_intervals_and_a_renewal_counts_from_its_sending() {
        let lease = Lease::new(Duration::from_millis(50), None);
        assert_eq!(lease.lost(), None);
        std::thread::sleep(Duration::from_millis(110));
        let end = lease.lost().unwrap();
        assert!(end <= boot_ms());
        // An answer that was on its way for too long renews nothing.
        lease.renew(boot_ms().saturating_sub(100));
        assert!(lease.lost().is_some_and(|later| later >= end));
        lease.renew(boot_ms());
        assert_eq!(lease.lost(), None);
    }
}
