//! Waits for a condition, never for a time.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Timeout, longer than any wait on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(45);

/// Calls `check` until it returns a value. The last error becomes the message of the failure.
#[track_caller]
pub(crate) fn wait_for<T, E: Display>(
    what: &str,
    check: impl AsyncFnMut() -> Result<T, E>,
) -> impl Future<Output = T> {
    wait_within(SOON, what, check)
}

/// As [`wait_for`], with another limit.
#[track_caller]
pub(crate) fn wait_within<T, E: Display>(
    limit: Duration,
    what: &str,
    mut check: impl AsyncFnMut() -> Result<T, E>,
) -> impl Future<Output = T> {
    // Caller's line for the error message.
    let place = std::panic::Location::caller();
    async move {
        let started = Instant::now();
        loop {
            match check().await {
                Ok(value) => return value,
                Err(now) if started.elapsed() > limit => panic!(
                    "{place}: waited {} s for: {what}\nwhat there is: {now}",
                    limit.as_secs()
                ),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}
