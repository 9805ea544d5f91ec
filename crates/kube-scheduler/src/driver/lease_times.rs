//! Times of the leader election, and their relation.

use std::time::Duration;

/// Time between the last effect of a write and the end of the lease.
pub(super) const MARGIN: Duration = Duration::from_millis(500);
/// Shortest timeout of a write.
const MIN_WRITE: Duration = Duration::from_secs(1);
/// Longest lease.
const MAX_DURATION: Duration = Duration::from_hours(1);

/// Times of the leader election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    duration: Duration,
    renew_deadline: Duration,
    retry: Duration,
}

/// Takeover in less than nine seconds: lease duration, one interval, and the start of the new leader. A renewal may take two
/// seconds; after one that times out, the next has one second.
impl Default for LeaseTimes {
    fn default() -> Self {
        let (duration, renew_deadline, retry) = (6, 4, 1);
        let seconds = Duration::from_secs;
        Self {
            duration: seconds(duration),
            renew_deadline: seconds(renew_deadline),
            retry: seconds(retry),
        }
    }
}

/// Relation between the times that the safety of the election needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseTimesError {
    #[error("the lease duration {0:?} is not a number of whole seconds up to 3600")]
    Duration(Duration),
    #[error(
        "the renew deadline {deadline:?} leaves writes less than 1.5 s before the lease of {duration:?} ends; use at most {most:?}"
    )]
    Deadline { deadline: Duration, duration: Duration, most: Duration },
    #[error("the retry period {retry:?} exceeds half of the renew deadline {deadline:?}")]
    Retry { retry: Duration, deadline: Duration },
}

impl LeaseTimes {
    /// `duration` is the age at which a follower takes over, `renew_deadline` the age at which the leader stops writing, and
    /// `retry` the interval of renewals and of reads by followers.
    pub fn new(
        duration: Duration,
        renew_deadline: Duration,
        retry: Duration,
    ) -> Result<Self, LeaseTimesError> {
        if duration.subsec_nanos() != 0 || duration > MAX_DURATION {
            return Err(LeaseTimesError::Duration(duration));
        }
        let most = duration.saturating_sub(MIN_WRITE + MARGIN);
        if renew_deadline > most {
            let deadline = renew_deadline;
            return Err(LeaseTimesError::Deadline { deadline, duration, most });
        }
        if retry.is_zero() || retry * 2 > renew_deadline {
            return Err(LeaseTimesError::Retry { retry, deadline: renew_deadline });
        }
        Ok(Self { duration, renew_deadline, retry })
    }

    pub fn duration(&self) -> Duration {
        self.duration
    }

    pub fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }

    pub fn retry(&self) -> Duration {
        self.retry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_let_a_write_outlive_the_lease_are_refused() {
        let millis = Duration::from_millis;
        let check = |duration: u64, deadline: u64, retry: u64| {
            LeaseTimes::new(millis(duration), millis(deadline), millis(retry)).map(|_| ())
        };
        assert_eq!(check(6000, 4000, 1000), Ok(()));
        assert_eq!(check(15_000, 13_500, 2000), Ok(()));
        assert!(matches!(check(7500, 5000, 1000), Err(LeaseTimesError::Duration(_))));
        assert!(matches!(check(3_601_000, 5000, 1000), Err(LeaseTimesError::Duration(_))));
        assert!(matches!(check(7000, 5501, 1000), Err(LeaseTimesError::Deadline { .. })));
        assert!(matches!(
            check(1000, 0, 0),
            Err(LeaseTimesError::Deadline { .. } | LeaseTimesError::Retry { .. })
        ));
        assert!(matches!(check(7000, 5000, 2501), Err(LeaseTimesError::Retry { .. })));
        assert!(matches!(check(7000, 5000, 0), Err(LeaseTimesError::Retry { .. })));
        let LeaseTimes { duration, renew_deadline, retry } = LeaseTimes::default();
        assert!(LeaseTimes::new(duration, renew_deadline, retry).is_ok());
    }
}
