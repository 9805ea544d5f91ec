//! Driver errors (XID) for metrics.

use std::collections::BTreeMap;

use crate::types::Sample;
use crate::xid_action::XidAction;

/// Driver errors by GPU since the program started, errors of applications included.
#[derive(Clone, Debug, Default)]
pub struct XidCounts {
    gpus: BTreeMap<String, GpuXids>,
}

#[derive(Clone, Debug, Default)]
struct GpuXids {
    last: Option<u64>,
    /// None stands for all numbers beyond the catalogue, so that the number of entries is bounded.
    counts: BTreeMap<Option<u64>, u64>,
}

impl XidCounts {
    pub fn observe<'a>(&mut self, samples: impl IntoIterator<Item = &'a Sample>) {
        for sample in samples.into_iter().filter(|sample| !sample.xids.is_empty()) {
            let gpu = self.gpus.entry(sample.uuid.clone()).or_default();
            gpu.last = sample.xids.last().copied();
            for xid in &sample.xids {
                let number = Some(*xid).filter(|xid| *xid <= XidAction::LAST);
                *gpu.counts.entry(number).or_default() += 1;
            }
        }
    }

    pub fn last(&self, uuid: &str) -> Option<u64> {
        self.gpus.get(uuid)?.last
    }

    /// Number of errors by XID; numbers beyond the catalogue are `other`.
    pub fn counts(&self, uuid: &str) -> Vec<(String, u64)> {
        let counts = self.gpus.get(uuid).into_iter().flat_map(|gpu| &gpu.counts);
        let name =
            |xid: &Option<u64>| xid.map_or_else(|| "other".to_owned(), |xid| xid.to_string());
        counts.map(|(xid, count)| (name(xid), *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_number_and_unknown_numbers_together() {
        let mut counts = XidCounts::default();
        let sample =
            |xids: &[u64]| Sample { uuid: "a".into(), xids: xids.to_vec(), ..Sample::default() };
        counts.observe(&[sample(&[13, 94, 13])]);
        counts.observe(&[sample(&[])]);
        let beyond: Vec<u64> = (1_000..2_000).collect();
        counts.observe(&[sample(&beyond), sample(&[94])]);
        let found = counts.counts("a");
        let expected = [("other", 1_000), ("13", 2), ("94", 2)];
        assert_eq!(found, expected.map(|(name, count)| (name.to_owned(), count)));
        assert_eq!((counts.last("a"), counts.last("b")), (Some(94), None));
        assert!(counts.counts("b").is_empty());
    }
}
