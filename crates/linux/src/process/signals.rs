//! Signals around the fork.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use libc::sigset_t;

/// All signals are blocked until this value is dropped, so that no handler of the parent runs in the child.
#[derive(Debug)]
pub(super) struct Blocked {
    before: sigset_t,
}

impl Blocked {
    pub(super) fn all() -> io::Result<Self> {
        let all = set(libc::sigfillset);
        let mut before = set(libc::sigemptyset);
        match change_mask(&all, Some(&mut before)) {
            0 => Ok(Self { before }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // Cannot fail: the set comes from the kernel.
        let _ = change_mask(&self.before, None);
    }
}

/// Gives the child the state of signals that programs expect: they inherit ignored and blocked signals, and the Rust
/// runtime ignores `SIGPIPE`. The actions change before the mask: a pending signal must not run a handler of the parent,
/// which would tell the parent of a signal that the child got.
pub(super) fn reset() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: the default action is no handler, so no code runs in a signal context. Fails for signals that have no
        // other action, and for the signals of the C library.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let _ = change_mask(&set(libc::sigemptyset), None);
}

fn change_mask(new: &sigset_t, before: Option<&mut sigset_t>) -> i32 {
    let before = before.map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: both pointers come from references, or are null, which is allowed for the second.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, new, before) }
}

fn set(fill: unsafe extern "C" fn(*mut sigset_t) -> i32) -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `fill` is `sigfillset` or `sigemptyset`, which write a set to a valid pointer.
    unsafe { fill(set.as_mut_ptr()) };
    // SAFETY: written by `fill`, which fails only for an invalid pointer.
    unsafe { set.assume_init() }
}
