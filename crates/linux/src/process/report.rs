//! Report of a failed step from the child to its parent.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Step of a start that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Fork,
    Input,
    Cgroup,
    Limits,
    User,
    Privileges,
    /// The parent died before its child.
    Parent,
    WorkingDir,
    Descriptors,
    Exec,
}

impl Step {
    /// Steps of the child, in their order; the report has the index.
    const OF_CHILD: [Self; 9] = [
        Self::Input,
        Self::Cgroup,
        Self::Limits,
        Self::User,
        Self::Privileges,
        Self::Parent,
        Self::WorkingDir,
        Self::Descriptors,
        Self::Exec,
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fork => "create a process",
            Self::Input => "connect the output of a process",
            Self::Cgroup => "enter the cgroup of a process",
            Self::Limits => "limit a process",
            Self::User => "change the user of a process",
            Self::Privileges => "take privileges from a process",
            Self::Parent => "tie a process to its parent",
            Self::WorkingDir => "enter the working directory of a process",
            Self::Descriptors => "close descriptors of a process",
            Self::Exec => "execute a program",
        })
    }
}

/// Side of the child. The kernel closes it when the program starts.
#[derive(Debug)]
pub(super) struct Reporter(OwnedFd);

/// Side of the parent.
#[derive(Debug)]
pub(super) struct Report(io::PipeReader);

pub(super) fn channel() -> io::Result<(Reporter, Report)> {
    // Both ends are closed by `exec`.
    let (reader, writer) = io::pipe()?;
    Ok((Reporter(writer.into()), Report(reader)))
}

impl Reporter {
    /// Allocates nothing. A report fits into the pipe, so the write is complete.
    pub(super) fn send(&self, step: Step, errno: i32) {
        let index = Step::OF_CHILD.iter().position(|one| *one == step).unwrap_or_default();
        let [a, b, c, d] = errno.to_ne_bytes();
        let _ = rustix::io::write(&self.0, &[index as u8, a, b, c, d]);
    }
}

impl Report {
    /// Waits until the program runs (`None`), or for the step that failed and its error number.
    pub(super) fn read(&mut self, limit: Duration) -> io::Result<Option<(Step, i32)>> {
        self.wait(limit)?;
        let mut bytes = [0; 5];
        match self.0.read(&mut bytes)? {
            0 => Ok(None),
            5 => {
                let [index, errno @ ..] = bytes;
                let step = Step::OF_CHILD.get(usize::from(index)).copied().unwrap_or(Step::Exec);
                Ok(Some((step, i32::from_ne_bytes(errno))))
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn wait(&self, limit: Duration) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            let left = Timespec::try_from(limit.saturating_sub(begun.elapsed())).ok();
            let mut pipe = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
            match poll(&mut pipe, left.as_ref()) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
