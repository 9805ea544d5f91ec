//! The clock of the server.
//!
//! The wall clock may be set: by NTP after the start of a machine, or by hand. Bills and budgets must not change with it.
//! The server therefore reads the wall clock once, at its start, and continues with a clock that is never set. That clock
//! counts the time during which the machine is suspended.
//!
//! The next run counts from the wall clock as it is then. A stored [`ClockAnchor`] gives the step in between, even if the
//! server was killed or the clock was set while no server ran. Budgets ignore that step: their month ends when it would
//! have ended without it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_api::units::Stamp;
use agentaflow_engine::Time;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::restore::LEAST_STEP_MS;

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
    /// Steps of the wall clock in this boot before the start, in milliseconds.
    steps: i64,
}

/// The server's clock at one moment of a boot of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockAnchor {
    /// Random number of the boot; empty if unknown.
    boot: String,
    since_boot_ms: u64,
    stamp: Stamp,
    /// Steps of the wall clock in this boot before the anchor.
    #[serde(default)]
    steps_ms: i64,
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

    /// Steps of the wall clock in this boot; zero if the machine booted since the anchor.
    fn steps_until(&self, now: &Self) -> i64 {
        let step = self.step_to(now);
        let step = step.map(|step| if step.unsigned_abs() < LEAST_STEP_MS { 0 } else { step });
        step.map_or(0, |step| self.steps_ms.saturating_add(step))
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
            steps_ms: self.steps,
        }
    }

    pub(crate) fn start(wall: &WallClock) -> Self {
        Self { base: wall.read().0.max(0) as u64, start: since_boot(), steps: 0 }
    }

    /// This clock after an earlier run: budgets continue in the month of that run.
    pub(crate) fn after(self, earlier: &ClockAnchor) -> Self {
        Self { steps: earlier.steps_until(&self.anchor()), ..self }
    }

    /// Time for budgets: without the steps of the wall clock since the machine booted, which would end a month or begin
    /// it again.
    pub(crate) fn budget_time(&self, at: Stamp) -> Stamp {
        Stamp(at.0.saturating_sub(self.steps))
    }

    /// Month of budgets: `2026-11`.
    pub(crate) fn month(&self) -> String {
        self.budget_time(self.stamp()).month()
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
            steps_ms: 0,
        };
        let first = anchor("a", 1_000, 1_000_000);
        assert_eq!(first.step_to(&anchor("a", 6_000, 1_005_000)), Some(0));
        assert_eq!(first.step_to(&anchor("a", 6_000, 1_035_000)), Some(30_000));
        assert_eq!(first.step_to(&anchor("a", 6_000, 900_000)), Some(-105_000));
        assert_eq!(first.step_to(&anchor("b", 6_000, 1_035_000)), None, "another boot");
        assert_eq!(first.step_to(&anchor("a", 500, 1_035_000)), None, "not the same clock");
    }

    #[test]
    fn steps_add_up_until_the_machine_boots() {
        let anchor = |boot: &str, since_boot_ms, ms, steps_ms| ClockAnchor {
            boot: boot.to_owned(),
            since_boot_ms,
            stamp: Stamp(ms),
            steps_ms,
        };
        let first = anchor("a", 1_000, 1_000_000, 0);
        let second = anchor("a", 2_000, 9_001_000, 0);
        assert_eq!(first.steps_until(&second), 8_000_000);
        let second = ClockAnchor { steps_ms: 8_000_000, ..second };
        assert_eq!(second.steps_until(&anchor("a", 3_000, 9_002_500, 0)), 8_000_000, "slewed");
        assert_eq!(second.steps_until(&anchor("a", 3_000, 1_002_000, 0)), 0, "set back");
        assert_eq!(second.steps_until(&anchor("b", 3_000, 9_002_000, 0)), 0);
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
