//! Tasks as plain processes of the host, through the guardian, which outlives the agent.
//!
//! What is not isolated: a process sees the host's files and network with the rights of its user, and the other
//! jobs of that user. Memory and CPU are limited only where the machine has unified control groups. So it must be
//! allowed by the host's operator, and granted to the job's user.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

use agentaflow_api::end::{EndCause, EndReason, StartFailure};
use agentaflow_api::job::Runtime as Kind;
use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_api::units::{Secret, Stamp};

use super::user::JobUser;
use super::{Exit, Found, Launch, Progress, Runtime, StartError, Used};
use crate::guardian::client::{Guardian, GuardianAway};
use crate::guardian::wire::{Answer, ExitRecord, Order};

/// Where programs are looked for, unless the job says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The default folder of a process, in the folder of its task. It belongs to the job's user; the task's does not.
pub(crate) const WORK: &str = "work";

/// How often a guardian is asked again whether a task is gone.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Runs tasks as processes.
#[derive(Debug)]
pub struct Process {
    guardian: Guardian,
    user: Option<JobUser>,
    pids_limit: u64,
    log_limit: u64,
}

impl Process {
    pub(crate) fn new(
        guardian: Guardian,
        user: Option<JobUser>,
        pids_limit: u64,
        log_limit: u64,
    ) -> Self {
        Self { guardian, user, pids_limit, log_limit }
    }

    fn order(&self, launch: &Launch) -> Result<Order, StartError> {
        let assignment = &launch.assignment;
        let argv = assignment.command.clone().unwrap_or_default();
        if argv.is_empty() {
            let detail = "a process job needs a `command`".to_owned();
            return Err(StartError::Job(StartFailure::new(EndReason::StartFailed, detail)));
        }
        let folder = std::fs::canonicalize(&launch.dir).map_err(|error| {
            StartError::Node(format!("the task's folder is not there: {error}"))
        })?;
        let work = folder.join(WORK);
        Ok(Order {
            key: assignment.key,
            argv,
            env: self.environment(launch, &work),
            working_dir: assignment.working_dir.as_ref().map_or(work, PathBuf::from),
            user: self.user.as_ref().map(|user| (user.uid, user.gid)),
            memory: assignment.memory,
            cpu_milli: assignment.cpu.0,
            pids: self.pids_limit,
            grace_ms: assignment.grace_ms,
            leased: assignment.leased,
            log_limit: self.log_limit,
        })
    }

    /// The guardian may have started it, and only the answer was lost: another node must not get it before it is
    /// certain that it does not run here. Returns when the guardian says so.
    pub(crate) async fn withdraw(&self, key: TaskKey) {
        loop {
            self.guardian.stop(key, StopCause::Replaced, Duration::ZERO);
            // What is asked comes after what was sent, so this answer knows of it.
            match self.guardian.list().await {
                Ok(tasks) => match tasks.iter().find(|task| task.key == key) {
                    None => return,
                    Some(task) if task.ended.is_some() => self.guardian.forget(key),
                    Some(_) => {}
                },
                Err(_) => {
                    tracing::warn!(%key, "it is not certain that this task does not run; asking again");
                }
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// The job's own variables over a minimum; nothing of the agent's environment, which may hold secrets.
    fn environment(&self, launch: &Launch, work: &Path) -> BTreeMap<String, Secret> {
        let home = match &self.user {
            Some(user) => Some(user.home.clone()),
            None => std::env::var_os("HOME").map(PathBuf::from),
        };
        let home = home.filter(|home| home.is_dir()).unwrap_or_else(|| work.to_owned());
        let path = match &self.user {
            Some(_) => PATH.to_owned(),
            None => std::env::var("PATH").unwrap_or_else(|_| PATH.to_owned()),
        };
        let lang = std::env::var("LANG").unwrap_or_else(|_| "C.UTF-8".to_owned());
        let base = [("PATH", path), ("HOME", home.to_string_lossy().into_owned()), ("LANG", lang)];
        let base = base.into_iter().map(|(name, value)| (name.to_owned(), value));
        base.chain(launch.env.iter().cloned()).map(|(name, value)| (name, Secret(value))).collect()
    }
}

#[async_trait]
impl Runtime for Process {
    fn kind(&self) -> Kind {
        Kind::Process
    }

    fn files(&self, dir: &Path) -> io::Result<[String; 2]> {
        let dir = std::fs::canonicalize(dir)?;
        Ok(["out/output.json", "data.json"]
            .map(|name| dir.join(name).to_string_lossy().into_owned()))
    }

    async fn start(&self, launch: &Launch, _progress: Progress<'_>) -> Result<Stamp, StartError> {
        let answer = match self.guardian.start(self.order(launch)?).await {
            Ok(answer) => answer,
            Err(lost) => {
                self.withdraw(launch.assignment.key).await;
                return Err(away(lost));
            }
        };
        match answer {
            Answer::Started { at } => Ok(at),
            Answer::Failed { job: true, detail } => {
                let cause = Some(program_fault(launch));
                let reason = EndReason::StartFailed;
                Err(StartError::Job(StartFailure { reason, cause, detail }))
            }
            Answer::Failed { detail, .. } => Err(StartError::Node(detail)),
            _ => Err(StartError::Node("the guardian answered something else".to_owned())),
        }
    }

    async fn wait(&self, key: TaskKey) -> Result<Exit, StartError> {
        let record = self.guardian.wait(key).await;
        record
            .as_ref()
            .map(exit)
            .ok_or_else(|| StartError::Node(format!("the guardian does not know task {key}")))
    }

    async fn stop(&self, key: TaskKey, cause: StopCause, grace: Duration) {
        self.guardian.stop(key, cause, grace);
    }

    async fn list(&self) -> Result<Vec<Found>, StartError> {
        let tasks = self.guardian.list().await.map_err(away)?;
        let found = tasks.into_iter().map(|task| Found {
            key: task.key,
            started_at: Some(task.started_at),
            ended: task.ended.is_some(),
        });
        Ok(found.collect())
    }

    async fn used(&self, key: TaskKey) -> Used {
        let (cpu_ms, memory) = self.guardian.used(key).await;
        Used { cpu: Duration::from_millis(cpu_ms), memory }
    }

    async fn pids(&self, key: TaskKey) -> Vec<u32> {
        self.guardian.pids(key).await
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
        ran: Duration::from_millis(record.ran_ms),
        started_at: Some(record.started_at),
    }
}

/// The guardian does not answer, in words.
/// Cause of a program that the node cannot execute. A relative path fails because a job starts in its own folder.
fn program_fault(launch: &Launch) -> EndCause {
    let program = launch.assignment.command.iter().flatten().next().map_or("", String::as_str);
    if program.contains('/') && !program.starts_with('/') {
        EndCause::RelativeProgram
    } else {
        EndCause::ProgramNotFound
    }
}

pub(crate) fn away(_: GuardianAway) -> StartError {
    StartError::Node("the guardian of this node does not answer; its log is `guardian.log` in the agent's folder".to_owned())
}
