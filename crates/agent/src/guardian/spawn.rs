//! Starts a process from its spec; nothing of the guardian's environment is inherited.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use agentaflow_api::end::{EndCause, EndReason, StartFailure};

use super::launcher::{LaunchFailure, Order, Step};
use super::output::Output;
use super::procs;
use super::role::Role;
use super::wire::{ProcessSpec, StartFault};

const ENOEXEC: i32 = 8;

/// Longest start of a program, such as one on a slow network disk.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Surroundings of a process that its spec does not contain.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) cgroups: Vec<PathBuf>,
    /// A cgroup limits the number of processes.
    pub(super) pids_limited: bool,
    pub(super) oom_score: Option<i32>,
}

/// Starts the process in its own process group, with its output going to `output.log` in the task folder.
pub(super) fn spawn(
    spec: &ProcessSpec,
    dir: &Path,
    place: Place,
) -> Result<(u32, Output), StartFault> {
    let program = spec.argv.first().filter(|program| !program.is_empty());
    let Some(program) = program else {
        return Err(job_fault(None, "The job has no command".to_owned()));
    };
    if !spec.working_dir.is_dir() {
        let dir = spec.working_dir.display();
        let detail = format!("Working directory `{dir}` does not exist on the node");
        return Err(job_fault(None, detail));
    }
    let no_log = |error: &io::Error| node_fault("open the log", error);
    let (output, stderr) =
        Output::open(dir, spec.user, spec.log_limit).map_err(|error| no_log(&error))?;
    let no_launcher = |error: &io::Error| node_fault("start a process", error);
    let (mut command, control) = Role::Launcher.command().map_err(|error| no_launcher(&error))?;
    command.stdout(Stdio::null()).stderr(stderr).process_group(0);
    // The handle is dropped: the supervisor reaps all children.
    let pid = command.spawn().map_err(|error| no_launcher(&error))?.id();
    // Closes the guardian's copy of the pipe.
    drop(command);
    match hand_over(control, &order(spec, place)) {
        Ok(None) => Ok((pid, output)),
        Ok(Some(failure)) if failure.step == Step::Exec => {
            Err(exec_error(program, &failure.error()))
        }
        Ok(Some(failure)) => Err(node_fault(step(failure.step), &failure.error())),
        Err(error) => {
            procs::signal(pid, Signal::KILL);
            Err(no_launcher(&error))
        }
    }
}

fn order(spec: &ProcessSpec, place: Place) -> Order {
    // The kernel counts all processes of a user, so the limit makes no sense for the guardian's own user.
    let counted = spec.user.is_some() && !place.pids_limited;
    Order {
        argv: spec.argv.clone(),
        env: spec.env.clone(),
        working_dir: spec.working_dir.clone(),
        user: spec.user,
        cgroups: place.cgroups,
        open_files: spec.open_files,
        user_processes: if counted { spec.pids } else { 0 },
        oom_score: place.oom_score,
        guardian: std::process::id(),
    }
}

/// Sends the order to the launcher and waits until the program of the job runs.
fn hand_over(mut control: UnixStream, order: &Order) -> io::Result<Option<LaunchFailure>> {
    control.set_read_timeout(Some(START_LIMIT))?;
    control.write_all(&serde_json::to_vec(order)?)?;
    control.shutdown(Shutdown::Write)?;
    let mut reply = Vec::new();
    control.read_to_end(&mut reply)?;
    if reply.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&reply)?))
}

fn step(step: Step) -> &'static str {
    match step {
        Step::Order => "hand a process over to its launcher",
        Step::Limits => "limit a process",
        Step::User => "change the user of a process",
        Step::Exec => "start a process",
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
        _ if error.raw_os_error() == Some(ENOEXEC) => "not an executable for this platform",
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

fn node_fault(operation: &str, error: &io::Error) -> StartFault {
    StartFault::Node { detail: format!("cannot {operation}: {error}") }
}
