//! Sentinel: a process that outlives a killed guardian until its tasks have ended. The kernel ends the first process of a
//! process job together with the guardian, but neither the processes that the job has started nor containers. The
//! sentinel kills the former at once. Containers run until the end of their lease, unless a new guardian takes over.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::setsid;
use tracing::{info, warn};

use agentaflow_linux::memory::release_program_pages;

use super::container_leases::{ContainerLeases, LeaseFile};
use super::role::Role;
use super::supervisor::{OverdueContainers, reap_if_dead};
use super::{leftovers, socket, task_groups};
use crate::clock::until;
use crate::runtime::docker::stop_overdue;

/// Interval between checks for a new guardian.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Interval between attempts to lock the directory of a dead guardian.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

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

/// Waits for the death of the guardian, then ends its tasks.
pub(super) fn watch(dir: &Path) -> io::Result<()> {
    // Signals to the guardian's session must not reach the sentinel. Fails for a session leader.
    let _ = setsid();
    // A sweep starts its sentinel unprotected.
    let _ = super::protect_from_oom();
    // Sleeps almost always.
    let _ = release_program_pages();
    io::stdin().read_to_end(&mut Vec::new())?;
    if kill_processes(dir)?
        && let Some(leases) = wait_for_expiry(dir)?
    {
        stop_containers(dir, &leases)?;
    }
    Ok(())
}

/// Ends the tasks of a killed guardian, unless another guardian runs: that guardian has ended them. Does not wait for the
/// lease of containers: a new sentinel does.
pub(super) fn sweep(dir: &Path) -> io::Result<()> {
    if kill_processes(dir)? && LeaseFile::new(dir).load().is_some() {
        // The sentinel starts at once, because this end of its link is closed.
        let (pid, _link) = start()?;
        info!(pid, "a sentinel waits for the lease of containers");
    }
    Ok(())
}

/// Returns false if another guardian runs.
fn kill_processes(dir: &Path) -> io::Result<bool> {
    let Some(_lock) = lock(dir)? else { return Ok(false) };
    let tasks = dir.join(super::TASKS).canonicalize()?;
    let groups = task_groups(dir);
    let ended = leftovers::settle(&tasks, &groups);
    info!(tasks = ended.len(), "killed the process jobs of a killed guardian");
    groups.remove();
    Ok(true)
}

/// Locks the directory of a dead guardian; `None` if another guardian runs. The kernel closes the files of a killed
/// process one after the other: the lock may outlive the link for a moment.
fn lock(dir: &Path) -> io::Result<Option<socket::GuardianLock>> {
    let began = Instant::now();
    loop {
        if let Some(lock) = socket::lock(dir)? {
            return Ok(Some(lock));
        }
        if socket::answers(dir) || began.elapsed() > super::LOCK_LIMIT {
            return Ok(None);
        }
        sleep(LOCK_INTERVAL);
    }
}

/// Returns the containers at the end of their lease, or `None` if there are none or a new guardian has taken over. The lock
/// is free between the checks, so that a guardian can start.
fn wait_for_expiry(dir: &Path) -> io::Result<Option<ContainerLeases>> {
    let file = LeaseFile::new(dir);
    loop {
        if socket::lock(dir)?.is_none() {
            return Ok(None);
        }
        let Some(leases) = file.load() else { return Ok(None) };
        let left = until(leases.until_ms);
        if left.is_zero() {
            return Ok(Some(leases));
        }
        sleep(left.min(CHECK_INTERVAL));
    }
}

/// Returns when Docker confirms that no container is left. A guardian that starts meanwhile does the same.
fn stop_containers(dir: &Path, leases: &ContainerLeases) -> io::Result<()> {
    let containers = leases.containers.iter().map(|(key, socket)| (*key, socket));
    let overdue = OverdueContainers::by_socket(containers, leases.until_ms);
    info!(containers = leases.containers.len(), "the lease of a killed guardian expired");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(join_all(overdue.iter().map(|overdue| {
        stop_overdue(&overdue.docker_socket, dir, &overdue.keys, overdue.since_ms)
    })));
    match socket::lock(dir)? {
        Some(_lock) => LeaseFile::new(dir).remove(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_outlives_the_guardian_for_a_moment_delays_the_sentinel() {
        let dir = tempfile::tempdir().unwrap();
        let held = socket::lock(dir.path()).unwrap();
        assert!(held.is_some());
        let path = dir.path().to_owned();
        let sentinel = std::thread::spawn(move || lock(&path).unwrap().is_some());
        sleep(Duration::from_millis(100));
        drop(held);
        assert!(sentinel.join().unwrap());
    }

    #[test]
    fn a_sentinel_leaves_if_another_guardian_answers() {
        let dir = tempfile::tempdir().unwrap();
        let _held = socket::lock(dir.path()).unwrap();
        let _guardian =
            std::os::unix::net::UnixListener::bind(dir.path().join("guardian.sock")).unwrap();
        assert!(lock(dir.path()).unwrap().is_none());
    }
}
