//! The clock of the lease: it does not jump, and it goes on while the machine sleeps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A timer of the runtime stands still while the machine sleeps; so it is never trusted for longer than this.
const STEP: Duration = Duration::from_secs(1);

/// Milliseconds since the machine was started, sleep included.
pub(crate) fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// How long it is until this moment; nothing if it has passed.
pub(crate) fn until(moment_ms: u64) -> Duration {
    Duration::from_millis(moment_ms.saturating_sub(boot_ms()))
}

/// A time as milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Sleeps until this moment, also if the machine sleeps meanwhile.
pub(crate) async fn sleep_until(moment_ms: u64) {
    loop {
        let left = until(moment_ms);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(STEP)).await;
    }
}
