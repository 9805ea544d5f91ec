//! First process of a task, before it executes the program of the job: enters the cgroups of the task, gives up the
//! rights of the guardian, and asks the kernel to end it together with the guardian.
//!
//! The guardian itself never enters a cgroup of a task: the memory limit of a job must not end the guardian.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{
    Gid, Pid, Resource, Rlimit, Signal, Uid, getppid, getrlimit, set_parent_process_death_signal,
    setrlimit,
};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};

use agentaflow_api::units::Secret;

const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// Complete description of the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, Secret>,
    pub(super) working_dir: PathBuf,
    /// uid and gid; `None` keeps the guardian's.
    pub(super) user: Option<(u32, u32)>,
    /// Directories of cgroups.
    pub(super) cgroups: Vec<PathBuf>,
    /// Open files; 0 means no limit of its own.
    pub(super) open_files: u64,
    /// Processes and threads of the user; 0 means no limit of its own.
    pub(super) user_processes: u64,
    pub(super) oom_score: Option<i32>,
    /// Pid of the guardian.
    pub(super) guardian: u32,
}

/// Operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Step {
    Order,
    Limits,
    User,
    Exec,
}

/// Reason for which the program of the job does not run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LaunchFailure {
    pub(super) step: Step,
    pub(super) errno: Option<i32>,
}

impl LaunchFailure {
    pub(super) fn error(&self) -> io::Error {
        self.errno.map_or_else(|| io::ErrorKind::InvalidInput.into(), io::Error::from_raw_os_error)
    }
}

/// Reads an order from the standard input and executes it. The guardian reads a [`LaunchFailure`] from the same socket,
/// or its end when the program of the job runs.
pub(super) fn launch() -> io::Result<()> {
    // Closed by the kernel when the program starts.
    let mut control = UnixStream::from(fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?);
    dup2_stdin(File::open("/dev/null")?)?;
    // The standard output was free for the test harness; the job's output is the standard error.
    dup2_stdout(io::stderr())?;
    let mut bytes = Vec::new();
    control.read_to_end(&mut bytes)?;
    let failure = match serde_json::from_slice(&bytes) {
        Ok(order) => execute(&order),
        Err(_) => LaunchFailure { step: Step::Order, errno: None },
    };
    control.write_all(&serde_json::to_vec(&failure)?)
}

/// Returns only after a failure.
fn execute(order: &Order) -> LaunchFailure {
    let failed = |step| move |error: io::Error| LaunchFailure { step, errno: error.raw_os_error() };
    enter_cgroups(order);
    if let Some(score) = order.oom_score {
        // Raising it is always permitted.
        let _ = fs::write(OOM_SCORE, score.to_string());
    }
    let prepared = set_limits(order).map_err(failed(Step::Limits));
    // A change of the user clears the death signal, so it comes first.
    let prepared = prepared.and_then(|()| change_user(order).map_err(failed(Step::User)));
    let prepared = prepared.and_then(|()| die_with_guardian(order).map_err(failed(Step::Order)));
    if let Err(failure) = prepared {
        return failure;
    }
    let Some((program, args)) = order.argv.split_first() else {
        return LaunchFailure { step: Step::Order, errno: None };
    };
    let mut command = Command::new(program);
    command.args(args).env_clear().current_dir(&order.working_dir);
    command.envs(order.env.iter().map(|(name, value)| (name, value.expose())));
    failed(Step::Exec)(command.exec())
}

/// A cgroup that cannot be entered is not an error: the guardian then adds the process.
fn enter_cgroups(order: &Order) {
    for group in &order.cgroups {
        let file = OpenOptions::new().write(true).open(group.join("cgroup.procs"));
        let _ = file.and_then(|mut file| file.write_all(b"0"));
    }
}

fn set_limits(order: &Order) -> io::Result<()> {
    let limits = [(Resource::Nofile, order.open_files), (Resource::Nproc, order.user_processes)];
    for (resource, limit) in limits.into_iter().filter(|(_, limit)| *limit > 0) {
        let hard = getrlimit(resource).maximum;
        let limit = hard.map_or(limit, |hard| hard.min(limit));
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    }
    Ok(())
}

/// Changes the user of this thread. The program of the job replaces all other threads.
fn change_user(order: &Order) -> io::Result<()> {
    let Some((uid, gid)) = order.user else { return Ok(()) };
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

fn die_with_guardian(order: &Order) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The guardian may have died before.
    if getppid().map(Pid::as_raw_pid) != i32::try_from(order.guardian).ok() {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok(())
}
