//! Current pending reasons for lists of jobs, so that lists and explanations agree.
//!
//! The engine reports a reason by itself only when its kind changes; the numbers in a recorded reason become outdated.
//! Lists query a copy of the engine, outside of the core's lock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agentaflow_api::pending::PendingReason;
use agentaflow_engine::{Time, WaitReasons};

use super::explain::{PendingContext, pending_reason};
use super::handle::Core;
use super::job::workload::workload_id;
use crate::store::JobRow;

/// A system with more jobs and nodes is copied at most once in [`LARGE_AGE`]: the copy of 100,000 jobs holds the core's lock
/// for about 25 ms, and heartbeats need the lock.
const LARGE: usize = 5_000;
const LARGE_AGE: Duration = Duration::from_secs(10);
/// A copy of a small system serves lists for this long, unless the engine changed.
const SMALL_AGE: Duration = Duration::from_millis(100);

/// A copy of the engine that several lists share.
#[derive(Clone, Debug)]
struct EngineCopy {
    reasons: Arc<Mutex<WaitReasons>>,
    now: Time,
    made: Instant,
    /// Version of the engine.
    version: u64,
    large: bool,
}

/// Last copy of the engine.
#[derive(Debug, Default)]
pub(super) struct ReasonCache(Mutex<Option<EngineCopy>>);

/// Pending reasons of one list, all from one copy of the engine.
#[derive(Debug, Default)]
pub struct PendingReasons(Option<EngineCopy>);

impl Core {
    /// Current reason of a pending job; none if the next pass starts it.
    pub(super) fn pending_reason(
        &self,
        row: &JobRow,
        list: &mut PendingReasons,
    ) -> Option<PendingReason> {
        let copy = list.0.get_or_insert_with(|| self.engine_copy());
        let mut reasons = copy.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = reasons.of(&workload_id(row.id))?;
        let published = &self.inner.published;
        let is_gone = |name: &&str| !published.has_node_named(name);
        let context = PendingContext {
            gate: row.state.gate.as_ref(),
            nodes: published.node_count(),
            missing_node: row.pinned.as_deref().filter(is_gone),
        };
        Some(pending_reason(&reason, copy.now, &context))
    }

    fn engine_copy(&self) -> EngineCopy {
        let mut last = self.inner.reasons.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = &*last
            && copy.large
            && copy.made.elapsed() < LARGE_AGE
        {
            return copy.clone();
        }
        let state = self.inner.lock();
        let version = state.engine.version();
        if let Some(copy) = &*last
            && copy.version == version
            && copy.made.elapsed() < SMALL_AGE
        {
            return copy.clone();
        }
        let now = state.engine.now();
        let copy = EngineCopy {
            reasons: Arc::new(Mutex::new(state.engine.scheduler().wait_reasons(now))),
            now,
            made: Instant::now(),
            version,
            large: state.engine.scheduler().len() + state.nodes.len() > LARGE,
        };
        *last = Some(copy.clone());
        copy
    }
}
