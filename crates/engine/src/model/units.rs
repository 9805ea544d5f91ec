//! Amounts with their unit in the type: the compiler rejects the sum of MiB and GPU shares.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::model::error::InvalidInput;

/// Limit of every accepted amount. Sums of many such amounts do not overflow 64 bits.
pub(crate) const MAX_AMOUNT: u64 = 1 << 46;

/// Limit of the memory of one GPU, in MiB (2 TiB). Device arithmetic uses 32 bits, which must hold the
/// sum of all uses of a GPU.
pub(crate) const MAX_GPU_MEMORY: u64 = 1 << 21;

macro_rules! amount {
    ($(#[$doc:meta])* $name:ident, $suffix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{}", $suffix), self.0)
            }
        }
    };
}

amount!(
    /// Mebibytes of host memory, disk or GPU memory.
    MiB,
    " MiB"
);
amount!(
    /// Thousandths of a CPU core.
    MilliCpu,
    "m"
);
amount!(
    /// Millionths of a dollar.
    MicroDollars,
    " µ$"
);
amount!(
    /// A point in time in milliseconds; the driver defines the epoch.
    Time,
    " ms"
);
amount!(
    /// A duration in milliseconds.
    Span,
    " ms"
);

/// Rank among workloads: a higher one starts first and may preempt a lower one. The driver chooses the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Priority(pub i32);

impl Priority {
    pub const MIN: Self = Self(i32::MIN);
    pub const MAX: Self = Self(i32::MAX);

    /// Distance from [`Priority::MIN`], for sums without a sign.
    pub(crate) fn above_min(self) -> u64 {
        i64::from(self.0).abs_diff(i64::from(i32::MIN))
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Time {
    /// Saturating addition.
    #[must_use]
    pub fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Time passed since `earlier`; zero when `earlier` is later than `self`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    #[must_use]
    pub const fn minutes(minutes: u64) -> Self {
        Self::seconds(minutes.saturating_mul(60))
    }
}

/// A share of one GPU in thousandths: 1 to 1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct MilliGpu(u16);

impl MilliGpu {
    pub const WHOLE: Self = Self(1000);

    /// Rejects zero and more than 1000.
    pub fn new(milli: u32) -> Result<Self, InvalidInput> {
        if (1..=1000).contains(&milli) {
            Ok(Self(milli as u16))
        } else {
            Err(InvalidInput::Share(milli))
        }
    }

    pub fn get(self) -> u32 {
        u32::from(self.0)
    }
}

impl TryFrom<u32> for MilliGpu {
    type Error = InvalidInput;

    fn try_from(milli: u32) -> Result<Self, InvalidInput> {
        Self::new(milli)
    }
}

impl From<MilliGpu> for u32 {
    fn from(share: MilliGpu) -> Self {
        share.get()
    }
}

/// Live utilization in whole percent.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "f64", into = "u8")]
pub struct Percent(u8);

impl Percent {
    /// Rounds to whole percent; rejects NaN and values outside 0 to 100.
    pub fn new(value: f64) -> Result<Self, InvalidInput> {
        if (0.0..=100.0).contains(&value) {
            Ok(Self(libm::round(value) as u8))
        } else {
            Err(InvalidInput::Percent(value.to_string()))
        }
    }

    pub fn get(self) -> u8 {
        self.0
    }

    /// The reading in steps of five percent. Placement uses steps so that noise neither reorders GPUs
    /// nor invalidates cached scores.
    pub(crate) fn step(self) -> u8 {
        self.0 / 5
    }
}

impl TryFrom<f64> for Percent {
    type Error = InvalidInput;

    fn try_from(value: f64) -> Result<Self, InvalidInput> {
        Self::new(value)
    }
}

impl From<Percent> for u8 {
    fn from(percent: Percent) -> Self {
        percent.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_must_be_between_one_thousandth_and_one_gpu() {
        assert_eq!(MilliGpu::new(0), Err(InvalidInput::Share(0)));
        assert_eq!(MilliGpu::new(1001), Err(InvalidInput::Share(1001)));
        assert_eq!(MilliGpu::new(1000), Ok(MilliGpu::WHOLE));
    }

    #[test]
    fn a_utilization_must_be_a_percentage() {
        assert!(Percent::new(f64::NAN).is_err());
        assert!(Percent::new(-1.0).is_err());
        assert!(Percent::new(100.1).is_err());
        assert_eq!(Percent::new(99.6).map(Percent::get), Ok(100));
    }
}
