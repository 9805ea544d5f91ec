//! Exponential delays between attempts, for every retry loop of the workspace.
//!
//! A [`BackoffPolicy`] is a constant of the module that retries. A loop calls [`BackoffPolicy::start`] and sleeps with
//! the returned [`Backoff`]; a state machine that stores an attempt counter calls [`BackoffPolicy::delay`].

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Delays from `first` to `longest`. Each delay is `factor` times the previous delay; the default factor is 2. The
/// number of attempts is not limited.
#[derive(Clone, Copy, Debug)]
pub struct BackoffPolicy {
    first: Duration,
    longest: Duration,
    factor: f32,
    jitter: bool,
}

impl BackoffPolicy {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, factor: 2.0, jitter: false }
    }

    #[must_use]
    pub const fn with_factor(mut self, factor: f32) -> Self {
        self.factor = factor;
        self
    }

    /// Draws each delay at random between half of its length and its whole length, so that many clients of one server
    /// do not retry at the same moment.
    #[must_use]
    pub const fn with_jitter(mut self) -> Self {
        self.jitter = true;
        self
    }

    pub fn start(self) -> Backoff {
        Backoff { policy: self, delays: self.builder().build() }
    }

    /// Delay after `failures` earlier failures, without jitter: `first` for 0.
    pub fn delay(self, failures: u32) -> Duration {
        let steps = Self { jitter: false, ..self };
        let mut last = None;
        for delay in steps.start().take(failures.saturating_add(1) as usize) {
            if last == Some(delay) {
                break;
            }
            last = Some(delay);
        }
        last.unwrap_or(self.first)
    }

    /// Builder for libraries that take one, such as the watcher of `kube`.
    pub fn builder(self) -> ExponentialBuilder {
        // Jitter of `backon` adds up to the same length again.
        let share = if self.jitter { 2 } else { 1 };
        let builder = ExponentialBuilder::new()
            .with_min_delay(self.first / share)
            .with_max_delay(self.longest / share)
            .with_factor(self.factor)
            .without_max_times();
        if self.jitter { builder.with_jitter() } else { builder }
    }
}

/// One sequence of delays; never ends.
#[derive(Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    delays: ExponentialBackoff,
}

impl Backoff {
    /// Sleeps for the next delay.
    pub async fn sleep(&mut self) {
        tokio::time::sleep(self.next_delay()).await;
    }

    pub fn next_delay(&mut self) -> Duration {
        let delay = self.delays.next().unwrap_or(self.policy.longest);
        // `backon` multiplies seconds as `f32`: 100 ms becomes 200.000003 ms.
        Duration::from_millis((delay + Duration::from_micros(500)).as_millis() as u64)
    }

    /// Starts again with the first delay, after a success.
    pub fn reset(&mut self) {
        self.delays = self.policy.builder().build();
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.next_delay())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(1);
    const POLICY: BackoffPolicy = BackoffPolicy::new(FIRST, LONGEST);

    fn millis(delays: impl Iterator<Item = Duration>) -> Vec<u128> {
        delays.take(6).map(|delay| delay.as_millis()).collect()
    }

    #[test]
    fn delays_grow_to_the_longest_and_start_again_after_a_reset() {
        let mut backoff = POLICY.start();
        assert_eq!(millis(&mut backoff), [100, 200, 400, 800, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.next_delay(), FIRST);
        assert_eq!(millis(POLICY.with_factor(3.0).start()), [100, 300, 900, 1000, 1000, 1000]);
    }

    #[test]
    fn a_stored_attempt_counter_gives_the_same_delays() {
        let delays = (0..6).map(|failures| POLICY.delay(failures));
        assert_eq!(millis(delays), [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(POLICY.delay(u32::MAX), LONGEST);
    }

    #[test]
    fn jitter_keeps_each_delay_between_half_and_whole() {
        let plain = POLICY.start();
        for (delay, whole) in POLICY.with_jitter().start().zip(plain).take(20) {
            assert!((whole / 2..=whole).contains(&delay), "{delay:?} of {whole:?}");
        }
    }
}
