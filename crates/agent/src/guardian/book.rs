//! What the agent knows of the guardian's tasks, and who waits for which.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use agentaflow_api::link::TaskKey;
use agentaflow_api::units::Stamp;

use super::wire::{ExitRecord, TaskState};

type Waiter = oneshot::Sender<Option<ExitRecord>>;

/// The agent's copy of what the guardian has.
#[derive(Debug, Default)]
pub(super) struct Book(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    tasks: BTreeMap<TaskKey, TaskState>,
    waiters: BTreeMap<TaskKey, Vec<Waiter>>,
    containers: BTreeMap<TaskKey, PathBuf>,
    /// A guardian has said what it has; before that, not to be in the book means nothing.
    complete: bool,
}

impl Book {
    /// A task was started. Its end may have been told before.
    pub(super) fn begun(&self, key: TaskKey, started_at: Stamp) {
        self.pages().tasks.entry(key).or_insert(TaskState { key, started_at, ended: None });
    }

    /// A task is over.
    pub(super) fn over(&self, task: TaskState) {
        let mut pages = self.pages();
        for waiter in pages.waiters.remove(&task.key).unwrap_or_default() {
            let _ = waiter.send(task.ended.clone());
        }
        pages.tasks.insert(task.key, task);
    }

    /// All that a guardian has: after this, what is not named is unknown to it.
    pub(super) fn replace(&self, tasks: Vec<TaskState>) {
        let mut pages = self.pages();
        pages.complete = true;
        pages.tasks = tasks.into_iter().map(|task| (task.key, task)).collect();
        let Pages { tasks, waiters, .. } = &mut *pages;
        waiters.retain(|key, waiting| match tasks.get(key) {
            Some(TaskState { ended: None, .. }) => true,
            other => {
                let exit = other.and_then(|task| task.ended.clone());
                waiting.drain(..).for_each(|waiter| drop(waiter.send(exit.clone())));
                false
            }
        });
    }

    /// How a task ended, if it did.
    pub(super) fn ended(&self, key: TaskKey) -> Option<ExitRecord> {
        self.pages().tasks.get(&key)?.ended.clone()
    }

    /// How a task ended, once it did; none if nobody knows it.
    pub(super) async fn wait(&self, key: TaskKey) -> Option<ExitRecord> {
        let waiting = {
            let mut pages = self.pages();
            match pages.tasks.get(&key) {
                Some(TaskState { ended: Some(exit), .. }) => return Some(exit.clone()),
                None if pages.complete => return None,
                _ => {}
            }
            let (waiter, waiting) = oneshot::channel();
            pages.waiters.entry(key).or_default().push(waiter);
            waiting
        };
        waiting.await.ok().flatten()
    }

    /// A task is of no more interest.
    pub(super) fn forget(&self, key: TaskKey) {
        let mut pages = self.pages();
        pages.tasks.remove(&key);
        pages.containers.remove(&key);
    }

    /// A container that must not outlive the lease; a new guardian is told of it too.
    pub(super) fn protect(&self, key: TaskKey, engine: PathBuf) {
        self.pages().containers.insert(key, engine);
    }

    /// The containers that must not outlive the lease.
    pub(super) fn protected(&self) -> Vec<(TaskKey, PathBuf)> {
        self.pages().containers.iter().map(|(key, engine)| (*key, engine.clone())).collect()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
