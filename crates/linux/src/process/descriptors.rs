//! Descriptors of a process that its program must not inherit.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::{Errno, FdFlags, fcntl_setfd};

/// First descriptor after standard input, output and error.
const FIRST: RawFd = 3;

const LIST: &CStr = c"/proc/self/fd";

/// Makes `exec` close all descriptors except the standard ones. Allocates nothing.
pub(super) fn close_on_exec() -> Result<(), Errno> {
    // SAFETY: no descriptor is closed now; `exec` closes them together with all code that could use them.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    // Linux before 5.11, or a filter of system calls.
    if result == 0 { Ok(()) } else { mark_each() }
}

fn mark_each() -> Result<(), Errno> {
    let list = rustix::fs::open(LIST, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&list, &mut buffer);
    while let Some(entry) = entries.next() {
        let number = entry?.file_name().to_str().ok().and_then(|name| name.parse::<RawFd>().ok());
        let Some(number) = number.filter(|number| *number >= FIRST) else { continue };
        if number != list.as_raw_fd() {
            // SAFETY: the kernel has just listed the descriptor, and this thread closes none meanwhile.
            let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
            fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::io::{dup, fcntl_getfd};

    use super::*;

    #[test]
    fn descriptors_are_marked_on_kernels_without_close_range() {
        // `dup` clears the flag. Other tests mark descriptors too, but none clears the flag again.
        let inherited = dup(File::open("/dev/null").unwrap()).unwrap();
        mark_each().unwrap();
        assert_eq!(fcntl_getfd(&inherited).unwrap(), FdFlags::CLOEXEC);
        assert_eq!(fcntl_getfd(std::io::stderr()).unwrap(), FdFlags::empty());
    }
}
