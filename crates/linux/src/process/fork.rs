//! Copies this process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::Pid;

/// `CLONE_INTO_CGROUP` of `linux/sched.h`, Linux 5.7.
const INTO_CGROUP: u64 = 1 << 33;

/// Process in which a fork returns.
#[derive(Debug)]
pub(super) enum Side {
    Parent(Pid),
    Child,
}

/// Creates the child in a cgroup of version 2: cheaper than moving it, and no moment outside. Fails without a cgroup, and on
/// kernels that cannot do it.
pub(super) fn into_cgroup(cgroup: Option<&OwnedFd>) -> io::Result<Side> {
    let cgroup = cgroup.ok_or(io::ErrorKind::Unsupported)?;
    // SAFETY: all fields are integers, for which zero is valid.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = INTO_CGROUP;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: without `CLONE_VM` the child has its own copy of the memory and of this stack, as after `fork`. The module
    // comment of `process` lists the rules that the child follows, since the C library does not know of the copy.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    side(pid)
}

pub(super) fn plain() -> io::Result<Side> {
    // SAFETY: the module comment of `process` lists the rules that the child follows.
    let pid = unsafe { libc::fork() };
    side(pid.into())
}

fn side(pid: i64) -> io::Result<Side> {
    match pid {
        0 => Ok(Side::Child),
        1.. => Pid::from_raw(pid as i32).map(Side::Parent).ok_or(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}
