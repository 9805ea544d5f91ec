//! Plans beside the core: explanations and forecasts run on a copy of the engine, outside of the core's lock.
//!
//! All plans share the latest copy. It has every change from before the call. The core is locked while the engine is
//! copied (10 ms at 100,000 jobs), so copies are rare: a plan waits rather than copy again too soon.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tokio::sync::{OwnedMutexGuard, Semaphore};

use agentaflow_api::ids::UserId;
use agentaflow_engine::{Scheduler, Time};

use super::committer::Inner;
use crate::api_error::ApiError;

/// Interval between two copies, as a multiple of the time that the last one took: the core is locked for at most one part
/// in so many.
const COPY_INTERVALS: u32 = 50;
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// An unused copy is deleted after this time.
const COPY_LIFE: Duration = Duration::from_secs(10);
/// Plans of one account at a time; further plans of the account are rejected.
const PLANS_OF_USER: usize = 4;

#[derive(Debug)]
pub(super) struct Planner {
    latest: Arc<tokio::sync::Mutex<Option<Arc<EngineCopy>>>>,
    /// Number of changes of the engine.
    changes: Arc<AtomicU64>,
    /// Plans that run at a time; half of the processors stay free for the core.
    turns: Arc<Semaphore>,
    /// Plans of each user that wait or run.
    users: Arc<Mutex<FxHashMap<UserId, usize>>>,
}

#[derive(Debug)]
struct EngineCopy {
    scheduler: Scheduler,
    changes: u64,
    made: Instant,
    took: Duration,
}

/// Place of a plan among the plans of its user.
struct UserSlot {
    user: UserId,
    users: Arc<Mutex<FxHashMap<UserId, usize>>>,
}

impl Planner {
    pub(super) fn new(changes: Arc<AtomicU64>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            latest: Arc::default(),
            changes,
            turns: Arc::new(Semaphore::new((processors / 2).max(1))),
            users: Arc::default(),
        }
    }

    fn slot(&self, user: UserId) -> Result<UserSlot, ApiError> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let plans = users.entry(user).or_default();
        if *plans >= PLANS_OF_USER {
            let message =
                format!("{PLANS_OF_USER} explanations of this account run already; try again");
            return Err(ApiError::too_many(message, 1));
        }
        *plans += 1;
        Ok(UserSlot { user, users: self.users.clone() })
    }
}

impl Drop for UserSlot {
    fn drop(&mut self) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let plans = users.get_mut(&self.user).map(|plans| {
            *plans -= 1;
            *plans
        });
        if plans == Some(0) {
            users.remove(&self.user);
        }
    }
}

impl EngineCopy {
    /// Earliest time of the next copy.
    fn next(&self) -> Instant {
        self.made + (self.took * COPY_INTERVALS).min(LONGEST_INTERVAL)
    }
}

impl Inner {
    /// Answer of the engine to a question of a user. The question runs on a thread of its own.
    pub(super) async fn plan<T: Send + 'static>(
        self: &Arc<Self>,
        user: UserId,
        question: impl FnOnce(&Scheduler, Time) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        // Plans that wait for their turn share the copy that the first of them makes.
        let called = Instant::now();
        let slot = self.planner.slot(user)?;
        let turn = self.planner.turns.clone().acquire_owned().await.map_err(|_| failed())?;
        let copy = self.engine_copy(called).await?;
        let now = self.clock.now();
        let answer = tokio::task::spawn_blocking(move || {
            let answer = question(&copy.scheduler, now);
            drop((copy, turn, slot));
            answer
        });
        answer.await.map_err(|_| failed())
    }

    /// Copy of the engine with every change from before `called`.
    async fn engine_copy(self: &Arc<Self>, called: Instant) -> Result<Arc<EngineCopy>, ApiError> {
        let latest = self.planner.latest.clone().lock_owned().await;
        if let Some(copy) = &*latest {
            let changes = self.planner.changes.load(Ordering::SeqCst);
            if copy.made >= called || copy.changes == changes {
                return Ok(copy.clone());
            }
            tokio::time::sleep_until(copy.next().into()).await;
        }
        let inner = self.clone();
        let copy = tokio::task::spawn_blocking(move || inner.copy_engine(latest));
        let copy = copy.await.map_err(|_| failed())?;
        tokio::spawn(delete_later(self.planner.latest.clone()));
        Ok(copy)
    }

    /// Replaces the latest copy. Both the copy and the deletion of the old one take long.
    fn copy_engine(&self, mut latest: OwnedMutexGuard<Option<Arc<EngineCopy>>>) -> Arc<EngineCopy> {
        let copy = {
            let state = self.lock();
            let made = Instant::now();
            let changes = state.engine.changes().load(Ordering::SeqCst);
            let scheduler = state.engine.scheduler().clone();
            Arc::new(EngineCopy { scheduler, changes, made, took: made.elapsed() })
        };
        *latest = Some(copy.clone());
        copy
    }
}

/// Deletes the latest copy after its life, unless there is a later one.
async fn delete_later(latest: Arc<tokio::sync::Mutex<Option<Arc<EngineCopy>>>>) {
    tokio::time::sleep(COPY_LIFE).await;
    let mut latest = latest.lock_owned().await;
    let delete = move || drop(latest.take_if(|copy| copy.made.elapsed() >= COPY_LIFE));
    // A server that stops deletes the copy anyway.
    let _ = tokio::task::spawn_blocking(delete).await;
}

fn failed() -> ApiError {
    ApiError::unavailable("the engine could not answer; try again in a moment")
}
