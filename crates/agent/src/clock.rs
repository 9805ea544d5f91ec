//! The clock of the lease: it does not jump, and it goes on while the machine sleeps.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine was started, sleep included.
pub(crate) fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
