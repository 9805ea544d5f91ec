//! Why the jobs of a list wait: the engine is asked when they are shown, so that lists and explanations say the same.
//!
//! The engine tells by itself only when the sort of a reason changes; the numbers in what it told once grow old.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agentaflow_api::job::{Job, JobStatus};
use agentaflow_engine::{Time, WaitReasons};

use super::handle::Core;
use super::show::in_words;
use super::state::workload_id;
use crate::store::JobRow;

/// Jobs and nodes of a system that is small enough to be copied for every list.
const SMALL: usize = 5_000;
/// A large system is copied no more often than this, however many ask.
const LARGE_AGE: Duration = Duration::from_secs(1);

/// A copy of the engine that several lists may ask.
type Shared = Arc<Mutex<WaitReasons>>;

/// The last copy of a large system, and when it was made.
pub(super) type Latest = Mutex<Option<(Instant, Shared)>>;

/// Why jobs wait, as of the moment when the first of them was shown. A list has one.
#[derive(Debug, Default)]
pub struct Waits(Option<(Shared, Time)>);

impl Core {
    /// A job as the API shows it.
    pub fn show_job(&self, row: JobRow) -> Job {
        self.show_listed(row, &mut Waits::default())
    }

    /// A job of a list as the API shows it.
    pub fn show_listed(&self, row: JobRow, waits: &mut Waits) -> Job {
        let why = (row.state.status == JobStatus::Pending).then(|| self.why(row.id, waits));
        self.inner.lock().show_job(row, why.flatten())
    }

    fn why(&self, job: i64, waits: &mut Waits) -> Option<String> {
        let (reasons, now) = waits.0.get_or_insert_with(|| self.reasons());
        // The copy is asked without the core's lock: nobody else waits for the answer.
        let mut reasons = reasons.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.of(&workload_id(job)).map(|reason| in_words(&reason, *now))
    }

    fn reasons(&self) -> (Shared, Time) {
        let mut latest = self.inner.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.inner.lock();
        let now = state.clock.now();
        let small = state.engine.len() + state.nodes.len() <= SMALL;
        if let Some((_, copy)) =
            latest.as_ref().filter(|(at, _)| !small && at.elapsed() < LARGE_AGE)
        {
            return (copy.clone(), now);
        }
        let copy = Arc::new(Mutex::new(state.engine.wait_reasons(now)));
        *latest = (!small).then(|| (Instant::now(), copy.clone()));
        (copy, now)
    }
}
