//! Start of tasks. The guardian does other work until the program of a task runs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tracing::warn;

use agentaflow_api::link::TaskKey;
use agentaflow_api::units::Stamp;

use super::super::record::{self, StartRecord};
use super::super::running_task::{RunningTask, StartState};
use super::super::spawn::{SpawnOptions, Started, node_fault, spawn};
use super::super::wire::{ProcessSpec, Response, StartFault};
use super::super::{MARKER, procs};
use super::Supervisor;
use crate::clock::boot_ms;

impl Supervisor {
    /// Starts a task. Returns `None` if [`Self::finish_start`] or [`Self::reap`] will return the result. A repeated
    /// request has the result of the first.
    pub(crate) fn start(&mut self, spec: &ProcessSpec) -> Option<Response> {
        self.leaving = false;
        if self.running.get(&spec.key).is_some_and(|task| task.start != StartState::Done) {
            return None;
        }
        if let Some(state) = self.state(spec.key) {
            return Some(Response::Started { at: state.started_at });
        }
        let launched = self.check_start(spec).and_then(|dir| self.launch(spec, dir));
        launched.err().map(|fault| Response::Failed { fault })
    }

    /// Returns the folder of the task.
    fn check_start(&mut self, spec: &ProcessSpec) -> Result<PathBuf, StartFault> {
        let dir = record::folder(&self.tasks, spec.key);
        if !dir.is_dir() {
            let detail = format!("the folder of task {} does not exist", spec.key);
            return Err(StartFault::Node { detail });
        }
        if spec.leased && boot_ms() >= self.lease() {
            // The server may have assigned the task to another node.
            let detail = "the lease expired: the node has lost its connection to the server";
            return Err(StartFault::Node { detail: detail.to_owned() });
        }
        Ok(dir)
    }

    fn launch(&mut self, spec: &ProcessSpec, dir: PathBuf) -> Result<(), StartFault> {
        let groups = self.groups.create(spec)?;
        let options =
            groups.open().map_err(|error| node_fault("open the cgroups of a process", &error))?;
        let (oom_score, private_tmp) = (self.oom_score, self.private_tmp);
        let options = SpawnOptions { oom_score, private_tmp, ..options };
        let Started { pid, output, outcome } = spawn(spec, &dir, options)?;
        tokio::spawn(output.clone().pump());
        let key = spec.key;
        self.starts.spawn(async move { (key, outcome.wait().await) });
        let (since, started_at) = (Instant::now(), Stamp::now());
        let started = procs::stat(pid).map_or(0, |stat| stat.started);
        let user = spec.user.map(|(uid, _)| uid);
        let uid = user.filter(|_| spec.exclusive_user);
        let start = StartRecord { pid, started, boot: self.boot.clone(), started_at, uid };
        if let Err(error) = record::write_start(&dir, &start) {
            // A full disk must not stop a running task; the marker in its environment still identifies it.
            warn!(%key, %error, "cannot save the start of a task");
        }
        let running = RunningTask {
            key,
            pid,
            start: StartState::Pending,
            user,
            started_at,
            since,
            grace: Duration::from_millis(spec.grace_ms),
            leased: spec.leased,
            output,
            stopped: None,
            kill_at: None,
            groups,
            marker: spec.env.get(MARKER).map(|value| value.expose().to_owned()).unwrap_or_default(),
            dir,
            peak: 0,
            memory_now: 0,
            descendants: BTreeSet::new(),
            ended: None,
        };
        self.running.insert(key, running);
        Ok(())
    }

    /// Waits for a program that runs, or did not start. Returns `None` without pending starts.
    pub(crate) async fn next_start(&mut self) -> Option<(TaskKey, Result<(), StartFault>)> {
        self.starts.join_next().await?.ok()
    }

    /// Records the result of a start; `None` if it failed: the first process has to end before the response.
    pub(crate) fn finish_start(
        &mut self,
        key: TaskKey,
        outcome: Result<(), StartFault>,
    ) -> Option<Response> {
        let running = self.running.get_mut(&key)?;
        match outcome {
            Ok(()) => {
                running.start = StartState::Done;
                Some(Response::Started { at: running.started_at })
            }
            Err(fault) => {
                running.signal(Signal::KILL, &[]);
                running.start = StartState::Failed(fault);
                None
            }
        }
    }
}
