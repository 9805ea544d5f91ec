//! Starts a process with exactly what its order says and nothing of the guardian's own.

use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::output::Output;
use super::wire::Order;

/// Why a process did not start.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// The job is at fault: it would fail anywhere.
    pub(super) job: bool,
    /// In words, without the environment.
    pub(super) detail: String,
}

/// Starts it in a process group of its own, its output on the way to `output.log` in its folder.
pub(super) fn spawn(order: &Order, dir: &Path) -> Result<(u32, Output), Refused> {
    let program = order.argv.first().filter(|program| !program.is_empty());
    let Some(program) = program else {
        return Err(Refused { job: true, detail: "the job has no command to run".to_owned() });
    };
    if !order.working_dir.is_dir() {
        let detail =
            format!("the folder `{}` does not exist on this node", order.working_dir.display());
        return Err(Refused { job: true, detail });
    }
    let no_log = |error: &io::Error| node_fault("write the job's output", error);
    let (output, stdout) =
        Output::open(dir, order.user, order.log_limit).map_err(|error| no_log(&error))?;
    let stderr = stdout.try_clone().map_err(|error| no_log(&error))?;
    let mut command = Command::new(program);
    command
        .args(&order.argv[1..])
        .env_clear()
        .envs(order.env.iter().map(|(name, value)| (name, value.expose())))
        .current_dir(&order.working_dir)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .process_group(0);
    if let Some((uid, gid)) = order.user {
        // With a user given, the standard library also drops root's supplementary groups.
        command.uid(uid).gid(gid);
    }
    // The handle is dropped on purpose: the guardian waits for all its children in one place.
    command.spawn().map(|child| (child.id(), output)).map_err(|error| refused(program, &error))
}

fn refused(program: &str, error: &io::Error) -> Refused {
    let shown: String = program.chars().take(200).collect();
    let why = match error.kind() {
        ErrorKind::NotFound => "there is no such program on this node".to_owned(),
        ErrorKind::PermissionDenied => "it may not be executed".to_owned(),
        ErrorKind::InvalidInput => "a null byte stands in its arguments or environment".to_owned(),
        ErrorKind::ArgumentListTooLong => "its arguments and environment are too long".to_owned(),
        ErrorKind::ExecutableFileBusy => "its file is being written".to_owned(),
        _ if error.raw_os_error() == Some(8) => {
            "it is not a program that this machine can run".to_owned()
        }
        _ => return node_fault(&format!("start `{shown}`"), error),
    };
    Refused { job: true, detail: format!("cannot start `{shown}`: {why}") }
}

fn node_fault(what: &str, error: &io::Error) -> Refused {
    Refused { job: false, detail: format!("this node cannot {what}: {error}") }
}
