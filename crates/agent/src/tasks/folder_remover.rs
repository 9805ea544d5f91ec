//! Removes the folders of ended tasks. A job may leave millions of files, very deep trees, or folders without
//! permissions; none of them may delay the agent. So a folder is renamed first, which is fast, and a separate thread
//! empties the renamed folder.
//!
//! Emptying needs neither recursion nor many open files: a nested folder is moved to the top before it is emptied. No
//! link is followed, and no other file system is entered, since a mount point cannot be moved.

use std::ffi::CStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fchmod, openat, renameat, unlinkat};
use rustix::io::Errno;
use tracing::{debug, warn};

use crate::identity::random_name;

/// Name prefix of a folder that is being removed.
const PREFIX: &str = ".trash-";

/// The thread only makes system calls.
const STACK: usize = 128 << 10;

#[derive(Debug)]
pub(crate) struct FolderRemover {
    queue: Sender<PathBuf>,
    pending: Arc<AtomicUsize>,
}

impl FolderRemover {
    /// Starts the thread, which ends after the last removal once the remover is dropped.
    pub(crate) fn start() -> Self {
        let (queue, inbox) = channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&pending);
        let thread =
            std::thread::Builder::new().name("folder-remover".to_owned()).stack_size(STACK);
        if let Err(error) = thread.spawn(move || empty_all(&inbox, &left)) {
            warn!(%error, "cannot start the removal of task folders; the next start of the agent retries");
        }
        Self { queue, pending }
    }

    /// Renames a folder at once and removes it in the background. A missing folder is no error.
    pub(crate) fn remove(&self, dir: &Path) -> io::Result<()> {
        let renamed = dir.with_file_name(format!("{PREFIX}{}", random_name()?));
        match fs::rename(dir, &renamed) {
            Ok(()) => self.enqueue(renamed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Queues the removals that an earlier agent did not finish.
    pub(crate) fn resume(&self, parent: &Path) {
        let Ok(entries) = fs::read_dir(parent) else { return };
        let old = |name: &std::ffi::OsStr| name.to_str().is_some_and(|n| n.starts_with(PREFIX));
        for entry in entries.flatten().filter(|entry| old(&entry.file_name())) {
            self.enqueue(entry.path());
        }
    }

    /// Waits until the queue is empty, up to `limit`.
    pub(crate) async fn wait(&self, limit: Duration) {
        let empty = async {
            while self.pending.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(limit, empty).await;
    }

    fn enqueue(&self, path: PathBuf) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        if self.queue.send(path).is_err() {
            // The thread did not start; the next agent resumes.
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn empty_all(inbox: &Receiver<PathBuf>, pending: &AtomicUsize) {
    for path in inbox {
        if let Err(error) = remove(&path) {
            debug!(folder = %path.display(), %error, "cannot remove all files of a task folder");
        }
        pending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Removes a folder with its contents as far as permissions allow.
fn remove(path: &Path) -> io::Result<()> {
    let top = match open(CWD, path) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut names = Names { prefix: random_name()?, next: 0 };
    // One pass may or may not see the folders that it moved to the top.
    while empty_once(&top, &mut names)? {}
    fs::remove_dir(path)
}

/// Unique names for folders moved to the top.
struct Names {
    prefix: String,
    next: u64,
}

impl Names {
    fn next(&mut self) -> String {
        self.next += 1;
        format!(".{}-{}", self.prefix, self.next)
    }
}

/// Empties the top level once. Returns true if an entry was removed or moved.
fn empty_once(top: &OwnedFd, names: &mut Names) -> io::Result<bool> {
    let mut done = false;
    for entry in Dir::read_from(top)?.flatten().filter(|entry| is_name(entry.file_name())) {
        let name = entry.file_name();
        if unlink(top, name) {
            done = true;
            continue;
        }
        let Ok(inner) = open(top, name) else { continue };
        done |= move_up(&inner, top, names);
        done |= unlink(top, name);
    }
    Ok(done)
}

/// Removes the files of a folder and moves its subfolders to the top. Returns true if an entry was removed or moved.
fn move_up(dir: &OwnedFd, top: &OwnedFd, names: &mut Names) -> bool {
    let Ok(entries) = Dir::read_from(dir) else { return false };
    let mut done = false;
    for entry in entries.flatten().filter(|entry| is_name(entry.file_name())) {
        let name = entry.file_name();
        if !unlink(dir, name) {
            // A folder must be writable to be moved; `open` makes it writable.
            let _ = open(dir, name);
            if renameat(dir, name, top, names.next()).is_err() {
                continue;
            }
        }
        done = true;
    }
    done
}

/// Removes a file, a link or an empty folder. Returns true if it is gone.
fn unlink(dir: &OwnedFd, name: &CStr) -> bool {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => true,
        Err(_) => unlinkat(dir, name, AtFlags::REMOVEDIR).is_ok(),
    }
}

/// Opens a folder, never through a link, and makes its contents changeable.
fn open(dir: impl AsFd, name: impl rustix::path::Arg + Copy) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = dir.as_fd();
    let opened = match openat(dir, name, flags | OFlags::RDONLY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let handle = openat(dir, name, flags | OFlags::PATH, Mode::empty())?;
            // The mode of an `O_PATH` handle can be changed only through `/proc`.
            let way = format!("/proc/self/fd/{}", handle.as_raw_fd());
            let _ = fs::set_permissions(way, Permissions::from_mode(0o700));
            openat(dir, name, flags | OFlags::RDONLY, Mode::empty())?
        }
        other => other?,
    };
    // Fails harmlessly for folders of another user; root does not need it.
    let _ = fchmod(&opened, Mode::RWXU);
    Ok(opened)
}

fn is_name(name: &CStr) -> bool {
    !matches!(name.to_bytes(), b"." | b"..")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::Instant;

    use rustix::fs::mkdirat;

    use super::*;

    #[test]
    fn a_very_deep_folder_is_removed_without_following_links() {
        let root = tempfile::tempdir().unwrap();
        let (dir, other) = (root.path().join("task"), root.path().join("other"));
        fs::create_dir_all(dir.join("out")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("kept"), "x").unwrap();
        symlink(&other, dir.join("out/link")).unwrap();
        symlink("/nowhere", dir.join("dangling")).unwrap();
        for number in 0..2000 {
            fs::write(dir.join("out").join(number.to_string()), "").unwrap();
        }
        // Deeper than the limits of path length and open files.
        let mut at = open(CWD, &dir).unwrap();
        for _ in 0..5000 {
            mkdirat(&at, "deep", Mode::RWXU).unwrap();
            at = open(&at, "deep").unwrap();
        }
        drop(at);
        remove(&dir).unwrap();
        assert!(!dir.exists() && other.join("kept").exists());
    }

    #[test]
    fn folders_without_permissions_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("task");
        fs::create_dir_all(dir.join("closed/inside/more")).unwrap();
        fs::write(dir.join("closed/inside/file"), "x").unwrap();
        for closed in ["closed/inside/more", "closed/inside", "closed"] {
            fs::set_permissions(dir.join(closed), Permissions::from_mode(0o000)).unwrap();
        }
        remove(&dir).unwrap();
        assert!(!dir.exists());
    }

    #[tokio::test]
    async fn a_removed_folder_is_renamed_at_once_and_deleted_soon() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("1-1-0");
        fs::create_dir_all(root.path().join(".trash-left/behind")).unwrap();
        fs::create_dir_all(dir.join("out")).unwrap();
        let remover = FolderRemover::start();
        remover.resume(root.path());
        remover.remove(&dir).unwrap();
        assert!(!dir.exists());
        remover.remove(&dir).unwrap();
        let begun = Instant::now();
        remover.wait(Duration::from_secs(10)).await;
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
