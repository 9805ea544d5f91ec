//! The clock of the server.
//!
//! The wall clock may be set: by NTP after the start of a machine, or by hand. Bills and budgets must not change with it.
//! The server therefore reads the wall clock once, at its start, and continues with a clock that is never set. That clock
//! counts the time during which the machine is suspended.
//!
//! The next run counts from the wall clock as it is then. A stored [`ClockAnchor`] gives the step in between, even if the
//! server was killed or the clock was set while no server ran.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_api::units::Stamp;
use agentaflow_engine::Time;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Source of wall-clock time.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> Stamp + Send + Sync>);

impl WallClock {
    /// A clock of a test, which may step.
    pub fn new(read: impl Fn() -> Stamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    fn read(&self) -> Stamp {
        (self.0)()
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new(Stamp::now)
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallClock")
    }
}

/// Time of the server and the engine: starts at the wall clock and never jumps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    base: u64,
    start: Duration,
}

/// The server's clock at one moment of a boot of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockAnchor {
    /// Random number of the boot; empty if unknown.
    boot: String,
    since_boot_ms: u64,
    stamp: Stamp,
}

impl ClockAnchor {
    /// Milliseconds by which the wall clock was set forward since the anchor; none if the machine booted in between.
    pub(crate) fn step_to(&self, now: &Self) -> Option<i64> {
        if self.boot != now.boot || self.boot.is_empty() {
            return None;
        }
        let elapsed = now.since_boot_ms.checked_sub(self.since_boot_ms)?;
        Some(now.stamp.0.saturating_sub(self.stamp.0).saturating_sub_unsigned(elapsed))
    }
}

impl Clock {
    /// Anchor for the next run.
    pub(crate) fn anchor(&self) -> ClockAnchor {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let since_boot_ms = self.start.as_millis() as u64;
        ClockAnchor {
            boot: boot.trim().to_owned(),
            since_boot_ms,
            stamp: stamp_of(Time(self.base)),
        }
    }

    pub(crate) fn start(wall: &WallClock) -> Self {
        Self { base: wall.read().0.max(0) as u64, start: since_boot() }
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.base + since_boot().saturating_sub(self.start).as_millis() as u64)
    }

    pub(crate) fn stamp(&self) -> Stamp {
        stamp_of(self.now())
    }

    /// Milliseconds by which the wall clock was set forward since the start.
    pub(crate) fn step(&self, wall: &WallClock) -> i64 {
        wall.read().0.saturating_sub(self.stamp().0)
    }
}

/// Time of the server as the API shows it.
pub(crate) fn stamp_of(time: Time) -> Stamp {
    Stamp(i64::try_from(time.0).unwrap_or(i64::MAX))
}

fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    #[test]
    fn a_step_between_two_runs_is_found_within_one_boot() {
        let anchor = |boot: &str, since_boot_ms, ms| ClockAnchor {
            boot: boot.to_owned(),
            since_boot_ms,
            stamp: Stamp(ms),
        };
        let first = anchor("a", 1_000, 1_000_000);
        assert_eq!(first.step_to(&anchor("a", 6_000, 1_005_000)), Some(0));
        assert_eq!(first.step_to(&anchor("a", 6_000, 1_035_000)), Some(30_000));
        assert_eq!(first.step_to(&anchor("a", 6_000, 900_000)), Some(-105_000));
        assert_eq!(first.step_to(&anchor("b", 6_000, 1_035_000)), None, "another boot");
        assert_eq!(first.step_to(&anchor("a", 500, 1_035_000)), None, "not the same clock");
    }

    #[test]
    fn a_step_of_the_wall_clock_moves_the_server_clock_by_nothing() {
        let wall = Arc::new(AtomicI64::new(1_000_000));
        let source = wall.clone();
        let source = WallClock::new(move || Stamp(source.load(Ordering::SeqCst)));
        let clock = Clock::start(&source);
        for step in [-500_000, 3_600_000] {
            wall.store(1_000_000 + step, Ordering::SeqCst);
            assert!((1_000_000..1_010_000).contains(&clock.stamp().0));
            assert!((clock.step(&source) - step).abs() < 10_000);
        }
    }
}
