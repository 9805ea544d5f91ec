//! Report of a failed step from the child to its parent.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use super::SpawnError;

/// Bytes of a report.
pub const REPORT_LENGTH: usize = 5;

/// Step of a start that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Fork,
    Input,
    Cgroup,
    Mounts,
    Limits,
    User,
    Privileges,
    /// The parent died before its child.
    Parent,
    WorkingDir,
    Descriptors,
    Keyring,
    Exec,
}

impl Step {
    /// Steps of the child, in their order; the report has the index.
    const OF_CHILD: [Self; 11] = [
        Self::Input,
        Self::Cgroup,
        Self::Mounts,
        Self::Limits,
        Self::User,
        Self::Privileges,
        Self::Parent,
        Self::WorkingDir,
        Self::Descriptors,
        Self::Keyring,
        Self::Exec,
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fork => "create a process",
            Self::Input => "connect the output of a process",
            Self::Cgroup => "enter the cgroup of a process",
            Self::Mounts => "separate the temporary files of a process",
            Self::Limits => "limit a process",
            Self::User => "change the user of a process",
            Self::Privileges => "take privileges from a process",
            Self::Parent => "tie a process to its parent",
            Self::WorkingDir => "enter the working directory of a process",
            Self::Descriptors => "close descriptors of a process",
            Self::Keyring => "create the keyring of a process",
            Self::Exec => "execute a program",
        })
    }
}

/// Side of the child. The kernel closes it when the program starts.
#[derive(Debug)]
pub(super) struct Reporter(OwnedFd);

pub(super) fn channel() -> io::Result<(Reporter, io::PipeReader)> {
    // Both ends are closed by `exec`.
    let (reader, writer) = io::pipe()?;
    Ok((Reporter(writer.into()), reader))
}

/// Result of a start from its report. An empty report means that the program runs, or that a signal ended the process.
pub fn outcome(report: &[u8]) -> Result<(), SpawnError> {
    let failed = |step, source| Err(SpawnError { step, source });
    match *report {
        [] => Ok(()),
        [index, a, b, c, d] => {
            let step = Step::OF_CHILD.get(usize::from(index)).copied().unwrap_or(Step::Exec);
            failed(step, io::Error::from_raw_os_error(i32::from_ne_bytes([a, b, c, d])))
        }
        _ => failed(Step::Exec, io::ErrorKind::InvalidData.into()),
    }
}

impl Reporter {
    /// Allocates nothing. A report fits into the pipe, so the write is complete.
    pub(super) fn send(&self, step: Step, errno: i32) {
        let index = Step::OF_CHILD.iter().position(|one| *one == step).unwrap_or_default();
        let [a, b, c, d] = errno.to_ne_bytes();
        let report: [u8; REPORT_LENGTH] = [index as u8, a, b, c, d];
        let _ = rustix::io::write(&self.0, &report);
    }
}
