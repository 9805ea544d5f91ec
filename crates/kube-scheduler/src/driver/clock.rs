//! Engine time.

use agentaflow_engine::Time;
use std::time::Instant;

/// Wall clock at the start of leadership, advanced by a monotonic clock: changes of the wall clock have no effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    wall: u64,
    started: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let wall = jiff::Timestamp::now().as_millisecond().max(0) as u64;
        Self { wall, started: Instant::now() }
    }

    pub(crate) fn now(&self) -> Time {
        self.at(Instant::now())
    }

    fn at(&self, moment: Instant) -> Time {
        let since = moment.saturating_duration_since(self.started).as_millis() as u64;
        Time(self.wall.saturating_add(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn engine_time_continues_from_the_wall_clock() {
        let started = Instant::now();
        let clock = Clock { wall: 1_000, started };
        assert_eq!(clock.at(started), Time(1_000));
        assert_eq!(clock.at(started + Duration::from_secs(2)), Time(3_000));
    }
}
