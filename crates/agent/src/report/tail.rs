//! The output of a task, as far as the server has it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;

use agentaflow_api::link::{LogPiece, TaskKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The largest piece of output in a report.
pub(crate) const PIECE: usize = 256 << 10;

/// So many reports of output that change nothing are enough.
const PATIENCE: u32 = 5;

/// Follows `output.log` of a task. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Tail(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    key: TaskKey,
    path: PathBuf,
    limit: u64,
    notice: String,
    place: Mutex<Place>,
}

#[derive(Debug)]
struct Place {
    /// What the server has; unknown after a restart of the agent, and then it is asked.
    have: Option<u64>,
    /// Up to where output was put into the report that is on its way.
    sent: u64,
    /// How often the server was given more and did not take it.
    refused: u32,
}

impl Place {
    /// The server takes no more, and nothing may wait for that.
    fn is_hopeless(&self) -> bool {
        self.refused >= PATIENCE
    }
}

impl Tail {
    /// Follows a file, of which `limit` bytes are kept.
    pub(crate) fn new(key: TaskKey, path: PathBuf, limit: u64, fresh: bool) -> Self {
        let notice = format!(
            "\n[agentaflow] the output was cut here: more than {} MiB\n",
            limit.div_ceil(1 << 20)
        );
        let place = Mutex::new(Place { have: fresh.then_some(0), sent: 0, refused: 0 });
        Self(Arc::new(Inner { key, path, limit, notice, place }))
    }

    /// Whose.
    pub(crate) fn key(&self) -> TaskKey {
        self.0.key
    }

    /// Bytes of output in all, by now.
    pub(crate) fn total(&self) -> u64 {
        match self.0.path.symlink_metadata().map(|meta| meta.len()) {
            Ok(length) if length > self.0.limit => self.0.limit + self.0.notice.len() as u64,
            Ok(length) => length,
            Err(_) => 0,
        }
    }

    /// A new report is being put together: begin at what the server has.
    pub(crate) fn rewind(&self) {
        let mut place = self.place();
        place.sent = place.have.unwrap_or(0);
    }

    /// The next piece for the report at hand, if there is more; at most `room` bytes.
    pub(crate) fn piece(&self, room: usize) -> Option<LogPiece> {
        let mut place = self.place();
        if place.have.is_none() {
            // An empty piece asks how much the server has; the answer sets it.
            return Some(LogPiece { key: self.0.key, offset: 0, data: String::new() });
        }
        if place.is_hopeless() {
            return None;
        }
        let offset = place.sent;
        let left = self.total().saturating_sub(offset);
        let bytes =
            self.read(offset, left.min(room.min(PIECE) as u64) as usize).unwrap_or_default();
        if bytes.is_empty() {
            return None;
        }
        place.sent += bytes.len() as u64;
        Some(LogPiece { key: self.0.key, offset, data: STANDARD.encode(&bytes) })
    }

    /// All there is was put into the report at hand.
    pub(crate) fn is_sent(&self) -> bool {
        let place = self.place();
        place.is_hopeless() || place.have.is_some() && place.sent >= self.total()
    }

    /// The server has so much.
    pub(crate) fn confirm(&self, have: u64) {
        let mut place = self.place();
        let stuck = place.have.is_some_and(|before| have <= before && place.sent > before);
        place.refused = if stuck { place.refused + 1 } else { 0 };
        place.have = Some(have);
    }

    /// The server has everything.
    pub(crate) fn is_complete(&self) -> bool {
        let place = self.place();
        place.is_hopeless() || place.have.is_some_and(|have| have >= self.total())
    }

    fn read(&self, offset: u64, most: usize) -> io::Result<Vec<u8>> {
        if offset >= self.0.limit {
            let skip = (offset - self.0.limit) as usize;
            return Ok(self.0.notice.as_bytes().iter().skip(skip).take(most).copied().collect());
        }
        let most = most.min((self.0.limit - offset) as usize);
        // The task can write to its log but must not lead us to another file.
        let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
        let file = File::options().read(true).custom_flags(nofollow).open(&self.0.path)?;
        let mut bytes = vec![0; most];
        let count = file.read_at(&mut bytes, offset)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.place.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn output_over_the_limit_is_cut_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.log");
        let key = TaskKey { job: 1, epoch: 1, task: 0 };
        std::fs::write(&path, "0123456789abcdef").unwrap();
        let tail = Tail::new(key, path.clone(), 16, true);
        assert_eq!(read_all(&tail), b"0123456789abcdef");
        assert!(tail.is_sent() && !tail.is_complete());
        std::fs::write(&path, "0123456789abcdefg").unwrap();
        let text = String::from_utf8(read_all(&tail)).unwrap();
        assert_eq!(
            text,
            "0123456789abcdef\n[agentaflow] the output was cut here: more than 1 MiB\n"
        );
        tail.confirm(tail.total());
        assert!(tail.is_complete());
    }

    #[test]
    fn an_adopted_task_asks_first_what_the_server_has() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.log");
        std::fs::write(&path, "hello").unwrap();
        let tail = Tail::new(TaskKey { job: 1, epoch: 1, task: 0 }, path, 100, false);
        tail.rewind();
        assert_eq!(tail.piece(10).unwrap().data, "");
        assert!(!tail.is_sent());
        tail.confirm(3);
        tail.rewind();
        let piece = tail.piece(10).unwrap();
        assert_eq!((piece.offset, STANDARD.decode(piece.data).unwrap()), (3, b"lo".to_vec()));
    }
}
