//! A task's output as its engine keeps it, copied into `output.log`: both streams as they came, each byte once.
//!
//! The engine (Docker, a kubelet) keeps the output too, so after a restart of the agent it is read again from the
//! beginning, and the bytes that are in the file already are skipped. The engine's copy is limited in size: when its
//! beginning is gone, the times that it keeps with each line tell where to go on. A small file, `output.json`,
//! remembers where the container's output begins in `output.log` (the agent may have written a notice before), the
//! time of its first line, and, at most a second old, the time of the last one copied.
//!
//! `output.log` grows to its limit and one byte more, which tells that something was cut. What comes after that is
//! read and counted, but not kept.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How old the remembered place may be.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// Larger outputs are not read again as a whole just to see that nothing is missing, but from the last second.
const READ_AGAIN: u64 = 8 << 20;

const GAP: &[u8] =
    b"[agentaflow: output is missing here; it came while nobody was there to copy it]\n";

/// Where we are in a container's output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Place {
    /// Where it begins in `output.log`.
    base: u64,
    /// The time of its first line.
    first: String,
    /// Where the last line ends in `output.log`.
    bytes: u64,
    /// The time of the last line.
    last: String,
    /// How many lines in a row had this time: the parts of a long line share it.
    ties: u64,
}

impl Place {
    fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(folder.join("output.json")).ok()?).ok()
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        let temporary = folder.join("output.json.new");
        fs::write(&temporary, serde_json::to_vec(self)?)?;
        fs::rename(temporary, folder.join("output.json"))
    }

    /// The second of the last line, as the engine wants it; 0 is the beginning.
    fn second(&self) -> i32 {
        let at = self.last.parse().map(jiff::Timestamp::as_second);
        at.ok().and_then(|second| i32::try_from(second).ok()).unwrap_or(0)
    }
}

/// What becomes of the next line.
#[derive(Debug)]
enum Next {
    /// It is the first of this reading: look whether it is the first of all.
    Unknown,
    /// So many bytes are in the file already.
    Skip(u64),
    /// Everything up to the last of so many lines with this time is in the file already. Lines of the two
    /// streams may be out of order, so what comes after it is new, whatever its time.
    After { last: String, ties: u64, seen: bool },
}

/// One reading of the output.
#[derive(Debug)]
pub struct Copy {
    folder: PathBuf,
    file: File,
    /// Taken, and not written yet.
    buffer: Vec<u8>,
    /// Of the file when this reading began.
    length: u64,
    /// Bytes that may still be taken.
    room: u64,
    place: Option<Place>,
    next: Next,
    saved: Instant,
}

/// The second from which a reading that is to miss nothing has to begin; 0 is the beginning.
pub fn from_second(folder: &Path) -> i32 {
    let large = Place::read(folder).filter(|place| place.bytes > READ_AGAIN);
    large.map_or(0, |place| place.second())
}

impl Copy {
    /// Begins a reading into `output.log` of this folder, of which `limit` bytes are kept.
    pub fn open(folder: &Path, limit: u64) -> io::Result<Self> {
        let file = File::options().append(true).create(true).open(folder.join("output.log"))?;
        let length = file.metadata()?.len();
        Ok(Self {
            folder: folder.to_owned(),
            length,
            room: limit.saturating_add(1).saturating_sub(length),
            file,
            buffer: Vec::new(),
            place: Place::read(folder),
            next: Next::Unknown,
            saved: Instant::now(),
        })
    }

    /// One line, or a part of a long one, with its time in front.
    pub fn take(&mut self, line: &[u8]) -> io::Result<()> {
        let (time, text) = split(line);
        if matches!(self.next, Next::Unknown) {
            self.next = self.begin(time)?;
        }
        if self.is_before(time) {
            return Ok(());
        }
        if let Next::Skip(left) = &mut self.next {
            let known = (*left).min(text.len() as u64);
            *left -= known;
            self.keep(&text[known as usize..]);
            self.went_on(time, text.len());
        }
        Ok(())
    }

    /// True while the lines are those up to our place. There, goes on to bytes.
    fn is_before(&mut self, time: &str) -> bool {
        let Next::After { last, ties, seen } = &mut self.next else { return false };
        let order = time.cmp(last.as_str());
        if order.is_eq() {
            *seen = true;
            *ties = ties.saturating_sub(1);
        }
        let is_passed = *seen && order.is_gt();
        if is_passed || (*seen && *ties == 0) {
            let place = self.place.as_ref().map_or(0, |place| place.bytes);
            self.next = Next::Skip(self.length.saturating_sub(place));
        }
        !is_passed
    }

    fn begin(&mut self, time: &str) -> io::Result<Next> {
        let Some(place) = &self.place else {
            // Written before the first byte: what is in the file now is not the container's.
            let (base, first) = (self.length, time.to_owned());
            let place = Place { base, first, bytes: base, ..Place::default() };
            place.write(&self.folder)?;
            self.place = Some(place);
            return Ok(Next::Skip(0));
        };
        if place.first == time {
            let known = self.length.saturating_sub(place.base);
            self.place =
                Some(Place { bytes: place.base, last: String::new(), ties: 0, ..place.clone() });
            return Ok(Next::Skip(known));
        }
        if time > place.last.as_str() {
            // Our place is gone, and what came after it: nothing to skip.
            let bytes = self.length + GAP.len() as u64;
            self.place = Some(Place { bytes, ..place.clone() });
            self.keep(GAP);
            return Ok(Next::Skip(0));
        }
        Ok(Next::After { last: place.last.clone(), ties: place.ties, seen: false })
    }

    /// Takes as much as there is room for.
    fn keep(&mut self, bytes: &[u8]) {
        let fits = bytes.len().min(usize::try_from(self.room).unwrap_or(usize::MAX));
        self.buffer.extend_from_slice(&bytes[..fits]);
        self.room -= fits as u64;
    }

    fn went_on(&mut self, time: &str, bytes: usize) {
        let Some(place) = &mut self.place else { return };
        place.bytes += bytes as u64;
        place.ties = if place.last == time { place.ties + 1 } else { 1 };
        time.clone_into(&mut place.last);
    }

    /// Writes what was taken, and now and then the place.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        if self.saved.elapsed() >= SAVE_EVERY { self.save() } else { Ok(()) }
    }

    /// Writes the place.
    pub fn save(&mut self) -> io::Result<()> {
        self.saved = Instant::now();
        self.place.as_ref().map_or(Ok(()), |place| place.write(&self.folder))
    }
}

/// `2026-11-15T06:43:29.120456789Z text` gives the time and the text.
fn split(line: &[u8]) -> (&str, &[u8]) {
    let space = line.iter().take(40).position(|byte| *byte == b' ');
    let time = space.and_then(|at| std::str::from_utf8(&line[..at]).ok());
    match (time, space) {
        (Some(time), Some(at)) if time.contains('T') && time.ends_with('Z') => {
            (time, &line[at + 1..])
        }
        // An engine that gives no times: count bytes only.
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

    fn read(folder: &Path, lines: impl IntoIterator<Item = usize>) -> Copy {
        read_within(folder, lines, 1 << 20)
    }

    fn read_within(folder: &Path, lines: impl IntoIterator<Item = usize>, limit: u64) -> Copy {
        let mut copy = Copy::open(folder, limit).unwrap();
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
    fn a_second_reading_goes_on_after_what_is_there_whatever_byte_the_first_ended_at() {
        for cut in 0..=LINES.concat().len() {
            let folder = tempfile::tempdir().unwrap();
            let notice = "a notice\n";
            fs::write(folder.path().join("output.log"), notice).unwrap();
            // Killed without saving, in the middle of a write.
            read(folder.path(), 0..5);
            let file = File::options().write(true).open(folder.path().join("output.log")).unwrap();
            file.set_len((notice.len() + cut) as u64).unwrap();
            read(folder.path(), 0..5).save().unwrap();
            assert_eq!(log(folder.path()), format!("{notice}{}", LINES.concat()), "{cut}");
        }
    }

    #[test]
    fn when_the_beginning_is_gone_the_times_tell_where_to_go_on() {
        let folder = tempfile::tempdir().unwrap();
        read(folder.path(), 0..2).save().unwrap();
        // Two more were written, and the place was not saved.
        read(folder.path(), 0..4);
        read(folder.path(), 1..5);
        assert_eq!(log(folder.path()), LINES.concat());
    }

    #[test]
    fn parts_of_a_long_line_and_lines_out_of_order_are_neither_lost_nor_doubled() {
        let lines = ["0 first\n", "1 x\n", "5 a", "5 b", "5 c\n", "4 late\n", "6 end\n"];
        let send = |copy: &mut Copy, line: &str| {
            let (second, text) = line.split_once(' ').unwrap();
            let line = format!("2026-11-15T06:43:2{second}.000000000Z {text}");
            copy.take(line.as_bytes()).unwrap();
            copy.flush().unwrap();
        };
        for cut in 2..=lines.len() {
            let folder = tempfile::tempdir().unwrap();
            let mut copy = Copy::open(folder.path(), 1 << 20).unwrap();
            lines[..cut].iter().for_each(|line| send(&mut copy, line));
            copy.save().unwrap();
            // The first line is gone from the engine.
            let mut copy = Copy::open(folder.path(), 1 << 20).unwrap();
            lines[1..].iter().for_each(|line| send(&mut copy, line));
            assert_eq!(log(folder.path()), "first\nx\nabc\nlate\nend\n", "{cut}");
        }
    }

    #[test]
    fn output_beyond_the_limit_is_counted_but_not_kept_however_often_it_is_read() {
        let all = LINES.concat();
        for limit in 0..=all.len() + 1 {
            let folder = tempfile::tempdir().unwrap();
            let kept = &all[..all.len().min(limit + 1)];
            // Killed without saving, killed after saving, and from the middle when the beginning is gone.
            read_within(folder.path(), 0..4, limit as u64);
            read_within(folder.path(), 0..3, limit as u64).save().unwrap();
            read_within(folder.path(), 1..5, limit as u64).save().unwrap();
            read_within(folder.path(), 0..5, limit as u64).save().unwrap();
            assert_eq!(log(folder.path()), kept, "{limit}");
            let place = Place::read(folder.path()).unwrap();
            assert_eq!(place.bytes, all.len() as u64, "{limit}");
        }
    }

    #[test]
    fn a_gap_is_said_to_be_one() {
        let folder = tempfile::tempdir().unwrap();
        read(folder.path(), 0..1).save().unwrap();
        read(folder.path(), 4..5);
        let expected = format!("one\n{}four\n", String::from_utf8_lossy(GAP));
        assert_eq!(log(folder.path()), expected);
    }

    #[test]
    fn text_that_looks_like_a_time_and_text_without_one_are_kept_whole() {
        assert_eq!(
            split(b"2026-11-15T06:43:29.1Z a b\n"),
            ("2026-11-15T06:43:29.1Z", &b"a b\n"[..])
        );
        assert_eq!(split(b"a b\n"), ("", &b"a b\n"[..]));
        assert_eq!(split(b""), ("", &b""[..]));
    }
}
