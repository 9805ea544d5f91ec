//! Starts a process from its spec; nothing of the guardian's environment is inherited.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;

use agentaflow_api::end::{EndCause, EndReason, StartFailure};
use agentaflow_linux::process::{
    self, Confinement, ProcessImage, REPORT_LENGTH, SpawnError, Step, outcome,
};

use super::output::Output;
use super::wire::{ProcessSpec, StartFault};
use super::{procs, temporary_files};

const ENOEXEC: i32 = 8;

/// Longest start of a program, such as one on a slow network disk.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Cgroups and limits of a process that its spec does not contain.
#[derive(Debug, Default)]
pub(super) struct SpawnOptions {
    /// Directory of the cgroup of version 2.
    pub(super) unified_cgroup: Option<OwnedFd>,
    /// Directories of other cgroups.
    pub(super) cgroups: Vec<OwnedFd>,
    /// A cgroup limits the number of processes.
    pub(super) pids_limited: bool,
    pub(super) oom_score: Option<i32>,
    /// Separate the temporary files of the process.
    pub(super) private_tmp: bool,
}

/// Process whose program may not run yet.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) pid: u32,
    pub(super) output: Output,
    pub(super) outcome: StartOutcome,
}

/// Result of a start that may take any time.
#[derive(Debug)]
pub(super) struct StartOutcome {
    pid: u32,
    report: Receiver,
    program: String,
    working_dir: PathBuf,
}

/// Starts the process in its own session, with its output going to `output.log` in the task folder. The guardian
/// never enters a cgroup of a task: the memory limit of a job must not end the guardian.
pub(super) fn spawn(
    spec: &ProcessSpec,
    dir: &Path,
    options: SpawnOptions,
) -> Result<Started, StartFault> {
    let program = spec.argv.first().filter(|program| !program.is_empty());
    let Some(program) = program else {
        return Err(job_fault(None, "The job has no command".to_owned()));
    };
    if !spec.working_dir.is_dir() {
        let dir = spec.working_dir.display();
        let detail = format!("Working directory `{dir}` does not exist on the node");
        return Err(job_fault(None, detail));
    }
    let env = spec.env.iter().map(|(name, value)| (&**name, value.expose()));
    let image = ProcessImage::new(&spec.argv, env, &spec.working_dir)
        .map_err(|error| exec_error(program, &error))?;
    let (output, writer) = Output::open(dir, spec.user, spec.log_limit)
        .map_err(|error| node_fault("open the log", &error))?;
    let files = spec.temporary_files.as_ref().filter(|_| options.private_tmp);
    let mounts = files.map(|files| temporary_files::mounts(spec, dir, files)).transpose();
    let mounts =
        mounts.map_err(|error| node_fault("separate the temporary files of a process", &error))?;
    // The confinement has the guardian's copy of the pipe, and closes it.
    let confinement = Confinement { mounts, ..confinement(spec, options, writer.into()) };
    let spawned = process::spawn(&image, &confinement)
        .map_err(|error| node_fault(&error.step.to_string(), &error.source))?;
    let pid = spawned.pid;
    let report = Receiver::from_owned_fd(spawned.report.into()).map_err(|error| {
        procs::signal(pid, Signal::KILL);
        node_fault("read the report of a process", &error)
    })?;
    let (program, working_dir) = (program.clone(), spec.working_dir.clone());
    Ok(Started { pid, output, outcome: StartOutcome { pid, report, program, working_dir } })
}

impl StartOutcome {
    /// Waits until the program runs. A process that does not start in time is not killed here.
    pub(super) async fn wait(self) -> Result<(), StartFault> {
        let mut report = [0; REPORT_LENGTH];
        let result = match timeout(START_LIMIT, self.read(&mut report)).await {
            Ok(Ok(length)) => outcome(&report[..length]),
            Ok(Err(source)) => Err(SpawnError { step: Step::Exec, source }),
            Err(_) if procs::stat(self.pid).is_some_and(|stat| stat.stopped) => {
                let detail = "A signal stopped the process before its program started";
                return Err(job_fault(None, detail.to_owned()));
            }
            Err(_) => Err(SpawnError { step: Step::Exec, source: ErrorKind::TimedOut.into() }),
        };
        result.map_err(|error| start_error(&self.working_dir, &self.program, &error))
    }

    async fn read(&self, report: &mut [u8]) -> io::Result<usize> {
        loop {
            self.report.readable().await?;
            match self.report.try_read(report) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

fn confinement(spec: &ProcessSpec, options: SpawnOptions, output: OwnedFd) -> Confinement {
    // The kernel counts all processes of a user, so the limit makes no sense for the guardian's own user.
    let counted = spec.user.is_some() && !options.pids_limited;
    Confinement {
        output,
        user: spec.user,
        unified_cgroup: options.unified_cgroup,
        cgroups: options.cgroups,
        open_files: spec.open_files,
        user_processes: if counted { spec.pids } else { 0 },
        oom_score: options.oom_score,
        mounts: None,
    }
}

fn start_error(working_dir: &Path, program: &str, error: &SpawnError) -> StartFault {
    match (error.step, error.source.kind()) {
        (Step::Exec, _) => exec_error(program, &error.source),
        (Step::WorkingDir, ErrorKind::PermissionDenied | ErrorKind::NotFound) => {
            let (dir, reason) = (working_dir.display(), &error.source);
            job_fault(None, format!("Cannot enter the working directory `{dir}`: {reason}"))
        }
        (step, _) => node_fault(&step.to_string(), &error.source),
    }
}

/// The detail does not contain the environment, which has secrets.
fn exec_error(program: &str, error: &io::Error) -> StartFault {
    let shown: String = program.chars().take(200).collect();
    let reason = match error.kind() {
        ErrorKind::NotFound => "no such program on the node",
        ErrorKind::PermissionDenied => "permission denied",
        ErrorKind::InvalidInput => "null byte in arguments or environment",
        ErrorKind::ArgumentListTooLong => "arguments and environment are too long",
        ErrorKind::ExecutableFileBusy => "the file is open for writing",
        _ if error.raw_os_error() == Some(ENOEXEC) => {
            "not a program of this platform, nor a script that starts with #!"
        }
        _ => return node_fault(&format!("start `{shown}`"), error),
    };
    let missing = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied);
    // A job starts in its own folder, so a relative path does not name the user's file.
    let relative = program.contains('/') && !program.starts_with('/');
    let cause = if relative { EndCause::RelativeProgram } else { EndCause::ProgramNotFound };
    job_fault(missing.then_some(cause), format!("Cannot start `{shown}`: {reason}"))
}

fn job_fault(cause: Option<EndCause>, detail: String) -> StartFault {
    StartFault::Job(StartFailure { reason: EndReason::StartFailed, cause, detail })
}

pub(super) fn node_fault(operation: &str, error: &io::Error) -> StartFault {
    StartFault::Node { detail: format!("cannot {operation}: {error}") }
}
