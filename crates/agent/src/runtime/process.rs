//! Runs tasks as processes of the host through the guardian, which outlives the agent.
//!
//! Processes see the host's files and network with the permissions of their user. Under a root agent the jobs of each
//! owner have their own user (`user.rs`). Memory and CPU are limited only on hosts with cgroup v2. So the host's operator
//! must allow process jobs, and an administrator must grant them to the job's owner.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

use agentaflow_api::end::EndReason;
use agentaflow_api::job::Runtime as RuntimeKind;
use agentaflow_api::link::{Assignment, StopCause, TaskKey};
use agentaflow_api::units::{Secret, Stamp};

use super::{Exit, FoundTask, Launch, Progress, Runtime, StartError, TaskUsage};
use crate::gpus::device_files;
use crate::guardian::client::{Guardian, GuardianUnreachable};
use crate::guardian::wire::{
    ExitRecord, ProcessSpec, Response, StartFault, TemporaryFiles, UsageRecord,
};
use crate::storage::{disk_usage, unlinked_usage};

/// `PATH` of jobs that do not set it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Default working directory of a process in its task folder. Owned by the job's user.
pub(crate) const WORK: &str = "work";

/// Folder of temporary files in the task folder, which `TMPDIR` names, and `/tmp` where the guardian separates it. Owned by
/// the job's user.
pub(crate) const TMP: &str = "tmp";

/// Interval between checks for the end of a withdrawn task.
const WITHDRAW_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Process {
    guardian: Guardian,
    /// Parent directory of the task folders.
    tasks: PathBuf,
    limits: ProcessLimits,
}

/// Limits of each process job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessLimits {
    /// Processes and threads.
    pub(crate) pids: u64,
    pub(crate) open_files: u64,
    /// Bytes of output.
    pub(crate) log: u64,
}

impl Process {
    pub(crate) fn new(guardian: Guardian, tasks: PathBuf, limits: ProcessLimits) -> Self {
        Self { guardian, tasks, limits }
    }

    fn spec(&self, launch: &Launch) -> Result<ProcessSpec, StartError> {
        // Names every field, so that a new field does not compile before it reaches the process or is listed here.
        let Assignment {
            key,
            command,
            working_dir,
            cpu,
            memory,
            grace_ms,
            leased,
            // `launch` has the environment made of these fields.
            env: _,
            job_data: _,
            gpus: _,
            simulated: _,
            // For containers only.
            image: _,
            registry_auth: _,
            shm: _,
            volumes: _,
            read_only: _,
            gang: _,
            // Labels of containers.
            job_name: _,
            user: _,
            // Read by `user.rs`.
            user_id: _,
            // Read by `crate::storage`.
            storage: _,
            // Read by `crate::tasks`.
            runtime: _,
            restart_on_gpu_error: _,
            timeout_ms: _,
            running: _,
            trace_id: _,
        } = &launch.assignment;
        let argv = command.clone().unwrap_or_default();
        if argv.is_empty() {
            let detail = "A process job needs a `command`";
            return Err(StartError::job(EndReason::StartFailed, detail));
        }
        let folder = std::fs::canonicalize(&launch.dir)
            .map_err(|error| StartError::Node(format!("cannot open the task folder: {error}")))?;
        let work = folder.join(WORK);
        Ok(ProcessSpec {
            key: *key,
            argv,
            env: environment(launch, &folder),
            working_dir: working_dir.as_ref().map_or(work, PathBuf::from),
            user: launch.user.as_ref().map(|user| (user.uid, user.gid)),
            exclusive_user: launch.user.as_ref().is_some_and(|user| user.exclusive),
            memory: *memory,
            cpu_milli: cpu.0,
            pids: self.limits.pids,
            open_files: self.limits.open_files,
            denied_devices: device_files::denied(&launch.devices),
            grace_ms: *grace_ms,
            leased: *leased,
            log_limit: self.limits.log,
            temporary_files: Some(TemporaryFiles {
                folder: folder.join(TMP),
                shared_memory: *memory,
                mps_pipes: launch.mps_pipes.clone(),
            }),
        })
    }

    /// Ensures that a task does not run on this node. The guardian may have started the task although its answer was
    /// lost; the server must not assign the task to another node before the guardian confirms the opposite.
    pub(crate) async fn withdraw(&self, key: TaskKey) {
        loop {
            self.guardian.stop(key, StopCause::Replaced, Duration::ZERO);
            // The guardian handles requests in order, so the list reflects the stop.
            match self.guardian.list().await {
                Ok(tasks) => match tasks.iter().find(|task| task.key == key) {
                    None => return,
                    Some(task) if task.ended.is_some() => self.guardian.forget(key),
                    Some(_) => {}
                },
                Err(_) => {
                    tracing::warn!(%key, "the guardian does not confirm that this task is not running; retrying");
                }
            }
            tokio::time::sleep(WITHDRAW_INTERVAL).await;
        }
    }
}

/// The job's variables over a minimal base. The agent's own environment may contain secrets and is not passed on.
fn environment(launch: &Launch, folder: &Path) -> BTreeMap<String, Secret> {
    let home = match &launch.user {
        Some(user) => Some(user.home.clone()),
        None => std::env::var_os("HOME").map(PathBuf::from),
    };
    let home = home.filter(|home| home.is_dir()).unwrap_or_else(|| folder.join(WORK));
    let path = match &launch.user {
        Some(_) => PATH.to_owned(),
        None => std::env::var("PATH").unwrap_or_else(|_| PATH.to_owned()),
    };
    let lang = std::env::var("LANG").unwrap_or_else(|_| "C.UTF-8".to_owned());
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let base =
        [("PATH", path), ("HOME", text(home)), ("LANG", lang), ("TMPDIR", text(folder.join(TMP)))];
    let base = base.into_iter().map(|(name, value)| (name.to_owned(), value));
    base.chain(launch.env.iter().cloned()).map(|(name, value)| (name, Secret(value))).collect()
}

#[async_trait]
impl Runtime for Process {
    fn kind(&self) -> RuntimeKind {
        RuntimeKind::Process
    }

    fn files(&self, dir: &Path) -> io::Result<[String; 2]> {
        let dir = std::fs::canonicalize(dir)?;
        Ok(["out/output.json", "data.json"]
            .map(|name| dir.join(name).to_string_lossy().into_owned()))
    }

    async fn start(&self, launch: &Launch, _progress: Progress<'_>) -> Result<Stamp, StartError> {
        let response = match self.guardian.start(self.spec(launch)?).await {
            Ok(response) => response,
            Err(lost) => {
                self.withdraw(launch.assignment.key).await;
                return Err(guardian_unreachable(lost));
            }
        };
        match response {
            Response::Started { at } => Ok(at),
            Response::Failed { fault: StartFault::Job(failure) } => Err(StartError::Job(failure)),
            Response::Failed { fault: StartFault::Node { detail } } => {
                Err(StartError::Node(detail))
            }
            _ => Err(StartError::Node("unexpected answer of the guardian".to_owned())),
        }
    }

    async fn wait(&self, key: TaskKey) -> Result<Exit, StartError> {
        let record = self.guardian.wait(key).await;
        record
            .as_ref()
            .map(exit)
            .ok_or_else(|| StartError::Node(format!("unknown to the guardian: task {key}")))
    }

    async fn stop(&self, key: TaskKey, cause: StopCause, grace: Duration) {
        self.guardian.stop(key, cause, grace);
    }

    async fn list(&self) -> Result<Vec<FoundTask>, StartError> {
        let tasks = self.guardian.list().await.map_err(guardian_unreachable)?;
        let found = tasks.into_iter().map(|task| FoundTask {
            key: task.key,
            started_at: Some(task.started_at),
            ended: task.ended.is_some(),
        });
        Ok(found.collect())
    }

    async fn used(&self, key: TaskKey) -> TaskUsage {
        let UsageRecord { cpu_ms, memory, memory_now } = self.guardian.usage(key).await;
        TaskUsage { cpu: Duration::from_millis(cpu_ms), memory, memory_now }
    }

    async fn pids(&self, key: TaskKey) -> Vec<u32> {
        self.guardian.pids(key).await
    }

    async fn disk_used(&self, key: TaskKey) -> Option<u64> {
        let folder = self.tasks.join(key.to_string());
        let pids = self.guardian.pids(key).await;
        let used = tokio::task::spawn_blocking(move || {
            Ok::<_, io::Error>(disk_usage(&folder)?.saturating_add(unlinked_usage(&folder, &pids)?))
        });
        used.await.ok()?.ok()
    }

    async fn remove(&self, key: TaskKey) {
        self.guardian.forget(key);
    }
}

fn exit(record: &ExitRecord) -> Exit {
    Exit {
        code: record.code,
        signal: record.signal,
        out_of_memory: record.out_of_memory,
        stopped: record.stopped,
        ran: record.ran_ms.map(Duration::from_millis),
        started_at: Some(record.started_at),
    }
}

pub(crate) fn guardian_unreachable(_: GuardianUnreachable) -> StartError {
    let detail = "the guardian does not answer; see `guardian.log` in the agent's state directory";
    StartError::Node(detail.to_owned())
}
