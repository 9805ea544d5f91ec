//! What jobs write: one file for each task, all its tries one after the other.
//!
//! `DIR/<job>/<task>.log` is the text, `DIR/<job>/<task>.tries` says where each try begins in it. Agents send
//! pieces with the offset within their try, and may send them twice: what is there already is skipped, what
//! would leave a gap is not written, and the answer says how much there is. When the disk is nearly full, what
//! comes is taken and dropped with a line that says so.

mod disk;
mod shard;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use agentaflow_api::ids::JobId;
use agentaflow_api::link::TaskKey;
use thiserror::Error;
use tokio::sync::watch;

use disk::Disk;
use shard::{Room, Shard};

/// Why a log could not be written or read.
#[derive(Debug, Error)]
pub enum LogError {
    /// A later try has begun.
    #[error("a later try of this task has begun to write its log")]
    Stale,
    /// The files failed.
    #[error("cannot use the log of job {job}")]
    Io {
        /// Which job.
        job: JobId,
        /// Why.
        source: io::Error,
    },
}

/// A piece of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// What it says; empty at the end.
    pub bytes: Vec<u8>,
    /// How long the log is now.
    pub len: u64,
}

/// A job writes at most so much; the rest is dropped, and the log says so.
pub const MOST_PER_JOB: u64 = 128 * 1024 * 1024;

/// A piece that is read is at most so long.
const MOST_PER_READ: usize = 1024 * 1024;

/// Writers of different jobs do not wait for each other, but for one in so many.
const SHARDS: usize = 8;

/// The logs of all jobs. Reads and writes run beside the async threads, at most one write a shard.
#[derive(Debug)]
pub struct LogStore {
    dir: PathBuf,
    most: u64,
    disk: Arc<Disk>,
    shards: Vec<Arc<tokio::sync::Mutex<Shard>>>,
    followers: Mutex<HashMap<JobId, watch::Sender<u64>>>,
}

impl LogStore {
    /// The logs in this directory, which is made when the first is written.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            most: MOST_PER_JOB,
            disk: Arc::default(),
            shards: (0..SHARDS).map(|_| Arc::default()).collect(),
            followers: Mutex::default(),
        }
    }

    /// Writes a piece of a try that begins at `offset` of that try. Returns how many bytes of the try are had now;
    /// a sender goes on from there.
    pub async fn append(&self, key: TaskKey, offset: u64, bytes: &[u8]) -> Result<u64, LogError> {
        let (dir, most, bytes) = (self.dir.clone(), self.most, bytes.to_vec());
        let disk = self.disk.clone();
        let append = move |shard: &mut Shard| {
            let room = Room { most, disk: !disk.is_nearly_full(&dir) };
            let done = shard.append(&dir, room, key, offset, &bytes);
            done.inspect_err(|_| shard.forget_job(key.job))
        };
        let had = self.in_shard(key.job, append).await?;
        self.wake(key.job);
        had.ok_or(LogError::Stale)
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

    /// Where the last so many lines begin.
    pub async fn tail(&self, job: JobId, task: u32, lines: u64) -> Result<u64, LogError> {
        let path = log_path(&self.dir, job, task);
        blocking(job, move || tail_start(&path, lines)).await
    }

    /// The tasks of a job that have a log.
    pub async fn tasks(&self, job: JobId) -> Result<Vec<u32>, LogError> {
        let folder = folder(&self.dir, job);
        blocking(job, move || Ok(sizes(&folder)?.into_keys().collect())).await
    }

    /// Changes whenever something is written, so that followers wake at once.
    pub fn subscribe(&self, job: JobId) -> watch::Receiver<u64> {
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        followers.retain(|_, follower| follower.receiver_count() > 0);
        followers.entry(job).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// Wakes followers of a job, for example because it is over.
    pub fn wake(&self, job: JobId) {
        let followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(follower) = followers.get(&job) {
            follower.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Removes everything that a job wrote.
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

/// How long the log of each task is.
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

/// An open log, or none if there is none yet.
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
            // The end of the last line begins no other.
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
