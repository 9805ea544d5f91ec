//! The time as the engine counts it.

use agentaflow_engine::Time;
use std::time::Instant;

/// The clock on the wall when we began to lead, and since then one that never jumps: nothing fires early or stands
/// still because somebody set the time.
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
    fn time_goes_on_from_where_the_wall_clock_stood() {
        let started = Instant::now();
        let clock = Clock { wall: 1_000, started };
        assert_eq!(clock.at(started), Time(1_000));
        assert_eq!(clock.at(started + Duration::from_secs(2)), Time(3_000));
    }
}
