//! Open log files of some jobs.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use agentaflow_api::ids::JobId;
use agentaflow_api::link::TaskKey;

use super::{folder, log_path, sizes};

/// Maximum number of open files.
const OPEN_FILES: usize = 16;

/// Limits of a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Maximum output of a job, in bytes.
    pub(super) most: u64,
    /// Nothing fits.
    pub(super) full: Option<Full>,
}

/// Storage without room for output.
#[derive(Clone, Copy, Debug)]
pub(super) enum Full {
    Disk,
    Account,
}

/// Result of a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Appended {
    /// Stored bytes of the attempt; none if a later attempt has begun.
    pub(super) end: Option<u64>,
    /// Bytes by which the log grew.
    pub(super) written: u64,
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    logs: BTreeMap<(JobId, u32), TaskLog>,
    /// Total output of each job with open files.
    totals: HashMap<JobId, u64>,
    /// Counts uses, to find the least recently used file.
    clock: u64,
}

impl Shard {
    /// Writes a piece. After an error the caller forgets the job: only the files tell the number of bytes written.
    pub(super) fn append(
        &mut self,
        dir: &Path,
        room: Room,
        key: TaskKey,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<Appended> {
        let (log, total) = self.task(dir, key)?;
        let before = *total;
        let end = Self::append_to(log, total, room, key, offset, bytes)?;
        Ok(Appended { end, written: *total - before })
    }

    fn append_to(
        log: &mut TaskLog,
        total: &mut u64,
        Room { most, full }: Room,
        key: TaskKey,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<Option<u64>> {
        let attempt = Attempt::of(key);
        let is_current = log.tries.last().is_some_and(|last| last.attempt == attempt);
        if !is_current && log.tries.iter().any(|one| attempt.is_before(one.attempt)) {
            return Ok(None);
        }
        // Beyond the limit pieces are accepted and dropped, so that the agent does not repeat them.
        let dropped = offset.saturating_add(bytes.len() as u64);
        if *total >= most {
            return Ok(Some(dropped.max(log.stored_bytes(attempt))));
        }
        if !is_current {
            *total += log.begin_try(attempt)?;
        }
        let stored = log.stored_bytes(attempt);
        let Some(skip) = stored.checked_sub(offset) else { return Ok(Some(stored)) };
        if let Some(full) = full {
            *total += log.leave_out(dropped, full)?;
            return Ok(Some(log.stored_bytes(attempt)));
        }
        let fresh = bytes.get(usize::try_from(skip).unwrap_or(usize::MAX)..).unwrap_or_default();
        let room = most.saturating_sub(*total);
        let fits = &fresh[..fresh.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        *total += log.write(fits)?;
        if fits.len() < fresh.len() {
            *total += log.write(&cut_notice(most))?;
            return Ok(Some(dropped));
        }
        Ok(Some(log.stored_bytes(attempt)))
    }

    fn task(&mut self, dir: &Path, key: TaskKey) -> io::Result<(&mut TaskLog, &mut u64)> {
        let name = (key.job, key.task);
        self.clock += 1;
        if !self.logs.contains_key(&name) {
            self.make_room();
            let log = TaskLog::open(dir, key)?;
            self.logs.insert(name, log);
        }
        let total = match self.totals.entry(key.job) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(sizes(&folder(dir, key.job))?.values().sum()),
        };
        let log = self.logs.get_mut(&name).ok_or_else(|| io::Error::other("the log was closed"))?;
        log.used = self.clock;
        Ok((log, total))
    }

    #[cfg(test)]
    pub(super) fn open_files(&self) -> usize {
        self.logs.len()
    }

    fn make_room(&mut self) {
        if self.logs.len() < OPEN_FILES {
            return;
        }
        let oldest = self.logs.iter().min_by_key(|(_, log)| log.used).map(|(name, _)| *name);
        if let Some((job, task)) = oldest {
            self.logs.remove(&(job, task));
            if self.logs.range((job, 0)..=(job, u32::MAX)).next().is_none() {
                self.totals.remove(&job);
            }
        }
    }

    pub(super) fn forget_job(&mut self, job: JobId) {
        self.logs.retain(|(of, _), _| *of != job);
        self.totals.remove(&job);
    }
}

fn cut_notice(most: u64) -> Vec<u8> {
    format!("\n--- cut off: the log reached {} MiB ---\n", most / 1024 / 1024).into_bytes()
}

fn full_notice(full: Full) -> &'static [u8] {
    match full {
        Full::Disk => b"\n--- left out: the disk of the server is nearly full ---\n",
        Full::Account => b"\n--- left out: the account has reached its storage limit ---\n",
    }
}

/// Attempt of a task; a restored backup repeats numbers with another incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attempt {
    epoch: u32,
    incarnation: u32,
}

impl Attempt {
    fn of(key: TaskKey) -> Self {
        Self { epoch: key.epoch, incarnation: key.incarnation }
    }

    /// Returns true if `other` began later, or is the same. Attempts of different incarnations have no order.
    fn is_before(self, other: Self) -> bool {
        self.incarnation == other.incarnation && self.epoch <= other.epoch
    }
}

/// Start of an attempt in the log, or its continuation after dropped output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Try {
    attempt: Attempt,
    start: u64,
    /// Bytes of the attempt before this point.
    before: u64,
}

/// A log open for writing.
#[derive(Debug)]
struct TaskLog {
    file: File,
    len: u64,
    tries: Vec<Try>,
    tries_path: PathBuf,
    /// Output was dropped since the attempts were saved; after a restart the agent sends it again.
    unsaved: bool,
    used: u64,
}

impl TaskLog {
    fn open(dir: &Path, key: TaskKey) -> io::Result<Self> {
        let path = log_path(dir, key.job, key.task);
        DirBuilder::new().recursive(true).mode(0o700).create(folder(dir, key.job))?;
        let file =
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
        let len = file.metadata()?.len();
        let tries_path = path.with_extension("tries");
        let tries = read_tries(&tries_path)?;
        let mut log = Self { file, len, tries, tries_path, unsaved: false, used: 0 };
        log.clamp_tries()?;
        Ok(log)
    }

    /// After a power failure the log may be shorter: no attempt may start beyond its end.
    fn clamp_tries(&mut self) -> io::Result<()> {
        if self.tries.iter().all(|one| one.start <= self.len) {
            return Ok(());
        }
        for one in &mut self.tries {
            one.start = one.start.min(self.len);
        }
        self.save_tries()
    }

    /// Stored bytes of this attempt.
    fn stored_bytes(&self, attempt: Attempt) -> u64 {
        let present = self.tries.last().filter(|last| last.attempt == attempt);
        present.map_or(0, |last| last.before + (self.len - last.start))
    }

    /// Drops output up to this byte of the current attempt. The log records it once until the next write. Returns the
    /// number of bytes written.
    fn leave_out(&mut self, up_to: u64, full: Full) -> io::Result<u64> {
        let Some(last) = self.tries.last().copied() else { return Ok(0) };
        if up_to <= self.stored_bytes(last.attempt) {
            return Ok(0);
        }
        let goes_on = last.before > 0 && last.start == self.len;
        let taken = if goes_on { 0 } else { self.write(full_notice(full))? };
        let start = self.len;
        if let Some(present) = self.tries.last_mut() {
            *present = Try { start, before: up_to, ..last };
        }
        self.unsaved = true;
        if !goes_on {
            self.save_tries()?;
        }
        Ok(taken)
    }

    /// Starts an attempt, with a line between it and the previous one. Returns the number of bytes written.
    fn begin_try(&mut self, attempt: Attempt) -> io::Result<u64> {
        let mut taken = 0;
        if self.len > 0 {
            let mut last = [b'\n'];
            self.file.read_exact_at(&mut last, self.len - 1)?;
            let newline = if last == [b'\n'] { "" } else { "\n" };
            taken =
                self.write(format!("{newline}--- attempt {} ---\n", attempt.epoch).as_bytes())?;
        }
        self.tries.push(Try { attempt, start: self.len, before: 0 });
        self.save_tries()?;
        Ok(taken)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<u64> {
        if self.unsaved {
            self.save_tries()?;
        }
        self.file.write_all(bytes)?;
        self.len += bytes.len() as u64;
        Ok(bytes.len() as u64)
    }

    fn save_tries(&mut self) -> io::Result<()> {
        let new = self.tries_path.with_extension("new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        for one in &self.tries {
            let Attempt { epoch, incarnation } = one.attempt;
            writeln!(file, "{epoch} {} {} {incarnation}", one.start, one.before)?;
        }
        std::fs::rename(&new, &self.tries_path)?;
        self.unsaved = false;
        Ok(())
    }
}

fn read_tries(path: &Path) -> io::Result<Vec<Try>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let parse = |line: &str| {
        let mut numbers = line.split(' ');
        let epoch = numbers.next()?.parse().ok()?;
        let start = numbers.next()?.parse().ok()?;
        let before = numbers.next().map_or(Ok(0), str::parse).ok()?;
        let incarnation = numbers.next().map_or(Ok(0), str::parse).ok()?;
        Some(Try { attempt: Attempt { epoch, incarnation }, start, before })
    };
    Ok(text.lines().filter_map(parse).collect())
}
