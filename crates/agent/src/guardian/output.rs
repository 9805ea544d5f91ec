//! Copies the output of a task from a pipe to `output.log`.
//!
//! The task gets a pipe instead of the file: `> /dev/stderr` in a script would truncate a file, and the file must not
//! exceed its limit.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::net::unix::pipe::Receiver;

/// Bytes per read.
const CHUNK: usize = 8 << 10;

/// Chunks per task before other tasks get their turn: a task may write faster than the guardian reads.
const ROUNDS: usize = 32;

/// Longest time to read the rest of the output after the end; a pipe holds at most 1 MiB.
const FINISH_LIMIT: Duration = Duration::from_millis(200);

/// Read end of a task's output.
#[derive(Clone, Debug)]
pub(super) struct Output(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pipe: Receiver,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    file: File,
    /// Bytes left up to the limit.
    room: u64,
}

impl Output {
    /// Opens the log of a task and a pipe to it. The log keeps one byte more than the limit, which marks truncation.
    pub(super) fn open(
        dir: &Path,
        user: Option<(u32, u32)>,
        limit: u64,
    ) -> io::Result<(Self, PipeWriter)> {
        let path = dir.join("output.log");
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let room = limit.saturating_add(1).saturating_sub(file.metadata()?.len());
        let (reader, writer) = io::pipe()?;
        if let Some((uid, gid)) = user {
            // Programs may open `/dev/stdout` again, which requires ownership.
            fchown(&writer, Some(uid), Some(gid))?;
        }
        let reader = OwnedFd::from(reader);
        fcntl_setfl(&reader, fcntl_getfl(&reader)? | OFlags::NONBLOCK)?;
        let inner =
            Inner { pipe: Receiver::from_owned_fd(reader)?, log: Mutex::new(Log { file, room }) };
        Ok((Self(Arc::new(inner)), writer))
    }

    /// Copies output until all writers have closed the pipe.
    pub(super) async fn pump(self) {
        while self.0.pipe.readable().await.is_ok() {
            match self.drain(|chunk| self.0.pipe.try_read(chunk)) {
                PipeState::Closed => return,
                PipeState::Empty => {}
                PipeState::More => tokio::task::yield_now().await,
            }
        }
    }

    /// Copies the rest of the output after the end of a task. Ignores processes that escaped and still write.
    ///
    /// Reads the pipe directly: `try_read` reports an empty pipe until tokio has seen the readiness event, which may
    /// arrive after the end of the process.
    pub(super) fn finish(&self) {
        let begun = Instant::now();
        let read = |chunk: &mut [u8]| rustix::io::read(&self.0.pipe, chunk).map_err(Into::into);
        while self.drain(read) == PipeState::More && begun.elapsed() < FINISH_LIMIT {}
        self.log().room = 0;
    }

    /// Copies available output, at most `ROUNDS` chunks, since it blocks the guardian.
    fn drain(&self, read: impl Fn(&mut [u8]) -> io::Result<usize>) -> PipeState {
        let mut log = self.log();
        let mut chunk = [0; CHUNK];
        for _ in 0..ROUNDS {
            match read(&mut chunk) {
                Ok(0) => return PipeState::Closed,
                Ok(count) => log.append(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return PipeState::Empty,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return PipeState::Closed,
            }
        }
        PipeState::More
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PipeState {
    /// More output may be available.
    More,
    Empty,
    /// All writers have closed the pipe.
    Closed,
}

impl Log {
    /// Writes up to the limit. A full disk loses output, but does not block the task.
    fn append(&mut self, bytes: &[u8]) {
        let fits = bytes.len().min(usize::try_from(self.room).unwrap_or(usize::MAX));
        if fits > 0 && self.file.write_all(&bytes[..fits]).is_ok() {
            self.room -= fits as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn output_is_complete_when_the_end_is_known_before_the_last_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let (output, mut writer) = Output::open(dir.path(), None, 1 << 20).unwrap();
        writer.write_all(b"the last words\n").unwrap();
        drop(writer);
        output.finish();
        let log = std::fs::read_to_string(dir.path().join("output.log")).unwrap();
        assert_eq!(log, "the last words\n");
    }
}
