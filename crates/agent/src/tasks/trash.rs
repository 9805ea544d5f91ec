//! Removes the folders of tasks that are over. A job may have left millions of files, folders nested without end, or
//! folders that nobody may enter; none of that may hold up the agent. So a folder is renamed first, which takes no
//! time, and emptied by a thread of its own.
//!
//! Emptying needs neither depth nor many open files: a folder inside is moved up to the top before it is emptied. No
//! link is followed, and no other file system is entered, since a folder on which one is mounted cannot be moved.

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

/// How the name of a folder begins that is to go.
const PREFIX: &str = ".trash-";

/// The thread only calls the system.
const STACK: usize = 128 << 10;

/// The way to the thread that removes folders.
#[derive(Debug)]
pub(crate) struct Trash {
    work: Sender<PathBuf>,
    pending: Arc<AtomicUsize>,
}

impl Trash {
    /// Starts the thread; it ends with the last piece of work after this is dropped.
    pub(crate) fn open() -> Self {
        let (work, inbox) = channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&pending);
        let thread = std::thread::Builder::new().name("trash".to_owned()).stack_size(STACK);
        if let Err(error) = thread.spawn(move || empty_all(&inbox, &left)) {
            warn!(%error, "folders of old tasks stay until the next start of the agent");
        }
        Self { work, pending }
    }

    /// Puts a folder out of the way at once and removes it by and by. One that is not there is fine.
    pub(crate) fn throw(&self, dir: &Path) -> io::Result<()> {
        let aside = dir.with_file_name(format!("{PREFIX}{}", random_name()?));
        match fs::rename(dir, &aside) {
            Ok(()) => self.remove(aside),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Goes on with what an earlier agent did not get done.
    pub(crate) fn sweep(&self, parent: &Path) {
        let Ok(entries) = fs::read_dir(parent) else { return };
        let old = |name: &std::ffi::OsStr| name.to_str().is_some_and(|n| n.starts_with(PREFIX));
        for entry in entries.flatten().filter(|entry| old(&entry.file_name())) {
            self.remove(entry.path());
        }
    }

    /// Waits until everything is gone, but no longer than this.
    pub(crate) async fn settle(&self, limit: Duration) {
        let empty = async {
            while self.pending.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(limit, empty).await;
    }

    fn remove(&self, path: PathBuf) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        if self.work.send(path).is_err() {
            // There is no thread: the next agent finds it.
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn empty_all(inbox: &Receiver<PathBuf>, pending: &AtomicUsize) {
    for path in inbox {
        if let Err(error) = remove(&path) {
            debug!(folder = %path.display(), %error, "something cannot be removed; it stays");
        }
        pending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Removes a folder with all that is in it, as far as that is possible.
fn remove(path: &Path) -> io::Result<()> {
    let top = match open(CWD, path) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut names = Names { prefix: random_name()?, next: 0 };
    // What is moved up may be seen in this pass or in the next one.
    while empty_once(&top, &mut names)? {}
    fs::remove_dir(path)
}

/// Names for what is moved to the top, which nothing there has.
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

/// Goes once over everything at the top. Whether anything was done.
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

/// Removes the files of a folder and moves its folders to the top. Whether anything was done.
fn move_up(dir: &OwnedFd, top: &OwnedFd, names: &mut Names) -> bool {
    let Ok(entries) = Dir::read_from(dir) else { return false };
    let mut done = false;
    for entry in entries.flatten().filter(|entry| is_name(entry.file_name())) {
        let name = entry.file_name();
        if !unlink(dir, name) {
            // To be moved a folder must be writable itself; opening it makes it so.
            let _ = open(dir, name);
            if renameat(dir, name, top, names.next()).is_err() {
                continue;
            }
        }
        done = true;
    }
    done
}

/// Removes a file, a link or an empty folder. Whether it is gone.
fn unlink(dir: &OwnedFd, name: &CStr) -> bool {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => true,
        Err(_) => unlinkat(dir, name, AtFlags::REMOVEDIR).is_ok(),
    }
}

/// Opens a folder, never through a link, with the right to change what is in it.
fn open(dir: impl AsFd, name: impl rustix::path::Arg + Copy) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = dir.as_fd();
    let opened = match openat(dir, name, flags | OFlags::RDONLY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let handle = openat(dir, name, flags | OFlags::PATH, Mode::empty())?;
            // A handle of this kind can be changed only by its name among the open files.
            let way = format!("/proc/self/fd/{}", handle.as_raw_fd());
            let _ = fs::set_permissions(way, Permissions::from_mode(0o700));
            openat(dir, name, flags | OFlags::RDONLY, Mode::empty())?
        }
        other => other?,
    };
    // Root needs none of this, and others may not do it to what is not theirs.
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
    fn a_folder_is_removed_however_deep_it_is_and_nothing_outside_it() {
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
        // Deeper than a path can be named, and than files may be open.
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
    fn folders_that_nobody_may_enter_are_removed_too() {
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
    async fn what_is_thrown_away_is_out_of_the_way_at_once_and_gone_soon() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("1-1-0");
        fs::create_dir_all(root.path().join(".trash-left/behind")).unwrap();
        fs::create_dir_all(dir.join("out")).unwrap();
        let trash = Trash::open();
        trash.sweep(root.path());
        trash.throw(&dir).unwrap();
        assert!(!dir.exists());
        trash.throw(&dir).unwrap();
        let begun = Instant::now();
        trash.settle(Duration::from_secs(10)).await;
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
