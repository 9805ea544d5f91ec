//! Copies the output of a container from its runtime into `output.log`: both streams in order, each byte once.
//!
//! The container runtime (Docker, a kubelet) keeps the output too, so after a restart the agent reads the output again
//! from the beginning and skips the bytes that the file has. The runtime's copy is limited in size: when its beginning
//! is gone, the timestamps of the lines give the position to resume at. A small file, `output.json`, stores the start
//! of the container's output in `output.log` (the agent may have written a notice before), the timestamp of the first
//! line, and, at most a second old, the timestamp of the last copied line.
//!
//! `output.log` grows to its limit plus one byte, which marks truncation. Later output is read and counted, but not
//! kept.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Interval between writes of `output.json`.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// The final check for missing output reads larger outputs only from the last second on.
const FULL_REREAD_LIMIT: u64 = 8 << 20;

const GAP: &[u8] = b"[agentaflow] Output missing: the agent was not running while it was written\n";

/// Position of the copy in a container's output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct CopyPosition {
    /// Start of the container's output in `output.log`.
    base: u64,
    /// Timestamp of the first line.
    first: String,
    /// End of the last line in `output.log`.
    bytes: u64,
    /// Timestamp of the last line.
    last: String,
    /// Number of consecutive lines with the timestamp `last`: the parts of a long line share one.
    ties: u64,
}

impl CopyPosition {
    fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(folder.join("output.json")).ok()?).ok()
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        let temporary = folder.join("output.json.new");
        fs::write(&temporary, serde_json::to_vec(self)?)?;
        fs::rename(temporary, folder.join("output.json"))
    }

    /// Unix second of the last line, for the `since` parameter of the runtime; 0 for the beginning.
    fn second(&self) -> i32 {
        let at = self.last.parse().map(jiff::Timestamp::as_second);
        at.ok().and_then(|second| i32::try_from(second).ok()).unwrap_or(0)
    }
}

/// Treatment of the next line.
#[derive(Debug)]
enum Resume {
    /// First line of this reading: compare with the first line of the output.
    Unknown,
    /// The file already has this many bytes.
    Skip(u64),
    /// The file already has all lines up to the last of `ties` lines with the timestamp `last`. Lines of the two streams
    /// may be out of order, so every later line is new, independent of its timestamp.
    After { last: String, ties: u64, seen: bool },
}

/// One reading of the output.
#[derive(Debug)]
pub struct OutputCopy {
    folder: PathBuf,
    file: File,
    buffer: Vec<u8>,
    /// Length of the file at the start of this reading.
    length: u64,
    /// Bytes left up to the limit.
    room: u64,
    position: Option<CopyPosition>,
    resume: Resume,
    saved: Instant,
}

/// Unix second from which a complete reading has to start; 0 for the beginning.
pub fn from_second(folder: &Path) -> i32 {
    let large = CopyPosition::read(folder).filter(|position| position.bytes > FULL_REREAD_LIMIT);
    large.map_or(0, |position| position.second())
}

impl OutputCopy {
    /// Starts a reading into `output.log` of this folder, of which `limit` bytes are kept.
    pub fn open(folder: &Path, limit: u64) -> io::Result<Self> {
        let file = File::options().append(true).create(true).open(folder.join("output.log"))?;
        let length = file.metadata()?.len();
        Ok(Self {
            folder: folder.to_owned(),
            length,
            room: limit.saturating_add(1).saturating_sub(length),
            file,
            buffer: Vec::new(),
            position: CopyPosition::read(folder),
            resume: Resume::Unknown,
            saved: Instant::now(),
        })
    }

    /// Handles one line, or a part of a long line, with a leading timestamp.
    pub fn take(&mut self, line: &[u8]) -> io::Result<()> {
        let (time, text) = split(line);
        if matches!(self.resume, Resume::Unknown) {
            self.resume = self.begin(time)?;
        }
        if self.is_already_copied(time) {
            return Ok(());
        }
        if let Resume::Skip(left) = &mut self.resume {
            let known = (*left).min(text.len() as u64);
            *left -= known;
            self.keep(&text[known as usize..]);
            self.advance(time, text.len());
        }
        Ok(())
    }

    /// True for lines up to the saved position; after the last of them, switches to skipping bytes.
    fn is_already_copied(&mut self, time: &str) -> bool {
        let Resume::After { last, ties, seen } = &mut self.resume else { return false };
        let order = time.cmp(last.as_str());
        if order.is_eq() {
            *seen = true;
            *ties = ties.saturating_sub(1);
        }
        let is_passed = *seen && order.is_gt();
        if is_passed || (*seen && *ties == 0) {
            let copied = self.position.as_ref().map_or(0, |position| position.bytes);
            self.resume = Resume::Skip(self.length.saturating_sub(copied));
        }
        !is_passed
    }

    fn begin(&mut self, time: &str) -> io::Result<Resume> {
        let Some(position) = &self.position else {
            // Saved before the first byte: the current contents of the file are not the container's.
            let (base, first) = (self.length, time.to_owned());
            let position = CopyPosition { base, first, bytes: base, ..CopyPosition::default() };
            position.write(&self.folder)?;
            self.position = Some(position);
            return Ok(Resume::Skip(0));
        };
        if position.first == time {
            let known = self.length.saturating_sub(position.base);
            self.position = Some(CopyPosition {
                bytes: position.base,
                last: String::new(),
                ties: 0,
                ..position.clone()
            });
            return Ok(Resume::Skip(known));
        }
        if time > position.last.as_str() {
            // The runtime dropped the line at the position and later lines: nothing to skip.
            let bytes = self.length + GAP.len() as u64;
            self.position = Some(CopyPosition { bytes, ..position.clone() });
            self.keep(GAP);
            return Ok(Resume::Skip(0));
        }
        Ok(Resume::After { last: position.last.clone(), ties: position.ties, seen: false })
    }

    /// Keeps as many bytes as the limit allows.
    fn keep(&mut self, bytes: &[u8]) {
        let fits = bytes.len().min(usize::try_from(self.room).unwrap_or(usize::MAX));
        self.buffer.extend_from_slice(&bytes[..fits]);
        self.room -= fits as u64;
    }

    fn advance(&mut self, time: &str, bytes: usize) {
        let Some(position) = &mut self.position else { return };
        position.bytes += bytes as u64;
        position.ties = if position.last == time { position.ties + 1 } else { 1 };
        time.clone_into(&mut position.last);
    }

    /// Writes the kept bytes, and the position once per `SAVE_INTERVAL`.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        if self.saved.elapsed() >= SAVE_INTERVAL { self.save() } else { Ok(()) }
    }

    /// Writes the position.
    pub fn save(&mut self) -> io::Result<()> {
        self.saved = Instant::now();
        self.position.as_ref().map_or(Ok(()), |position| position.write(&self.folder))
    }
}

/// Splits `2026-11-15T06:43:29.120456789Z text` into timestamp and text.
fn split(line: &[u8]) -> (&str, &[u8]) {
    let space = line.iter().take(40).position(|byte| *byte == b' ');
    let time = space.and_then(|at| std::str::from_utf8(&line[..at]).ok());
    match (time, space) {
        (Some(time), Some(at)) if time.contains('T') && time.ends_with('Z') => {
            (time, &line[at + 1..])
        }
        // The runtime gives no timestamps: only bytes count.
        _ => ("", line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 5] = ["one\n", "two\n", "thr", "ee\n", "four\n"];

    fn line(index: usize) -> Vec<u8> {
        format!("2026-11-15T06:43:2{index}.000000000Z {}", LINES[index]).into_bytes()
    }

    fn read(folder: &Path, lines: impl IntoIterator<Item = usize>) -> OutputCopy {
        read_within(folder, lines, 1 << 20)
    }

    fn read_within(
        folder: &Path,
        lines: impl IntoIterator<Item = usize>,
        limit: u64,
    ) -> OutputCopy {
        let mut copy = OutputCopy::open(folder, limit).unwrap();
        for index in lines {
            copy.take(&line(index)).unwrap();
        }
        copy.flush().unwrap();
        copy
    }

    fn log(folder: &Path) -> String {
        fs::read_to_string(folder.join("output.log")).unwrap()
    }

    #[test]
    fn a_second_reading_resumes_at_any_byte_at_which_the_first_ended() {
        for cut in 0..=LINES.concat().len() {
            let folder = tempfile::tempdir().unwrap();
            let notice = "a notice\n";
            fs::write(folder.path().join("output.log"), notice).unwrap();
            // The agent was killed during a write, without saving.
            read(folder.path(), 0..5);
            let file = File::options().write(true).open(folder.path().join("output.log")).unwrap();
            file.set_len((notice.len() + cut) as u64).unwrap();
            read(folder.path(), 0..5).save().unwrap();
            assert_eq!(log(folder.path()), format!("{notice}{}", LINES.concat()), "{cut}");
        }
    }

    #[test]
    fn without_the_beginning_a_reading_resumes_by_timestamps() {
        let folder = tempfile::tempdir().unwrap();
        read(folder.path(), 0..2).save().unwrap();
        // Two more lines were written, and the position was not saved.
        read(folder.path(), 0..4);
        read(folder.path(), 1..5);
        assert_eq!(log(folder.path()), LINES.concat());
    }

    #[test]
    fn parts_of_a_long_line_and_lines_out_of_order_are_copied_once() {
        let lines = ["0 first\n", "1 x\n", "5 a", "5 b", "5 c\n", "4 late\n", "6 end\n"];
        let send = |copy: &mut OutputCopy, line: &str| {
            let (second, text) = line.split_once(' ').unwrap();
            let line = format!("2026-11-15T06:43:2{second}.000000000Z {text}");
            copy.take(line.as_bytes()).unwrap();
            copy.flush().unwrap();
        };
        for cut in 2..=lines.len() {
            let folder = tempfile::tempdir().unwrap();
            let mut copy = OutputCopy::open(folder.path(), 1 << 20).unwrap();
            lines[..cut].iter().for_each(|line| send(&mut copy, line));
            copy.save().unwrap();
            // The runtime dropped the first line.
            let mut copy = OutputCopy::open(folder.path(), 1 << 20).unwrap();
            lines[1..].iter().for_each(|line| send(&mut copy, line));
            assert_eq!(log(folder.path()), "first\nx\nabc\nlate\nend\n", "{cut}");
        }
    }

    #[test]
    fn output_beyond_the_limit_is_counted_but_not_kept() {
        let all = LINES.concat();
        for limit in 0..=all.len() + 1 {
            let folder = tempfile::tempdir().unwrap();
            let kept = &all[..all.len().min(limit + 1)];
            // Killed without saving, killed after saving, and resumed without the beginning.
            read_within(folder.path(), 0..4, limit as u64);
            read_within(folder.path(), 0..3, limit as u64).save().unwrap();
            read_within(folder.path(), 1..5, limit as u64).save().unwrap();
            read_within(folder.path(), 0..5, limit as u64).save().unwrap();
            assert_eq!(log(folder.path()), kept, "{limit}");
            let position = CopyPosition::read(folder.path()).unwrap();
            assert_eq!(position.bytes, all.len() as u64, "{limit}");
        }
    }

    #[test]
    fn missing_output_is_marked_with_a_notice() {
        let folder = tempfile::tempdir().unwrap();
        read(folder.path(), 0..1).save().unwrap();
        read(folder.path(), 4..5);
        let expected = format!("one\n{}four\n", String::from_utf8_lossy(GAP));
        assert_eq!(log(folder.path()), expected);
    }

    #[test]
    fn text_without_a_timestamp_is_kept_whole() {
        assert_eq!(
            split(b"2026-11-15T06:43:29.1Z a b\n"),
            ("2026-11-15T06:43:29.1Z", &b"a b\n"[..])
        );
        assert_eq!(split(b"a b\n"), ("", &b"a b\n"[..]));
        assert_eq!(split(b""), ("", &b""[..]));
    }
}
