//! Ranks: the number of demand thresholds that an amount reaches.

/// Width of a lookup step: 1,024 thousandths of a core.
const STEP_BITS: u32 = 10;

/// Sorted CPU thresholds with a coarse index; every score needs a rank.
#[derive(Debug, Clone)]
pub(super) struct CpuRanks {
    thresholds: Vec<i64>,
    /// Rank at the start of each step; the last entry covers all larger amounts.
    coarse: Vec<u16>,
}

impl CpuRanks {
    /// Thresholds need not be sorted or distinct. At most `u16::MAX` distinct ones are kept.
    pub(super) fn new(mut thresholds: Vec<i64>) -> Self {
        thresholds.sort_unstable();
        thresholds.dedup();
        thresholds.truncate(usize::from(u16::MAX));
        let top = thresholds.last().copied().unwrap_or(0).clamp(0, 1 << 26);
        let coarse = (0..=(top >> STEP_BITS))
            .map(|step| thresholds.partition_point(|&t| t < step << STEP_BITS) as u16)
            .collect();
        Self { thresholds, coarse }
    }

    /// Number of distinct thresholds; ranks run from zero to this number.
    pub(super) fn len(&self) -> usize {
        self.thresholds.len()
    }

    pub(super) fn rank(&self, cpu: i64) -> usize {
        if cpu < 0 {
            return self.thresholds.partition_point(|&t| t <= cpu);
        }
        let step = ((cpu >> STEP_BITS) as usize).min(self.coarse.len() - 1);
        let mut rank = usize::from(self.coarse[step]);
        while self.thresholds.get(rank).is_some_and(|&t| t <= cpu) {
            rank += 1;
        }
        rank
    }
}

/// Ranks of device amounts `0..=1000`, in a lookup table.
#[derive(Debug, Clone)]
pub(super) struct MilliRanks {
    thresholds: Vec<i32>,
    of: Vec<u16>,
}

impl MilliRanks {
    /// Thresholds need not be sorted or distinct.
    pub(super) fn new(mut thresholds: Vec<i32>) -> Self {
        thresholds.sort_unstable();
        thresholds.dedup();
        let of = (0..=super::DEVICE)
            .map(|left| thresholds.partition_point(|&t| t <= left) as u16)
            .collect();
        Self { thresholds, of }
    }

    pub(super) fn len(&self) -> usize {
        self.thresholds.len()
    }

    /// Overcommitted devices have rank zero.
    pub(super) fn rank(&self, left: i32) -> usize {
        usize::from(self.of[left.clamp(0, super::DEVICE) as usize])
    }
}
