//! A block: a header that names its series, and one record per slot of time.

use agentaflow_units::hash64;

use crate::value::{pack, unpack};

/// Readings of a series at one time.
pub const COLUMNS: usize = 5;
pub type Values = [Option<f64>; COLUMNS];

/// A page of memory, so that a block is written whole unless the machine fails.
pub(crate) const BLOCK_BYTES: usize = 4096;
const HEADER_BYTES: usize = 128;
const RECORD_BYTES: usize = 2 * COLUMNS + 2;
/// Records of a block.
pub(crate) const RECORDS: u64 = ((BLOCK_BYTES - HEADER_BYTES) / RECORD_BYTES) as u64;

/// Changes with the layout, and with the meaning of the columns.
const MAGIC: [u8; 8] = *b"AFHIST1\n";
/// Bytes of a name.
const NAME_BYTES: usize = 88;

/// Header of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Increases with every block of the file. Checksums of records include it, so that records of an earlier use of the
    /// block are not valid.
    pub(crate) sequence: u64,
    /// Slot of the first record: seconds since 1970, divided by the step.
    pub(crate) first: u64,
    /// Seconds between two records.
    pub(crate) step: u32,
    pub(crate) name: String,
}

impl Header {
    /// An empty block.
    pub(crate) fn block(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        let name = self.name.as_bytes();
        block[..8].copy_from_slice(&MAGIC);
        block[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        block[16..24].copy_from_slice(&self.first.to_le_bytes());
        block[24..28].copy_from_slice(&self.step.to_le_bytes());
        block[28..30].copy_from_slice(&(name.len() as u16).to_le_bytes());
        block[32..32 + name.len()].copy_from_slice(name);
        let sum = hash64(&block[..HEADER_BYTES - 8]);
        block[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// None for a block that this version did not write, or not completely.
    pub(crate) fn read(block: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(block.get(at..at + 8)?.try_into().ok()?));
        let sum = number(HEADER_BYTES - 8)?;
        if block.get(..8)? != MAGIC || hash64(&block[..HEADER_BYTES - 8]) != sum {
            return None;
        }
        let length = u16::from_le_bytes(block[28..30].try_into().ok()?);
        let name = block.get(32..32 + usize::from(length).min(NAME_BYTES))?;
        Some(Self {
            sequence: number(8)?,
            first: number(16)?,
            step: u32::from_le_bytes(block[24..28].try_into().ok()?),
            name: String::from_utf8(name.to_vec()).ok()?,
        })
    }

    /// Position of a slot in this block.
    pub(crate) fn position(&self, slot: u64) -> Option<u64> {
        slot.checked_sub(self.first).filter(|position| *position < RECORDS)
    }
}

/// Offset of a record in its block.
pub(crate) fn offset(position: u64) -> usize {
    HEADER_BYTES + position as usize * RECORD_BYTES
}

pub(crate) fn record(sequence: u64, position: u64, values: &Values) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    for (column, value) in values.iter().enumerate() {
        bytes[2 * column..2 * column + 2].copy_from_slice(&pack(*value).to_le_bytes());
    }
    let sum = checksum(sequence, position, &bytes[..2 * COLUMNS]);
    bytes[2 * COLUMNS..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Values of a record; none if it was never written, or not completely.
pub(crate) fn values(block: &[u8], sequence: u64, position: u64) -> Option<Values> {
    let bytes = block.get(offset(position)..offset(position) + RECORD_BYTES)?;
    let (columns, sum) = bytes.split_at(2 * COLUMNS);
    if checksum(sequence, position, columns).to_le_bytes() != sum {
        return None;
    }
    let mut values = [None; COLUMNS];
    for (value, code) in values.iter_mut().zip(columns.chunks_exact(2)) {
        *value = unpack(u16::from_le_bytes([code[0], code[1]]));
    }
    Some(values)
}

/// Never 0, because unwritten records are zeros.
fn checksum(sequence: u64, position: u64, columns: &[u8]) -> u16 {
    let mut bytes = [0; 16 + 2 * COLUMNS];
    bytes[..8].copy_from_slice(&sequence.to_le_bytes());
    bytes[8..16].copy_from_slice(&position.to_le_bytes());
    bytes[16..].copy_from_slice(columns);
    let hash = hash64(&bytes);
    let folded = hash ^ (hash >> 32);
    ((folded ^ (folded >> 16)) as u16).max(1)
}

/// Name as a header holds it: a long one ends with its hash.
pub(crate) fn short_name(name: &str) -> String {
    if name.len() <= NAME_BYTES {
        return name.to_owned();
    }
    let kept = &name[..name.floor_char_boundary(NAME_BYTES - 17)];
    format!("{kept}#{:016x}", hash64(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { sequence: 7, first: 1000, step: 15, name: "gpu/node/0".into() }
    }

    #[test]
    fn a_block_holds_its_header_and_records() {
        let mut block = header().block();
        let written = [Some(1.0), None, Some(300.0), Some(0.5), Some(0.0)];
        block[offset(3)..offset(4)].copy_from_slice(&record(7, 3, &written));
        assert_eq!(Header::read(&block), Some(header()));
        assert_eq!(values(&block, 7, 3), Some(written));
        assert_eq!(values(&block, 7, 2), None, "never written");
        assert_eq!(values(&block, 8, 3), None, "an earlier use of the block");
        assert!(offset(RECORDS) <= BLOCK_BYTES);
    }

    #[test]
    fn a_changed_byte_makes_a_header_invalid() {
        let block = header().block();
        for at in 0..HEADER_BYTES {
            let mut torn = block.clone();
            torn[at] ^= 0x10;
            assert_eq!(Header::read(&torn), None, "byte {at}");
        }
        assert_eq!(Header::read(&[]), None);
    }

    #[test]
    fn long_names_stay_different() {
        let (one, other) = ("ä".repeat(80), format!("{}b", "ä".repeat(80)));
        assert!(short_name(&one).len() <= NAME_BYTES);
        assert_ne!(short_name(&one), short_name(&other));
        assert_eq!(short_name("gpu/1"), "gpu/1");
    }
}
