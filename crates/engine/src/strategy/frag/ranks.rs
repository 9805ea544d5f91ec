//! Rank look-ups: "how many of the demand's thresholds does this amount reach?"

/// CPU amounts are looked up in steps of 1,024 thousandths before the last few are compared.
const STEP_BITS: u32 = 10;

/// Sorted CPU thresholds with a coarse index, because a rank is asked for in every score.
#[derive(Debug, Clone)]
pub(super) struct CpuRanks {
    thresholds: Vec<i64>,
    /// Rank at the start of each step; the last entry serves everything above.
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

    /// How many distinct thresholds there are; ranks run from zero to this.
    pub(super) fn len(&self) -> usize {
        self.thresholds.len()
    }

    /// How many thresholds `cpu` reaches.
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

/// Ranks of device amounts, `0..=1000`, by direct look-up.
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

    /// How many thresholds a device with `left` reaches; over-committed devices reach none.
    pub(super) fn rank(&self, left: i32) -> usize {
        usize::from(self.of[left.clamp(0, super::DEVICE) as usize])
    }
}
