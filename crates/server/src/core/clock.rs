//! The engine's time: counts on from the wall clock's reading at the start and never jumps.

use std::time::Instant;

use agentaflow_api::units::Stamp;
use agentaflow_engine::{Span, Time};

/// A clock that a changed wall clock does not disturb.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    base: u64,
    start: Instant,
}

impl Clock {
    /// Starts at the wall clock's time.
    pub(crate) fn new() -> Self {
        Self { base: Stamp::now().0.max(0) as u64, start: Instant::now() }
    }

    /// The engine's now.
    pub(crate) fn now(&self) -> Time {
        Time(self.base + self.start.elapsed().as_millis() as u64)
    }

    /// A point of the engine's future on the wall clock.
    pub(crate) fn stamp(&self, at: Time) -> Stamp {
        let Span(ahead) = at.since(self.now());
        Stamp(Stamp::now().0.saturating_add(ahead as i64))
    }
}
