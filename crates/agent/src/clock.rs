//! Clock of the lease: monotonic, and running during system suspend.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Timers of tokio stop during system suspend; a sleep is split into steps of this length.
const STEP: Duration = Duration::from_secs(1);

/// Milliseconds since boot, suspend included.
pub(crate) fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Time until a moment of the boot-time clock; zero for a past moment.
pub(crate) fn until(moment_ms: u64) -> Duration {
    Duration::from_millis(moment_ms.saturating_sub(boot_ms()))
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Sleeps until a moment of the boot-time clock, correct across system suspend.
pub(crate) async fn sleep_until(moment_ms: u64) {
    loop {
        let left = until(moment_ms);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(STEP)).await;
    }
}
