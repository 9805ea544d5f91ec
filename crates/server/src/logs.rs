//! Output of jobs: one file for each task, with all attempts in order.
//!
//! `DIR/<job>/<task>.log` has the text, `DIR/<job>/<task>.tries` the offset of each attempt. Agents send pieces with the
//! offset within their attempt and may repeat them: known bytes are skipped, a piece that would leave a gap is not written,
//! and the response has the number of bytes stored. When the disk is nearly full, or the storage of the account is, pieces are
//! dropped and a line in the log records it.

mod disk;
mod shard;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use agentaflow_api::ids::JobId;
use agentaflow_api::link::TaskKey;
use agentaflow_api::units::Stamp;
use thiserror::Error;
use tokio::sync::watch;

use crate::storage::AccountStorage;
use disk::Disk;
pub(crate) use disk::usable_room;
use shard::{Appended, Full, Room, Shard};

#[derive(Debug, Error)]
pub enum LogError {
    /// A later attempt has begun.
    #[error("a later attempt of this task has begun to write its log")]
    Stale,
    #[error("cannot use the log of job {job}")]
    Io { job: JobId, source: io::Error },
}

/// A piece of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Empty at the end of the log.
    pub bytes: Vec<u8>,
    /// Current length of the log.
    pub len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLogs {
    pub job: JobId,
    pub bytes: u64,
    /// Time of the last write.
    pub written: Stamp,
}

/// Maximum output of a job; the rest is dropped, and a line in the log records it.
pub const MOST_PER_JOB: u64 = 128 * 1024 * 1024;

/// Maximum length of a read.
const MOST_PER_READ: usize = 1024 * 1024;

/// Number of shards; writers of jobs in one shard wait for each other.
const SHARDS: usize = 8;

/// Logs of all jobs. Reads and writes run on blocking threads, at most one write for each shard.
#[derive(Debug)]
pub struct LogStore {
    dir: PathBuf,
    most: u64,
    disk: Arc<Disk>,
    shards: Vec<Arc<tokio::sync::Mutex<Shard>>>,
    followers: Mutex<HashMap<JobId, watch::Sender<u64>>>,
}

impl LogStore {
    /// Logs in this directory, which the first write creates.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            most: MOST_PER_JOB,
            disk: Arc::default(),
            shards: (0..SHARDS).map(|_| Arc::default()).collect(),
            followers: Mutex::default(),
        }
    }

    /// Moves logs of jobs after `last` out of reach. They exist after the restore of a backup, which gives their numbers to
    /// other jobs. Returns the number of jobs.
    pub fn set_aside_after(&self, last: JobId) -> io::Result<usize> {
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            entries => entries?,
        };
        let aside = self.dir.join(format!("unknown-{}", Stamp::now().0));
        let mut moved = 0;
        for entry in entries {
            let entry = entry?;
            let job = entry.file_name().to_str().and_then(|name| name.parse::<JobId>().ok());
            if job.is_some_and(|job| job > last) {
                std::fs::create_dir_all(&aside)?;
                std::fs::rename(entry.path(), aside.join(entry.file_name()))?;
                moved += 1;
            }
        }
        Ok(moved)
    }

    /// Writes a piece at `offset` of its attempt, if the owner has room. Returns the number of bytes stored of the attempt,
    /// from which the sender continues.
    pub async fn append(
        &self,
        key: TaskKey,
        offset: u64,
        bytes: &[u8],
        owner: Option<&AccountStorage>,
    ) -> Result<u64, LogError> {
        let (dir, most, bytes) = (self.dir.clone(), self.most, bytes.to_vec());
        let disk = self.disk.clone();
        let owner_is_full = owner.is_some_and(AccountStorage::is_full);
        let append = move |shard: &mut Shard| {
            let full = if owner_is_full {
                Some(Full::Account)
            } else {
                disk.is_nearly_full(&dir).then_some(Full::Disk)
            };
            let done = shard.append(&dir, Room { most, full }, key, offset, &bytes);
            done.inspect_err(|_| shard.forget_job(key.job))
        };
        let Appended { end, written } = self.in_shard(key.job, append).await?;
        if let Some(owner) = owner {
            owner.add(written);
        }
        self.wake(key.job);
        end.ok_or(LogError::Stale)
    }

    /// Reads at most `max` bytes from an offset of the whole log; an offset beyond its end reads nothing.
    pub async fn read(
        &self,
        job: JobId,
        task: u32,
        offset: u64,
        max: usize,
    ) -> Result<Piece, LogError> {
        let path = log_path(&self.dir, job, task);
        blocking(job, move || read_piece(&path, offset, max.min(MOST_PER_READ))).await
    }

    /// Offset of the last `lines` lines.
    pub async fn tail(&self, job: JobId, task: u32, lines: u64) -> Result<u64, LogError> {
        let path = log_path(&self.dir, job, task);
        blocking(job, move || tail_start(&path, lines)).await
    }

    /// Tasks of a job that have a log.
    pub async fn tasks(&self, job: JobId) -> Result<Vec<u32>, LogError> {
        let folder = folder(&self.dir, job);
        blocking(job, move || Ok(sizes(&folder)?.into_keys().collect())).await
    }

    /// Changes with every write, so that followers wake at once.
    pub fn subscribe(&self, job: JobId) -> watch::Receiver<u64> {
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        followers.retain(|_, follower| follower.receiver_count() > 0);
        followers.entry(job).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// Wakes followers of a job, for example at its end.
    pub fn wake(&self, job: JobId) {
        let followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(follower) = followers.get(&job) {
            follower.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    pub async fn list(&self) -> io::Result<Vec<JobLogs>> {
        let dir = self.dir.clone();
        tokio::task::spawn_blocking(move || list(&dir)).await.map_err(io::Error::other)?
    }

    /// Bytes that are missing for the space that logs leave free on the disk.
    pub fn missing_space(&self) -> u64 {
        self.disk.missing(&self.dir)
    }

    /// Deletes the logs of a job.
    pub async fn delete(&self, job: JobId) -> Result<(), LogError> {
        let folder = folder(&self.dir, job);
        self.in_shard(job, move |shard| {
            shard.forget_job(job);
            match std::fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        })
        .await?;
        self.wake(job);
        Ok(())
    }

    async fn in_shard<T: Send + 'static>(
        &self,
        job: JobId,
        work: impl FnOnce(&mut Shard) -> io::Result<T> + Send + 'static,
    ) -> Result<T, LogError> {
        let shard = &self.shards[job.0.unsigned_abs() as usize % SHARDS];
        let mut shard = Arc::clone(shard).lock_owned().await;
        blocking(job, move || work(&mut shard)).await
    }
}

async fn blocking<T: Send + 'static>(
    job: JobId,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, LogError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other)
        .and_then(|done| done)
        .map_err(|source| LogError::Io { job, source })
}

fn folder(dir: &Path, job: JobId) -> PathBuf {
    dir.join(job.to_string())
}

fn log_path(dir: &Path, job: JobId, task: u32) -> PathBuf {
    folder(dir, job).join(format!("{task}.log"))
}

fn list(dir: &Path) -> io::Result<Vec<JobLogs>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry?;
        let job = entry.file_name().to_str().and_then(|name| name.parse::<JobId>().ok());
        let Some(job) = job else { continue };
        let mut logs = JobLogs { job, bytes: 0, written: Stamp(0) };
        for file in std::fs::read_dir(entry.path())? {
            // A file may be deleted meanwhile.
            let Ok(found) = file?.metadata() else { continue };
            let written = found.modified()?.duration_since(SystemTime::UNIX_EPOCH);
            let written = written.map_or(0, |since| since.as_millis() as i64);
            logs.bytes += found.len();
            logs.written = logs.written.max(Stamp(written));
        }
        all.push(logs);
    }
    Ok(all)
}

/// Length of the log of each task.
fn sizes(folder: &Path) -> io::Result<BTreeMap<u32, u64>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries?,
    };
    let mut sizes = BTreeMap::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let task = name.to_str().and_then(|name| name.strip_suffix(".log")?.parse().ok());
        if let Some(task) = task {
            sizes.insert(task, entry.metadata()?.len());
        }
    }
    Ok(sizes)
}

/// An open log; none before the first write.
fn open_for_reading(path: &Path) -> io::Result<Option<(File, u64)>> {
    match File::open(path) {
        Ok(file) => {
            let len = file.metadata()?.len();
            Ok(Some((file, len)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_piece(path: &Path, offset: u64, max: usize) -> io::Result<Piece> {
    let Some((mut file, len)) = open_for_reading(path)? else { return Ok(Piece::default()) };
    let mut bytes = Vec::new();
    if offset < len {
        file.seek(SeekFrom::Start(offset))?;
        file.take((len - offset).min(max as u64)).read_to_end(&mut bytes)?;
    }
    Ok(Piece { bytes, len })
}

fn tail_start(path: &Path, lines: u64) -> io::Result<u64> {
    let Some((file, len)) = open_for_reading(path)? else { return Ok(0) };
    if lines == 0 {
        return Ok(len);
    }
    let mut block = vec![0; 64 * 1024];
    let (mut found, mut end) = (0, len);
    while end > 0 {
        let size = end.min(block.len() as u64);
        let begin = end - size;
        let now = &mut block[..size as usize];
        file.read_exact_at(now, begin)?;
        for (at, _) in now.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let next = begin + at as u64 + 1;
            // The newline at the end starts no further line.
            found += u64::from(next < len);
            if found == lines {
                return Ok(next);
            }
        }
        end = begin;
    }
    Ok(0)
}

#[cfg(test)]
mod tests;
