//! Disk usage of tasks. Few hosts have file system quotas, so the agent measures tasks with a limit and stops tasks above
//! it: a task may exceed its limit for some seconds.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use tokio::time::sleep;
use tracing::warn;

use agentaflow_api::link::TaskKey;

use crate::tasks::Tasks;

const INTERVAL: Duration = Duration::from_secs(2);

/// The agent measures for at most a tenth of the time.
const PAUSE: u32 = 9;

/// Files below this depth are not measured one by one: their task counts as over its limit.
const MAX_DEPTH: usize = 256;

const MIB: u64 = 1 << 20;

/// A task above its disk limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverStorage {
    pub(crate) key: TaskKey,
    /// MiB.
    pub(crate) used: u64,
    /// MiB.
    pub(crate) limit: u64,
}

impl fmt::Display for OverStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { used, limit, .. } = self;
        write!(f, "Files of the job use {used} MiB of disk, above its limit of {limit} MiB")
    }
}

/// Stops tasks above their disk limit.
pub(crate) async fn watch_storage(tasks: Tasks) {
    loop {
        let began = Instant::now();
        for task in tasks.live() {
            let limit = task.assignment.storage;
            if limit == 0 || task.started.get().is_none() {
                continue;
            }
            let used = task.runtime.disk_used(task.key).await.unwrap_or(0).div_ceil(MIB);
            if used > limit {
                let over = OverStorage { key: task.key, used, limit };
                warn!(key = %over.key, "{over}");
                tasks.stop_over_storage(&over);
            }
        }
        sleep(INTERVAL.max(began.elapsed() * PAUSE)).await;
    }
}

/// Allocated bytes of a folder, without following links. Its owner may change the folder meanwhile.
pub(crate) fn disk_usage(folder: &Path) -> io::Result<u64> {
    let mut walk = Walk::default();
    let top = open_folder(CWD, folder)?;
    walk.add(&top, 0)?;
    Ok(walk.bytes)
}

/// Allocated bytes of open files without a name, on the file system of a folder. Other file systems are in memory, or have
/// quotas of their own.
pub(crate) fn unlinked_usage(folder: &Path, pids: &[u32]) -> io::Result<u64> {
    let device = fs::metadata(folder)?.dev();
    let mut files = BTreeMap::new();
    for pid in pids {
        // Ended meanwhile.
        let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        let found = open.flatten().filter_map(|file| fs::metadata(file.path()).ok());
        let unlinked = found.filter(|file| file.is_file() && file.nlink() == 0);
        files.extend(unlinked.filter(|file| file.dev() == device).map(|f| (f.ino(), f.blocks())));
    }
    Ok(files.values().sum::<u64>().saturating_mul(512))
}

#[derive(Default)]
struct Walk {
    bytes: u64,
    /// Device and inode of files with several names.
    linked: HashSet<(u64, u64)>,
}

impl Walk {
    fn add(&mut self, folder: &OwnedFd, depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            self.bytes = u64::MAX;
            return Ok(());
        }
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            // Removed meanwhile.
            let Ok(stat) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if stat.st_nlink == 1 || self.linked.insert((stat.st_dev, stat.st_ino)) {
                self.bytes = self.bytes.saturating_add(stat.st_blocks as u64 * 512);
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory
                && let Ok(inner) = open_folder(folder, name)
            {
                self.add(&inner, depth + 1)?;
            }
        }
        Ok(())
    }
}

fn open_folder(at: impl rustix::fd::AsFd, path: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use std::io::Write as _;

    use super::*;

    #[test]
    fn links_count_once_and_are_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("task");
        fs::create_dir_all(dir.join("a/b")).unwrap();
        let empty = disk_usage(&dir).unwrap();
        fs::write(dir.join("a/b/file"), vec![1; 1 << 20]).unwrap();
        let full = disk_usage(&dir).unwrap();
        assert!((1 << 20..(1 << 20) + 65_536).contains(&(full - empty)), "{empty} {full}");
        fs::hard_link(dir.join("a/b/file"), dir.join("again")).unwrap();
        fs::write(temp.path().join("other"), vec![1; 1 << 20]).unwrap();
        symlink(temp.path(), dir.join("outside")).unwrap();
        assert!(disk_usage(&dir).unwrap() < full + 65_536);
    }

    #[test]
    fn open_files_without_a_name_count_once() {
        let temp = tempfile::tempdir().unwrap();
        let me = [std::process::id()];
        let before = unlinked_usage(temp.path(), &me).unwrap();
        let mut file = tempfile::tempfile_in(temp.path()).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        let _again = file.try_clone().unwrap();
        fs::write(temp.path().join("named"), vec![1; 1 << 20]).unwrap();
        let after = unlinked_usage(temp.path(), &me).unwrap();
        assert!((1 << 20..2 << 20).contains(&(after - before)), "{before} {after}");
        assert_eq!(unlinked_usage(temp.path(), &[]).unwrap(), 0);
    }

    #[test]
    fn a_very_deep_folder_counts_as_full() {
        let temp = tempfile::tempdir().unwrap();
        let mut deep = temp.path().to_owned();
        for _ in 0..=MAX_DEPTH + 1 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        assert_eq!(disk_usage(temp.path()).unwrap(), u64::MAX);
    }
}
