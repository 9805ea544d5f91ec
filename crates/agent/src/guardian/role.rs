//! Roles of the guardian's program. The guardian starts its own program again, with the role in an environment variable.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

pub(super) const ROLE: &str = "AGENTAFLOW_GUARDIAN_ROLE";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Guardian,
    /// Kills the tasks of a killed guardian.
    Sentinel,
}

impl Role {
    pub(super) fn current() -> Self {
        Self::parse(std::env::var_os(ROLE).as_deref())
    }

    fn parse(value: Option<&OsStr>) -> Self {
        let is_sentinel = value == Some(OsStr::new(Self::Sentinel.name()));
        if is_sentinel { Self::Sentinel } else { Self::Guardian }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Guardian => "guardian",
            Self::Sentinel => "sentinel",
        }
    }

    /// Command that runs the program of this process in another role, with a socket as its standard input.
    pub(super) fn command(self) -> io::Result<(Command, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        // The link works after an upgrade has replaced the program too.
        let mut command = Command::new("/proc/self/exe");
        command.args(std::env::args_os().skip(1)).env(ROLE, self.name());
        command.stdin(OwnedFd::from(theirs));
        Ok((command, ours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_known_role_is_a_guardian() {
        for role in [Role::Guardian, Role::Sentinel] {
            assert_eq!(Role::parse(Some(OsStr::new(role.name()))), role);
        }
        assert_eq!(Role::parse(None), Role::Guardian);
        assert_eq!(Role::parse(Some(OsStr::new("other"))), Role::Guardian);
    }
}
