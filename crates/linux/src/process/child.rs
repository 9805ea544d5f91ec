//! Life of the child between fork and `exec`. Allocates nothing; see the module comment of `process`.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::{Errno, write};
use rustix::process::{
    Gid, Pid, Resource, Rlimit, Signal, Uid, chdir, getppid, getuid,
    set_parent_process_death_signal, setrlimit, setsid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::image::{Pointers, ProcessImage};
use super::report::{Reporter, Step};
use super::{Confinement, descriptors, keyring, signals};

const OOM_SCORE: &CStr = c"/proc/self/oom_score_adj";
const PROCESSES: &CStr = c"cgroup.procs";

/// Everything that the child needs, complete before the fork.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) image: &'a ProcessImage,
    pub(super) pointers: &'a Pointers<'a>,
    pub(super) confinement: &'a Confinement,
    pub(super) stdin: OwnedFd,
    pub(super) limits: [Option<(Resource, Rlimit)>; 2],
    pub(super) oom_score: Option<&'a str>,
    pub(super) parent: Pid,
    pub(super) reporter: Reporter,
    /// The kernel did not create the child in its cgroup of version 2.
    pub(super) enters_unified: bool,
}

/// Executes the program, or reports the step that failed and exits. A panic aborts, because `extern "C"` does not unwind.
pub(super) extern "C" fn run(plan: &Plan<'_>) -> ! {
    let (step, errno) = match prepare(plan) {
        Ok(()) => (Step::Exec, plan.pointers.exec()),
        Err((step, error)) => (step, error.raw_os_error()),
    };
    plan.reporter.send(step, errno);
    // SAFETY: ends this process at once; no destructor or exit handler of the parent runs.
    unsafe { libc::_exit(127) }
}

fn prepare(plan: &Plan<'_>) -> Result<(), (Step, Errno)> {
    let failed = |step: Step| move |error: Errno| (step, error);
    connect(plan).map_err(failed(Step::Input))?;
    enter_cgroups(plan).map_err(failed(Step::Cgroup))?;
    set_oom_score(plan);
    for (resource, limit) in plan.limits.iter().flatten() {
        setrlimit(*resource, *limit).map_err(failed(Step::Limits))?;
    }
    set_no_new_privs(true).map_err(failed(Step::Privileges))?;
    descriptors::close_on_exec().map_err(failed(Step::Descriptors))?;
    signals::reset();
    if plan.confinement.user.is_some() {
        keyring::leave().map_err(failed(Step::Keyring))?;
    }
    take_rights_of_user(plan).map_err(failed(Step::User))?;
    // A change of the effective user clears the death signal.
    die_with_parent(plan).map_err(failed(Step::Parent))?;
    chdir(plan.image.working_dir()).map_err(failed(Step::WorkingDir))?;
    // From here on other processes of the user can stop this one.
    become_user(plan).map_err(failed(Step::User))
}

/// The descriptors are not standard ones: the Rust runtime opens standard descriptors at its start, if they are closed.
fn connect(plan: &Plan<'_>) -> Result<(), Errno> {
    // A process can join a group of its own session only.
    setsid()?;
    dup2_stdin(&plan.stdin)?;
    dup2_stdout(&plan.confinement.output)?;
    dup2_stderr(&plan.confinement.output)
}

/// A process outside its cgroups would have no limits, so a failure ends the start.
fn enter_cgroups(plan: &Plan<'_>) -> Result<(), Errno> {
    let unified = plan.confinement.unified_cgroup.iter().filter(|_| plan.enters_unified);
    for group in unified.chain(&plan.confinement.cgroups) {
        let file = openat(group, PROCESSES, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        write(&file, b"0")?;
    }
    Ok(())
}

fn set_oom_score(plan: &Plan<'_>) {
    let Some(score) = plan.oom_score else { return };
    // Raising the score is always permitted.
    if let Ok(file) = open(OOM_SCORE, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = write(&file, score.as_bytes());
    }
}

/// Changes the groups and the effective user of the only thread. The kernel checks signals against the real and the saved
/// user.
fn take_rights_of_user(plan: &Plan<'_>) -> Result<(), Errno> {
    let Some((uid, gid)) = plan.confinement.user else { return Ok(()) };
    let gid = Gid::from_raw(gid);
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(getuid(), Uid::from_raw(uid), getuid())
}

/// Keeps the death signal: the effective user stays the same.
fn become_user(plan: &Plan<'_>) -> Result<(), Errno> {
    let Some((uid, _)) = plan.confinement.user else { return Ok(()) };
    let uid = Uid::from_raw(uid);
    set_thread_res_uid(uid, uid, uid)
}

fn die_with_parent(plan: &Plan<'_>) -> Result<(), Errno> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before.
    if getppid() == Some(plan.parent) { Ok(()) } else { Err(Errno::SRCH) }
}
