//! Session keyring of a process. Programs inherit it, also across a change of the user.

use std::ptr;

use rustix::io::Errno;

/// `KEYCTL_JOIN_SESSION_KEYRING` of `linux/keyctl.h`.
const JOIN: libc::c_long = 1;

/// Joins a new session keyring without a name. Counts against the quota of the current user, so it comes before a change of
/// the user. Kernels without keyrings, and filters that forbid the system call, forbid the access to keys too.
pub(super) fn leave() -> Result<(), Errno> {
    // SAFETY: the null pointer means that the keyring has no name.
    let result = unsafe { libc::syscall(libc::SYS_keyctl, JOIN, ptr::null::<libc::c_char>()) };
    if result >= 0 {
        return Ok(());
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP) => Ok(()),
        error => Err(error.unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::io::{self, Read};
    use std::path::Path;

    use rustix::process::{Pid, WaitOptions, geteuid, waitpid};

    use super::*;
    use crate::process::{Confinement, ProcessImage, spawn};
    use crate::skip::skip;

    /// `KEY_SPEC_SESSION_KEYRING` of `linux/keyctl.h`.
    const SESSION: libc::c_long = -3;

    const NAME: &CStr = c"agentaflow-test-key";

    fn add_key() -> io::Result<()> {
        let payload = b"secret";
        // SAFETY: the strings end with a null byte, and the kernel reads `payload.len()` bytes of the payload.
        let result = unsafe {
            libc::syscall(
                libc::SYS_add_key,
                c"user".as_ptr(),
                NAME.as_ptr(),
                payload.as_ptr(),
                payload.len(),
                SESSION,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Keys that a process of this user sees.
    fn keys(user: Option<(u32, u32)>) -> String {
        let (mut reader, writer) = io::pipe().unwrap();
        let argv = ["cat", "/proc/keys"].map(str::to_owned);
        let image = ProcessImage::new(&argv, [], Path::new("/")).unwrap();
        let confinement = Confinement {
            output: writer.into(),
            user,
            unified_cgroup: None,
            cgroups: Vec::new(),
            open_files: 0,
            user_processes: 0,
            oom_score: None,
            mounts: None,
        };
        let spawned = spawn(&image, &confinement).unwrap();
        drop(confinement);
        let mut output = String::new();
        reader.read_to_string(&mut output).unwrap();
        waitpid(Pid::from_raw(spawned.pid.cast_signed()), WaitOptions::empty()).unwrap();
        output
    }

    /// The keyring belongs to the thread of this test.
    #[test]
    fn a_process_of_another_user_does_not_inherit_the_keys_of_its_parent() {
        if !geteuid().is_root() {
            skip!("needs root");
        }
        if let Err(error) = leave().map_err(io::Error::from).and_then(|()| add_key()) {
            skip!("needs keyrings: {error}");
        }
        let name = NAME.to_str().unwrap();
        let same = keys(None);
        if !same.contains(name) {
            skip!("needs /proc/keys");
        }
        let other = keys(Some((54321, 54321)));
        assert!(!other.contains(name), "{other}");
    }
}
