//! The agent's copy of the guardian's tasks, and the futures that wait for their ends.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use agentaflow_api::link::TaskKey;
use agentaflow_api::units::Stamp;

use super::device_rule::DeviceControl;
use super::wire::{ExitRecord, TaskState};

type Waiter = oneshot::Sender<Option<ExitRecord>>;

#[derive(Debug, Default)]
pub(super) struct TaskCache(Mutex<CacheState>);

#[derive(Debug, Default)]
struct CacheState {
    tasks: BTreeMap<TaskKey, TaskState>,
    waiters: BTreeMap<TaskKey, Vec<Waiter>>,
    containers: BTreeMap<TaskKey, PathBuf>,
    device_control: Option<DeviceControl>,
    private_tmp: bool,
    /// The guardian has sent its task list; before that, an absent task may exist.
    complete: bool,
}

impl TaskCache {
    /// Records a started task, unless its end is already recorded.
    pub(super) fn record_start(&self, key: TaskKey, started_at: Stamp) {
        self.state().tasks.entry(key).or_insert(TaskState { key, started_at, ended: None });
    }

    pub(super) fn record_end(&self, task: TaskState) {
        let mut state = self.state();
        for waiter in state.waiters.remove(&task.key).unwrap_or_default() {
            let _ = waiter.send(task.ended.clone());
        }
        state.tasks.insert(task.key, task);
    }

    /// Replaces all tasks by the guardian's list. A waiter of a task that is not in the list gets `None`.
    pub(super) fn replace(&self, tasks: Vec<TaskState>) {
        let mut state = self.state();
        state.complete = true;
        state.tasks = tasks.into_iter().map(|task| (task.key, task)).collect();
        let CacheState { tasks, waiters, .. } = &mut *state;
        waiters.retain(|key, waiting| match tasks.get(key) {
            Some(TaskState { ended: None, .. }) => true,
            other => {
                let exit = other.and_then(|task| task.ended.clone());
                waiting.drain(..).for_each(|waiter| drop(waiter.send(exit.clone())));
                false
            }
        });
    }

    pub(super) fn ended(&self, key: TaskKey) -> Option<ExitRecord> {
        self.state().tasks.get(&key)?.ended.clone()
    }

    /// Waits for the end of a task; `None` if the guardian does not know the task.
    pub(super) async fn wait(&self, key: TaskKey) -> Option<ExitRecord> {
        let waiting = {
            let mut state = self.state();
            match state.tasks.get(&key) {
                Some(TaskState { ended: Some(exit), .. }) => return Some(exit.clone()),
                None if state.complete => return None,
                _ => {}
            }
            let (waiter, waiting) = oneshot::channel();
            state.waiters.entry(key).or_default().push(waiter);
            waiting
        };
        waiting.await.ok().flatten()
    }

    pub(super) fn forget(&self, key: TaskKey) {
        let mut state = self.state();
        state.tasks.remove(&key);
        state.containers.remove(&key);
    }

    /// Records a leased container, so that the agent can register it with a new guardian.
    pub(super) fn protect(&self, key: TaskKey, docker_socket: PathBuf) {
        self.state().containers.insert(key, docker_socket);
    }

    pub(super) fn protected(&self) -> Vec<(TaskKey, PathBuf)> {
        self.state()
            .containers
            .iter()
            .map(|(key, docker_socket)| (*key, docker_socket.clone()))
            .collect()
    }

    pub(super) fn set_host_controls(&self, devices: Option<DeviceControl>, private_tmp: bool) {
        let mut state = self.state();
        (state.device_control, state.private_tmp) = (devices, private_tmp);
    }

    pub(super) fn has_private_tmp(&self) -> bool {
        self.state().private_tmp
    }

    pub(super) fn device_control(&self) -> Option<DeviceControl> {
        self.state().device_control
    }

    fn state(&self) -> MutexGuard<'_, CacheState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
