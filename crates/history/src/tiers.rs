//! Two rings of the same series: readings of a day, and means of 30 days.
//!
//! Means come from the readings on disk, so a restart continues where the last process ended.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::block::{COLUMNS, Values};
use crate::history::{Curve, Range, Warning};
use crate::ring::{Ring, Span};

pub(crate) const FINE: Span = Span { step: 15, slots: 24 * 240 };
pub(crate) const COARSE: Span = Span { step: 300, slots: 30 * 288 };
/// Fine slots of a coarse one.
const RATIO: u64 = COARSE.step as u64 / FINE.step as u64;
/// A shorter series has no means: they would take a whole block.
const LEAST_SLOTS: u64 = 240;
/// A series without a record for this number of coarse slots has ended.
const QUIET: u64 = 2;

#[derive(Debug)]
pub(crate) struct Tiers {
    fine: Ring,
    coarse: Ring,
    open: Mutex<FxHashMap<String, OpenSeries>>,
    /// Coarse slot of the last [`Tiers::write_means`].
    written: AtomicU64,
}

/// A series whose next means are not written yet.
#[derive(Clone, Copy, Debug)]
struct OpenSeries {
    /// Next coarse slot.
    next: u64,
    /// Last fine slot.
    last: u64,
}

impl Tiers {
    /// Opens two files; `bytes` is the maximum of both together.
    pub(crate) fn open(
        dir: &Path,
        name: &str,
        bytes: u64,
        warnings: &mut Vec<Warning>,
    ) -> io::Result<Self> {
        let mut ring = |span, label, bytes| {
            let path = dir.join(format!("{name}-{label}.ring"));
            let (ring, found) = Ring::open(&path, span, bytes)?;
            if found.blocks > 0 && found.unusable == found.blocks {
                warnings.push(Warning::Format { path });
            } else if found.unusable > 0 {
                let (blocks, of) = (found.unusable, found.blocks);
                warnings.push(Warning::Damaged { path, blocks, of });
            }
            io::Result::Ok(ring)
        };
        // In proportion to the blocks of a series that is always recorded.
        let fine_bytes = bytes / (FINE.blocks() + COARSE.blocks()) * FINE.blocks();
        let fine = ring(FINE, "15s", fine_bytes)?;
        let coarse = ring(COARSE, "5min", bytes - fine_bytes)?;
        let tiers = Self { fine, coarse, open: Mutex::default(), written: AtomicU64::new(0) };
        for name in tiers.fine.names() {
            let first = tiers.fine.oldest(&name).unwrap_or(0);
            let last = tiers.fine.newest(&name)?.unwrap_or(first);
            let next = tiers.coarse.newest(&name)?.map_or(first / RATIO, |mean| mean + 1);
            tiers.open_series().insert(name, OpenSeries { next, last });
        }
        Ok(tiers)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.fine.bytes() + self.coarse.bytes()
    }

    pub(crate) fn record(&self, name: &str, at: u64, values: &Values) -> io::Result<()> {
        let slot = FINE.slot(at);
        let mut open = self.open_series();
        let series = OpenSeries { next: slot / RATIO, last: slot };
        open.entry(name.to_owned()).or_insert(series).last = slot;
        drop(open);
        self.fine.write(name, slot, values)
    }

    pub(crate) fn write_means(&self, now: u64) -> io::Result<()> {
        let end = COARSE.slot(now);
        if self.written.swap(end, Ordering::Relaxed) == end {
            return Ok(());
        }
        let open: Vec<_> =
            self.open_series().iter().map(|(name, series)| (name.clone(), *series)).collect();
        for (name, series) in open {
            let is_long =
                self.fine.oldest(&name).is_some_and(|first| series.last >= first + LEAST_SLOTS);
            if is_long {
                self.write_means_of(&name, series.next, end)?;
            }
            let mut open = self.open_series();
            if series.last / RATIO + QUIET < end {
                open.remove(&name);
            } else if let Some(series) = open.get_mut(&name).filter(|_| is_long) {
                series.next = end;
            }
        }
        Ok(())
    }

    /// Writes the means from `next` to before `end`.
    fn write_means_of(&self, name: &str, next: u64, end: u64) -> io::Result<()> {
        let from = next.max(end.saturating_sub(FINE.slots / RATIO)).min(end);
        let rows = self.fine.read(name, from * RATIO, end * RATIO)?;
        for (slot, rows) in (from..end).zip(rows.chunks(RATIO as usize)) {
            if let Some(mean) = mean(rows) {
                self.coarse.write(name, slot, &mean)?;
            }
        }
        Ok(())
    }

    pub(crate) fn read(&self, name: &str, range: Range) -> io::Result<Curve> {
        let from = range.from.max(range.now.saturating_sub(COARSE.seconds()));
        let to = range.to.clamp(from, range.now.max(from) + u64::from(COARSE.step));
        let in_fine = range.now.saturating_sub(from) <= FINE.seconds();
        let span = if in_fine { FINE } else { COARSE };
        let step = u64::from(span.step);
        let (first, end) = (span.slot(from), to.div_ceil(step));
        let every = (end - first).div_ceil(range.points.max(1)).max(1);
        // Rows of two calls have the same borders.
        let first = first / every * every;
        let rows = if in_fine {
            self.fine.read(name, first, end)?
        } else {
            self.read_means(name, first, end, range.now)?
        };
        let rows = rows.chunks(every as usize).map(|rows| mean(rows).unwrap_or_default());
        Ok(Curve { start: first * step, step: every * step, rows: rows.collect() })
    }

    /// Means from `first` to before `end`. Means that are not written yet come from the readings.
    fn read_means(
        &self,
        name: &str,
        first: u64,
        end: u64,
        now: u64,
    ) -> io::Result<Vec<Option<Values>>> {
        let mut means = self.coarse.read(name, first, end)?;
        let recent = COARSE.slot(now.saturating_sub(FINE.seconds())).clamp(first, end);
        let rows = self.fine.read(name, recent * RATIO, end * RATIO)?;
        let skipped = (recent - first) as usize;
        for (kept, rows) in means.iter_mut().skip(skipped).zip(rows.chunks(RATIO as usize)) {
            *kept = kept.or_else(|| mean(rows));
        }
        Ok(means)
    }

    fn open_series(&self) -> MutexGuard<'_, FxHashMap<String, OpenSeries>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Mean of each column over the rows that have it; none without a row.
fn mean(rows: &[Option<Values>]) -> Option<Values> {
    rows.iter().flatten().next()?;
    let mut means = [None; COLUMNS];
    for (column, mean) in means.iter_mut().enumerate() {
        let values = || rows.iter().flatten().filter_map(|row| row[column]);
        let count = values().count();
        *mean = (count > 0).then(|| values().sum::<f64>() / count as f64);
    }
    Some(means)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_counts_only_rows_with_a_reading() {
        let row = |value| Some([value, None, None, None, None]);
        assert_eq!(mean(&[row(Some(1.0)), None, row(None), row(Some(4.0))]).unwrap()[0], Some(2.5));
        assert_eq!(mean(&[row(None)]), Some([None; COLUMNS]));
        assert_eq!(mean(&[None, None]), None);
    }
}
