//! Mount namespace of a process: its own folders in place of folders of the host.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change,
    move_mount, open_tree,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::Step;

const TEMPORARY: &str = "/tmp";
const SHARED_MEMORY: &CStr = c"/dev/shm";

/// The thread of [`Mounts::probe`] only makes system calls.
const STACK: usize = 64 << 10;

/// Mounts in a namespace of a process, in their order. Later mounts of the host appear there too, but not the other way
/// round. Needs `CAP_SYS_ADMIN` and Linux 5.2.
#[derive(Debug, Default)]
pub struct Mounts {
    /// Mounts that are attached nowhere yet, with their targets.
    folders: Vec<(OwnedFd, CString)>,
    /// Folder of the host that the other mounts cover.
    kept: Option<CString>,
    /// Options of the file system in memory at `/dev/shm`.
    shared_memory: Option<CString>,
}

impl Mounts {
    /// Creates a namespace for a thread that ends at once. Fails if this process may not do that.
    pub fn probe() -> io::Result<()> {
        let mut mounts = Self::default();
        mounts.add(Path::new(TEMPORARY), Path::new(TEMPORARY))?;
        let enter = move || mounts.enter().map_err(|(_, error)| error.into());
        let thread = thread::Builder::new().stack_size(STACK).spawn(enter)?;
        thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }

    /// Mounts a folder, which is resolved now, at a target.
    pub fn add(&mut self, folder: &Path, target: &Path) -> io::Result<()> {
        let tree = open_tree(CWD, folder, CLONE)?;
        self.folders.push((tree, path(target)?));
        Ok(())
    }

    /// Keeps a folder of the host that the other mounts cover. The process resolves it with the rights of its user.
    pub fn keep(&mut self, folder: &Path) -> io::Result<()> {
        self.kept = Some(path(folder)?);
        Ok(())
    }

    /// Mounts a file system in memory at `/dev/shm`; 0 MiB means half of the memory of the host.
    pub fn add_shared_memory(&mut self, mib: u64) -> io::Result<()> {
        let size = if mib > 0 { format!(",size={mib}m") } else { String::new() };
        self.shared_memory = Some(CString::new(format!("mode=1777{size}"))?);
        Ok(())
    }

    /// Moves the only thread of this process into a new namespace. Allocates nothing.
    pub(super) fn enter(&self) -> Result<(), (Step, Errno)> {
        let failed = |error| (Step::Mounts, error);
        // SAFETY: threads share no table of descriptors after this call, because it does not change that table.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(failed)?;
        let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change(c"/", downstream).map_err(failed)?;
        let kept = self.kept.as_deref();
        let kept = kept.map(|folder| Ok((open_tree(CWD, folder, CLONE)?, folder))).transpose();
        let kept = kept.map_err(|error| (Step::WorkingDir, error))?;
        for (tree, target) in &self.folders {
            attach(tree, target).map_err(failed)?;
        }
        if let Some((tree, target)) = &kept {
            attach(tree, target).map_err(failed)?;
        }
        let Some(options) = self.shared_memory.as_deref() else { return Ok(()) };
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount(c"tmpfs", SHARED_MEMORY, c"tmpfs", flags, options).map_err(failed)
    }
}

const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE
    .union(OpenTreeFlags::OPEN_TREE_CLOEXEC)
    .union(OpenTreeFlags::AT_RECURSIVE);

fn attach(tree: &OwnedFd, target: &CStr) -> Result<(), Errno> {
    move_mount(tree, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
