//! Length of the leases that heartbeats renew.

use std::time::{Duration, Instant};

/// Leases of all nodes: their length, and the leases that earlier servers granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    length: Duration,
    /// End of the last lease that an earlier server with another setting may have granted.
    earlier_until: Option<Instant>,
}

impl LeaseTerms {
    /// Terms of a server that starts now. `earlier` is the longest lease that earlier servers granted.
    pub(crate) fn new(length: Duration, earlier: Option<Duration>, now: Instant) -> Self {
        let longer = earlier.filter(|earlier| *earlier > length);
        Self { length, earlier_until: longer.map(|earlier| now + earlier) }
    }

    /// Length of a lease for an agent with this heartbeat interval.
    pub(crate) fn length(self, interval: Duration) -> Duration {
        self.length.max(interval * 2)
    }

    /// Returns true if an earlier server granted longer leases that may still be valid.
    pub(crate) fn earlier_leases_valid(self, now: Instant) -> bool {
        self.earlier_until.is_some_and(|until| now < until)
    }

    /// End of a lease that was last renewed at `renewed`.
    pub(super) fn end(self, renewed: Instant, interval: Duration) -> Instant {
        let end = renewed + self.length(interval);
        self.earlier_until.map_or(end, |until| end.max(until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_has_its_own_length_and_is_never_shorter_than_two_heartbeats() {
        let now = Instant::now();
        let terms = LeaseTerms::new(Duration::from_mins(5), None, now);
        let interval = Duration::from_secs(30);
        assert_eq!(terms.end(now, interval), now + Duration::from_mins(5));
        assert_eq!(terms.length(Duration::from_mins(10)), Duration::from_mins(20));
    }

    #[test]
    fn a_shorter_setting_waits_for_the_leases_of_the_longer_one() {
        let (now, interval) = (Instant::now(), Duration::from_secs(1));
        let (short, long) = (Duration::from_secs(10), Duration::from_mins(5));
        let terms = LeaseTerms::new(short, Some(long), now);
        assert_eq!(terms.end(now, interval), now + long);
        assert!(terms.earlier_leases_valid(now) && !terms.earlier_leases_valid(now + long));
        let later = now + long;
        assert_eq!(terms.end(later, interval), later + short);
        assert_eq!(LeaseTerms::new(long, Some(short), now).end(now, interval), now + long);
    }
}
