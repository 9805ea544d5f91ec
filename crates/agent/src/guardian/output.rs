//! The output of a task, on its way from a pipe to `output.log`.
//!
//! A pipe and not the file itself: `> /dev/stderr` in a script would empty a file. The file stays out of the task's
//! reach, and no longer than its limit.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::net::unix::pipe::Receiver;

/// Bytes that are moved at a time.
const CHUNK: usize = 8 << 10;

/// Chunks that are moved before others get their turn: a task may write faster than we read.
const ROUNDS: usize = 32;

/// How long the rest of the output may take after the end: a pipe holds a MiB at most.
const FINISH_LIMIT: Duration = Duration::from_millis(200);

/// The reading end of a task's output.
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
    /// Bytes that may still be written.
    room: u64,
}

impl Output {
    /// Opens the log of a task and a pipe that leads to it. One byte more than the limit is kept: it tells that
    /// something was cut.
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
            // Programs open `/dev/stdout` anew, and may only if it is theirs.
            fchown(&writer, Some(uid), Some(gid))?;
        }
        let reader = OwnedFd::from(reader);
        fcntl_setfl(&reader, fcntl_getfl(&reader)? | OFlags::NONBLOCK)?;
        let inner =
            Inner { pipe: Receiver::from_owned_fd(reader)?, log: Mutex::new(Log { file, room }) };
        Ok((Self(Arc::new(inner)), writer))
    }

    /// Moves output as it comes, until nobody can write any more.
    pub(super) async fn pump(self) {
        while self.0.pipe.readable().await.is_ok() {
            match self.drain(|chunk| self.0.pipe.try_read(chunk)) {
                Pipe::Closed => return,
                Pipe::Empty => {}
                Pipe::More => tokio::task::yield_now().await,
            }
        }
    }

    /// Moves what is left after the end of a task. Whoever got away and still writes is not waited for, and nothing
    /// of theirs is kept.
    ///
    /// The pipe itself is asked: `try_read` says that it is empty until the news of its last bytes has come round, and
    /// the news of the end may come round first.
    pub(super) fn finish(&self) {
        let begun = Instant::now();
        let read = |chunk: &mut [u8]| rustix::io::read(&self.0.pipe, chunk).map_err(Into::into);
        while self.drain(read) == Pipe::More && begun.elapsed() < FINISH_LIMIT {}
        self.log().room = 0;
    }

    /// Moves what is there, but not more than a few chunks: everything else has to wait for this.
    fn drain(&self, read: impl Fn(&mut [u8]) -> io::Result<usize>) -> Pipe {
        let mut log = self.log();
        let mut chunk = [0; CHUNK];
        for _ in 0..ROUNDS {
            match read(&mut chunk) {
                Ok(0) => return Pipe::Closed,
                Ok(count) => log.append(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Pipe::Empty,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Pipe::Closed,
            }
        }
        Pipe::More
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a pipe stands after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pipe {
    /// There may be more.
    More,
    /// There is no more now.
    Empty,
    /// Nobody can write any more.
    Closed,
}

impl Log {
    /// Writes what fits. A full disk loses output, but does not hold up the task.
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
    async fn output_is_whole_although_the_end_is_heard_of_before_the_last_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let (output, mut writer) = Output::open(dir.path(), None, 1 << 20).unwrap();
        writer.write_all(b"the last words\n").unwrap();
        drop(writer);
        output.finish();
        let log = std::fs::read_to_string(dir.path().join("output.log")).unwrap();
        assert_eq!(log, "the last words\n");
    }
}
