//! Sentinel: a process that outlives a killed guardian just long enough to kill its tasks. The kernel ends the first
//! process of a task together with the guardian, but not the processes that the task has started.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use rustix::process::setsid;
use tracing::{info, warn};

use super::role::Role;
use super::{leftovers, socket, supervisor::reap_if_dead, task_groups};

/// Sentinel of this guardian.
#[derive(Debug)]
pub(super) struct Sentinel {
    pid: Option<u32>,
    /// Closed by the kernel when the guardian dies.
    _link: Option<UnixStream>,
}

impl Sentinel {
    /// Without a sentinel the next guardian kills the tasks of a killed one.
    pub(super) fn start() -> Self {
        match start() {
            Ok((pid, link)) => Self { pid: Some(pid), _link: Some(link) },
            Err(error) => {
                warn!(%error, "cannot start the sentinel; retrying");
                Self { pid: None, _link: None }
            }
        }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Starts a new sentinel if this one has ended.
    pub(super) fn restart_if_dead(&mut self) {
        if self.pid.is_none_or(reap_if_dead) {
            *self = Self::start();
        }
    }
}

fn start() -> io::Result<(u32, UnixStream)> {
    let (mut command, link) = Role::Sentinel.command()?;
    let child = command.stdout(Stdio::null()).spawn()?;
    Ok((child.id(), link))
}

/// Waits for the death of the guardian, then kills its tasks.
pub(super) fn watch(dir: &Path) -> io::Result<()> {
    // Signals to the guardian's session must not reach the sentinel. Fails for a session leader.
    let _ = setsid();
    io::stdin().read_to_end(&mut Vec::new())?;
    sweep(dir)
}

/// Kills the tasks of a killed guardian, unless another guardian runs: that guardian has killed them.
pub(super) fn sweep(dir: &Path) -> io::Result<()> {
    let Some(_lock) = socket::lock(dir)? else { return Ok(()) };
    let tasks = dir.join(super::TASKS).canonicalize()?;
    let groups = task_groups(dir);
    let ended = leftovers::settle(&tasks, &groups);
    info!(tasks = ended.len(), "killed the tasks of a killed guardian");
    groups.remove();
    Ok(())
}
