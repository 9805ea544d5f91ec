//! Starts a process that is confined before its program runs.
//!
//! `std::process::Command` runs code between `fork` and `exec` only through `pre_exec`, which is `unsafe` and reports an
//! error without the step that failed. Starting a helper program instead costs milliseconds per job.
//!
//! After the fork, the child has one thread and a copy of the parent's memory, in which another thread of the parent may
//! hold any lock, such as that of the allocator. So the child
//!
//! * allocates and frees nothing: strings, pointers and limits are complete before the fork (`image.rs`);
//! * calls the kernel directly (`child.rs`): the functions of the C library that change the user signal all threads, and
//!   the child has none of them;
//! * never returns to the caller: it executes the program or exits, and a panic aborts it.

mod child;
mod descriptors;
mod fork;
mod image;
mod keyring;
mod report;
mod signals;

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, Resource, Rlimit, getpid, getrlimit};
use thiserror::Error;

use child::Plan;
use fork::Side;
pub use image::ProcessImage;
use report::Reporter;
pub use report::{REPORT_LENGTH, Step, outcome};

/// Rights and limits of a process.
#[derive(Debug)]
pub struct Confinement {
    /// Standard output and standard error.
    pub output: OwnedFd,
    /// uid and gid; `None` keeps the ids of the parent.
    pub user: Option<(u32, u32)>,
    /// Directory of a cgroup of version 2. The process is created in it where the kernel can do that.
    pub unified_cgroup: Option<OwnedFd>,
    /// Directories of cgroups that the process enters.
    pub cgroups: Vec<OwnedFd>,
    /// Open files; 0 means the limit of the parent.
    pub open_files: u64,
    /// Processes and threads of the user; 0 means the limit of the parent.
    pub user_processes: u64,
    pub oom_score: Option<i32>,
}

/// The program does not run.
#[derive(Debug, Error)]
#[error("cannot {step}")]
pub struct SpawnError {
    pub step: Step,
    pub source: io::Error,
}

/// Process whose program may not run yet.
#[derive(Debug)]
pub struct Spawned {
    pub pid: u32,
    /// One read returns the report for [`outcome`]. It can block for any time: the new user of the process may stop it
    /// before its program runs, and a program may be on a slow disk.
    pub report: io::PipeReader,
}

/// Starts a process in a session of its own. The process dies with the calling thread, cannot gain privileges, and inherits
/// no descriptor except the standard ones; its standard input is empty. The caller reaps it, also after a failed
/// start.
pub fn spawn(image: &ProcessImage, confinement: &Confinement) -> Result<Spawned, SpawnError> {
    let fork = |source| SpawnError { step: Step::Fork, source };
    let (reporter, report) = report::channel().map_err(fork)?;
    let pid = start(image, confinement, reporter).map_err(fork)?;
    Ok(Spawned { pid: pid.as_raw_nonzero().get().cast_unsigned(), report })
}

fn start(image: &ProcessImage, confinement: &Confinement, reporter: Reporter) -> io::Result<Pid> {
    let stdin = std::fs::File::open("/dev/null")?;
    let pointers = image.pointers();
    let oom_score = confinement.oom_score.map(|score| score.to_string());
    let mut plan = Plan {
        image,
        pointers: &pointers,
        confinement,
        stdin: stdin.into(),
        limits: [
            rlimit(Resource::Nofile, confinement.open_files),
            rlimit(Resource::Nproc, confinement.user_processes),
        ],
        oom_score: oom_score.as_deref(),
        parent: getpid(),
        reporter,
        enters_unified: false,
    };
    let blocked = signals::Blocked::all()?;
    let side = fork::into_cgroup(confinement.unified_cgroup.as_ref());
    let side = side.or_else(|_| {
        plan.enters_unified = true;
        fork::plain()
    });
    match side {
        Ok(Side::Child) => child::run(&plan),
        Ok(Side::Parent(pid)) => {
            drop(blocked);
            Ok(pid)
        }
        Err(error) => Err(error),
    }
}

/// Soft and hard limit, at most the parent's hard limit.
fn rlimit(resource: Resource, limit: u64) -> Option<(Resource, Rlimit)> {
    let limit = getrlimit(resource).maximum.map_or(limit, |hard| hard.min(limit));
    (limit > 0).then_some((resource, Rlimit { current: Some(limit), maximum: Some(limit) }))
}
