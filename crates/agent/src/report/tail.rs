//! Output of a task and the server's position in it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;

use agentaflow_api::link::{LogPiece, TaskKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Maximum size of one piece of output in bytes.
pub(crate) const PIECE: usize = 256 << 10;

/// Number of refused pieces after which the agent stops sending output.
const MAX_REFUSALS: u32 = 5;

/// Follows `output.log` of a task. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Tail(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    key: TaskKey,
    path: PathBuf,
    limit: u64,
    notice: String,
    position: Mutex<SendPosition>,
}

#[derive(Debug)]
struct SendPosition {
    /// Bytes that the server has; unknown after a restart of the agent, until the server answers.
    have: Option<u64>,
    /// End of the output in the report in flight.
    sent: u64,
    /// Consecutive pieces that the server did not store.
    refused: u32,
}

impl SendPosition {
    /// The server stores no more output, so the end of the task must not wait for it.
    fn is_abandoned(&self) -> bool {
        self.refused >= MAX_REFUSALS
    }
}

impl Tail {
    /// Follows a file, of which the server gets `limit` bytes. `new`: the server has no output of the task.
    pub(crate) fn new(key: TaskKey, path: PathBuf, limit: u64, new: bool) -> Self {
        let notice =
            format!("\n[agentaflow] Output truncated: more than {} MiB\n", limit.div_ceil(1 << 20));
        let position = Mutex::new(SendPosition { have: new.then_some(0), sent: 0, refused: 0 });
        Self(Arc::new(Inner { key, path, limit, notice, position }))
    }

    pub(crate) fn key(&self) -> TaskKey {
        self.0.key
    }

    /// Current length of the output in bytes, truncation notice included.
    pub(crate) fn total(&self) -> u64 {
        match self.0.path.symlink_metadata().map(|meta| meta.len()) {
            Ok(length) if length > self.0.limit => self.0.limit + self.0.notice.len() as u64,
            Ok(length) => length,
            Err(_) => 0,
        }
    }

    /// Starts a new report at the end of the server's copy.
    pub(crate) fn rewind(&self) {
        let mut position = self.position();
        position.sent = position.have.unwrap_or(0);
    }

    /// Next piece for the current report, at most `room` bytes; `None` at the end of the output.
    pub(crate) fn piece(&self, room: usize) -> Option<LogPiece> {
        let mut position = self.position();
        if position.have.is_none() {
            // An empty piece asks for the length of the server's copy; `confirm` stores the answer.
            return Some(LogPiece { key: self.0.key, offset: 0, data: String::new() });
        }
        if position.is_abandoned() {
            return None;
        }
        let offset = position.sent;
        let left = self.total().saturating_sub(offset);
        let bytes =
            self.read(offset, left.min(room.min(PIECE) as u64) as usize).unwrap_or_default();
        if bytes.is_empty() {
            return None;
        }
        position.sent += bytes.len() as u64;
        Some(LogPiece { key: self.0.key, offset, data: STANDARD.encode(&bytes) })
    }

    /// True if the current report reaches the end of the output.
    pub(crate) fn is_sent(&self) -> bool {
        let position = self.position();
        position.is_abandoned() || position.have.is_some() && position.sent >= self.total()
    }

    /// Records the length of the server's copy.
    pub(crate) fn confirm(&self, have: u64) {
        let mut position = self.position();
        let stuck = position.have.is_some_and(|before| have <= before && position.sent > before);
        position.refused = if stuck { position.refused + 1 } else { 0 };
        position.have = Some(have);
    }

    /// True if the server has all output, or accepts no more.
    pub(crate) fn is_complete(&self) -> bool {
        let position = self.position();
        position.is_abandoned() || position.have.is_some_and(|have| have >= self.total())
    }

    fn read(&self, offset: u64, most: usize) -> io::Result<Vec<u8>> {
        if offset >= self.0.limit {
            let skip = (offset - self.0.limit) as usize;
            return Ok(self.0.notice.as_bytes().iter().skip(skip).take(most).copied().collect());
        }
        let most = most.min((self.0.limit - offset) as usize);
        // The task can write to its log but must not make the agent read another file.
        let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
        let file = File::options().read(true).custom_flags(nofollow).open(&self.0.path)?;
        let mut bytes = vec![0; most];
        let count = file.read_at(&mut bytes, offset)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn position(&self) -> MutexGuard<'_, SendPosition> {
        self.0.position.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(tail: &Tail) -> Vec<u8> {
        let mut all = Vec::new();
        tail.rewind();
        while let Some(piece) = tail.piece(10) {
            assert_eq!(piece.offset, all.len() as u64);
            all.extend(STANDARD.decode(piece.data).unwrap());
        }
        all
    }

    #[test]
    fn output_over_the_limit_is_truncated_with_a_notice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.log");
        let key = TaskKey { job: agentaflow_api::ids::JobId(1), epoch: 1, incarnation: 0, task: 0 };
        std::fs::write(&path, "0123456789abcdef").unwrap();
        let tail = Tail::new(key, path.clone(), 16, true);
        assert_eq!(read_all(&tail), b"0123456789abcdef");
        assert!(tail.is_sent() && !tail.is_complete());
        std::fs::write(&path, "0123456789abcdefg").unwrap();
        let text = String::from_utf8(read_all(&tail)).unwrap();
        assert_eq!(text, "0123456789abcdef\n[agentaflow] Output truncated: more than 1 MiB\n");
        tail.confirm(tail.total());
        assert!(tail.is_complete());
    }

    #[test]
    fn the_tail_of_an_adopted_task_asks_for_the_length_of_the_servers_copy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.log");
        std::fs::write(&path, "hello").unwrap();
        let tail = Tail::new(
            TaskKey { job: agentaflow_api::ids::JobId(1), epoch: 1, incarnation: 0, task: 0 },
            path,
            100,
            false,
        );
        tail.rewind();
        assert_eq!(tail.piece(10).unwrap().data, "");
        assert!(!tail.is_sent());
        tail.confirm(3);
        tail.rewind();
        let piece = tail.piece(10).unwrap();
        assert_eq!((piece.offset, STANDARD.decode(piece.data).unwrap()), (3, b"lo".to_vec()));
    }
}
