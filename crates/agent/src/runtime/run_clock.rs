//! Run time of a task whose runtime measures with the wall clock, which may step: Docker and the kubelet do. The boot clock
//! of the agent bounds the measured time.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use agentaflow_api::units::Stamp;

use crate::clock::boot_ms;
use crate::guardian::{procs::boot_id, record};

const FILE: &str = "run.json";

/// Difference between two clocks that is not a step: delays of the runtime and rounding.
const TOLERANCE: Duration = Duration::from_secs(2);

/// Start of a task by the boot clock and the wall clock, saved in the task folder. A later boot makes it useless.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunStart {
    boot: String,
    boot_ms: u64,
    wall: Stamp,
}

impl RunStart {
    pub(crate) fn now() -> Self {
        Self { boot: boot_id(), boot_ms: boot_ms(), wall: Stamp::now() }
    }

    pub(crate) fn save(&self, folder: &Path) {
        if let Err(error) = record::write(folder, FILE, self) {
            tracing::warn!("cannot save the start of a task in `{}`: {error}", folder.display());
        }
    }

    /// `None` after a reboot.
    pub fn load(folder: &Path) -> Option<Self> {
        let found: Self = record::read(&folder.join(FILE))?;
        (found.boot == boot_id()).then_some(found)
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        Duration::from_millis(boot_ms().saturating_sub(self.boot_ms))
    }

    /// True if the wall clock of this host was set since the start.
    pub(crate) fn wall_stepped(&self) -> bool {
        let wall = Stamp::now().0.saturating_sub(self.wall.0);
        wall.abs_diff(self.elapsed().as_millis() as i64) > TOLERANCE.as_millis() as u64
    }

    /// Corrects a run time that a runtime measured with a wall clock. The task ran at least for `least`.
    pub fn correct(&self, measured: Option<Duration>, least: Duration) -> Duration {
        let most = self.elapsed();
        let possible = least.saturating_sub(TOLERANCE)..=most.saturating_add(TOLERANCE);
        match measured {
            Some(measured) if possible.contains(&measured) => measured,
            Some(measured) => measured.clamp(least.min(most), most),
            None => most,
        }
    }
}

/// Time between two readings of a wall clock; `None` if the clock was set back between them.
pub fn wall_time(from: Option<Stamp>, to: Option<Stamp>) -> Option<Duration> {
    let ms = to?.0.checked_sub(from?.0)?;
    u64::try_from(ms).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Start `boot_secs` ago by the boot clock and `wall_secs` ago by the wall clock.
    fn started(boot_secs: u64, wall_secs: i64) -> RunStart {
        let now = RunStart::now();
        let boot_ms = now.boot_ms.checked_sub(boot_secs * 1000).expect("the host has just booted");
        RunStart { boot_ms, wall: Stamp(now.wall.0 - wall_secs * 1000), ..now }
    }

    #[test]
    fn a_possible_time_is_kept_and_another_one_is_corrected() {
        let start = started(40, 40);
        let corrected = |measured: Option<u64>, least: u64| {
            start.correct(measured.map(Duration::from_secs), Duration::from_secs(least)).as_secs()
        };
        assert_eq!(corrected(Some(40), 40), 40);
        // The task ended while no agent ran.
        assert_eq!(corrected(Some(25), 0), 25);
        assert_eq!(corrected(Some(25), 24), 25);
        // Set back, set forward, set back before the start.
        assert_eq!(corrected(Some(1), 30), 30);
        assert_eq!(corrected(Some(3_600), 0), 40);
        assert_eq!(corrected(None, 30), 40);
    }

    #[test]
    fn only_a_step_of_the_wall_clock_is_a_step() {
        assert!(!started(60, 60).wall_stepped());
        assert!(!started(60, 61).wall_stepped());
        assert!(started(60, 3_660).wall_stepped());
        assert!(started(60, -3_540).wall_stepped());
    }

    #[test]
    fn a_record_of_another_boot_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        assert!(RunStart::load(folder.path()).is_none());
        RunStart::now().save(folder.path());
        assert!(RunStart::load(folder.path()).unwrap().elapsed() < Duration::from_secs(30));
        RunStart { boot: "other".to_owned(), ..RunStart::now() }.save(folder.path());
        assert!(RunStart::load(folder.path()).is_none());
    }

    #[test]
    fn an_end_before_the_start_has_no_run_time() {
        let at = |secs: i64| Some(Stamp(secs * 1000));
        assert_eq!(wall_time(at(10), at(12)), Some(Duration::from_secs(2)));
        assert_eq!(wall_time(at(10), at(9)), None);
        assert_eq!(wall_time(None, at(9)), None);
    }
}
