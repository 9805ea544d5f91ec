//! Starts a process from its spec; nothing of the guardian's environment is inherited.

use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use agentaflow_api::end::{EndCause, EndReason, StartFailure};

use super::output::Output;
use super::wire::{ProcessSpec, StartFault};

const ENOEXEC: i32 = 8;

/// Starts the process in its own process group, with its output going to `output.log` in the task folder.
pub(super) fn spawn(spec: &ProcessSpec, dir: &Path) -> Result<(u32, Output), StartFault> {
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
    let (output, stdout) =
        Output::open(dir, spec.user, spec.log_limit).map_err(|error| no_log(&error))?;
    let stderr = stdout.try_clone().map_err(|error| no_log(&error))?;
    let mut command = Command::new(program);
    command
        .args(&spec.argv[1..])
        .env_clear()
        .envs(spec.env.iter().map(|(name, value)| (name, value.expose())))
        .current_dir(&spec.working_dir)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .process_group(0);
    if let Some((uid, gid)) = spec.user {
        // With a uid set, the standard library also drops root's supplementary groups.
        command.uid(uid).gid(gid);
    }
    // The handle is dropped: the supervisor reaps all children.
    command.spawn().map(|child| (child.id(), output)).map_err(|error| exec_error(program, &error))
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
