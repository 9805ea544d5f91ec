//! A file of blocks. The oldest block is reused once it is older than the span of the ring, or once the file has its maximum
//! size.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::block::{self, BLOCK_BYTES, Header, RECORDS, Values};

/// Blocks that are read at once when a file is opened.
const BLOCKS_AT_ONCE: usize = 256;

/// Resolution of a ring and the time that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Seconds between two records.
    pub(crate) step: u32,
    /// Number of records that stay at least.
    pub(crate) slots: u64,
}

impl Span {
    pub(crate) fn slot(self, at: u64) -> u64 {
        at / u64::from(self.step)
    }

    pub(crate) fn seconds(self) -> u64 {
        self.slots * u64::from(self.step)
    }

    /// Blocks of a series that is always recorded.
    pub(crate) fn blocks(self) -> u64 {
        self.slots.div_ceil(RECORDS) + 1
    }
}

#[derive(Debug)]
pub(crate) struct Ring {
    file: File,
    span: Span,
    /// Maximum number of blocks.
    limit: usize,
    index: Mutex<Index>,
}

#[derive(Debug, Default)]
struct Index {
    /// Header of each block; none for an unusable one.
    blocks: Vec<Option<Arc<Header>>>,
    /// Numbers of all blocks, in the order of their reuse.
    order: VecDeque<u32>,
    /// Blocks of each series, oldest first.
    series: FxHashMap<String, VecDeque<u32>>,
    sequence: u64,
}

/// Content of a file that was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) blocks: u64,
    /// Blocks of another format, and torn ones.
    pub(crate) unusable: u64,
}

impl Ring {
    /// Opens or creates a file. Content that this version did not write is overwritten in time.
    pub(crate) fn open(path: &Path, span: Span, bytes: u64) -> io::Result<(Self, Found)> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let limit = usize::try_from(bytes / BLOCK_BYTES as u64).unwrap_or(usize::MAX).max(1);
        let mut found = read_headers(&file, span)?;
        let unusable = found.iter().filter(|header| header.is_none()).count();
        let counts = Found { blocks: found.len() as u64, unusable: unusable as u64 };
        if unusable == found.len() {
            found.clear();
        }
        found.truncate(limit);
        file.set_len((found.len() * BLOCK_BYTES) as u64)?;
        let index = Mutex::new(Index::new(found));
        Ok((Self { file, span, limit, index }, counts))
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.index().blocks.len() * BLOCK_BYTES) as u64
    }

    /// Names of all series.
    pub(crate) fn names(&self) -> Vec<String> {
        self.index().series.keys().cloned().collect()
    }

    /// Writes the record of a slot.
    pub(crate) fn write(&self, name: &str, slot: u64, values: &Values) -> io::Result<()> {
        let mut index = self.index();
        if let Some((number, header)) = index.newest(name)
            && let Some(position) = header.position(slot)
        {
            let at = number as usize * BLOCK_BYTES + block::offset(position);
            let record = block::record(header.sequence, position, values);
            return self.file.write_all_at(&record, at as u64);
        }
        let number = index.free_block(slot, self.span, self.limit);
        let sequence = index.sequence + 1;
        let step = self.span.step;
        let header = Header { sequence, first: slot, step, name: name.to_owned() };
        let mut bytes = header.block();
        let record = block::record(sequence, 0, values);
        bytes[block::offset(0)..block::offset(1)].copy_from_slice(&record);
        self.file.write_all_at(&bytes, u64::from(number) * BLOCK_BYTES as u64)?;
        index.take(number, header);
        Ok(())
    }

    /// Slot of the first record.
    pub(crate) fn oldest(&self, name: &str) -> Option<u64> {
        self.index().headers(name).iter().map(|(_, header)| header.first).min()
    }

    /// Slot of the last record.
    pub(crate) fn newest(&self, name: &str) -> io::Result<Option<u64>> {
        let Some((_, header)) = self.index().newest(name) else { return Ok(None) };
        let rows = self.read(name, header.first, header.first + RECORDS)?;
        Ok(rows.iter().rposition(Option::is_some).map(|last| header.first + last as u64))
    }

    /// Records of the slots from `from` to before `to`.
    pub(crate) fn read(&self, name: &str, from: u64, to: u64) -> io::Result<Vec<Option<Values>>> {
        let mut found = vec![None; to.saturating_sub(from) as usize];
        let headers = self.index().headers(name);
        let mut bytes = vec![0; BLOCK_BYTES];
        for (number, header) in headers {
            if header.first >= to || header.first + RECORDS <= from {
                continue;
            }
            self.file.read_exact_at(&mut bytes, u64::from(number) * BLOCK_BYTES as u64)?;
            // The block was reused meanwhile.
            if Header::read(&bytes).as_ref() != Some(&*header) {
                continue;
            }
            for slot in from.max(header.first)..to.min(header.first + RECORDS) {
                let position = slot - header.first;
                if let Some(values) = block::values(&bytes, header.sequence, position) {
                    found[(slot - from) as usize] = Some(values);
                }
            }
        }
        Ok(found)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Header of each block of a file; the last, incomplete block is left out.
fn read_headers(file: &File, span: Span) -> io::Result<Vec<Option<Header>>> {
    let blocks = file.metadata()?.len() as usize / BLOCK_BYTES;
    let mut headers = Vec::with_capacity(blocks);
    let mut bytes = vec![0; BLOCKS_AT_ONCE * BLOCK_BYTES];
    while headers.len() < blocks {
        let part = (blocks - headers.len()).min(BLOCKS_AT_ONCE) * BLOCK_BYTES;
        file.read_exact_at(&mut bytes[..part], (headers.len() * BLOCK_BYTES) as u64)?;
        let read = |block| Header::read(block).filter(|header| header.step == span.step);
        headers.extend(bytes[..part].chunks_exact(BLOCK_BYTES).map(read));
    }
    Ok(headers)
}

impl Index {
    fn new(headers: Vec<Option<Header>>) -> Self {
        let blocks: Vec<_> = headers.into_iter().map(|header| header.map(Arc::new)).collect();
        let mut order: Vec<u32> = (0..blocks.len() as u32).collect();
        let sequence =
            |number: &u32| blocks[*number as usize].as_ref().map_or(0, |header| header.sequence);
        order.sort_by_key(sequence);
        let last = order.last().map_or(0, sequence);
        let mut series: FxHashMap<String, VecDeque<u32>> = FxHashMap::default();
        for number in &order {
            if let Some(header) = &blocks[*number as usize] {
                series.entry(header.name.clone()).or_default().push_back(*number);
            }
        }
        Self { sequence: last, order: order.into(), blocks, series }
    }

    fn headers(&self, name: &str) -> Vec<(u32, Arc<Header>)> {
        let numbers = self.series.get(name).into_iter().flatten();
        numbers.filter_map(|number| Some((*number, self.header(*number)?))).collect()
    }

    fn header(&self, number: u32) -> Option<Arc<Header>> {
        self.blocks.get(number as usize)?.clone()
    }

    fn newest(&self, name: &str) -> Option<(u32, Arc<Header>)> {
        let number = *self.series.get(name)?.back()?;
        Some((number, self.header(number)?))
    }

    /// Block for a new header: the oldest one if it is no longer needed or the file is full, else one at the end.
    fn free_block(&self, now: u64, span: Span, limit: usize) -> u32 {
        let over = |number: &u32| {
            let header = self.header(*number);
            header.is_none_or(|header| header.first + RECORDS + span.slots <= now)
        };
        let oldest = self.order.front().copied();
        match oldest {
            Some(number) if over(&number) || self.blocks.len() >= limit => number,
            _ => self.blocks.len() as u32,
        }
    }

    /// Records that a block has a new header.
    fn take(&mut self, number: u32, header: Header) {
        if let Some(old) = self.header(number)
            && let Some(numbers) = self.series.get_mut(&old.name)
        {
            numbers.retain(|used| *used != number);
            if numbers.is_empty() {
                self.series.remove(&old.name);
            }
        }
        if number as usize == self.blocks.len() {
            self.blocks.push(None);
        } else {
            self.order.pop_front();
        }
        self.sequence = header.sequence;
        self.order.push_back(number);
        self.series.entry(header.name.clone()).or_default().push_back(number);
        self.blocks[number as usize] = Some(Arc::new(header));
    }
}
