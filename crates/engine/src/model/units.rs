//! Amounts with their unit in the type, so that a MiB is never added to a GPU share.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::model::error::InvalidInput;

/// The largest amount of anything that the engine accepts: sums of many of these stay far from
/// overflow, and no real machine comes near it.
pub(crate) const MAX_AMOUNT: u64 = 1 << 46;

/// The largest memory of one GPU, in MiB (two TiB): device arithmetic is done in 32 bits, in which
/// all uses of a GPU together must find room.
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
    /// Money: millionths of a dollar.
    MicroDollars,
    " µ$"
);
amount!(
    /// A point in time in milliseconds; what zero means is the body's business.
    Time,
    " ms"
);
amount!(
    /// A length of time in milliseconds.
    Span,
    " ms"
);

impl Time {
    /// This point plus a span; stays at the end of time instead of wrapping.
    #[must_use]
    pub fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// How long ago `earlier` was; zero when it lies ahead.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// A span of whole seconds.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// A span of whole minutes.
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
    /// A whole GPU.
    pub const WHOLE: Self = Self(1000);

    /// A share of `milli` thousandths; zero and more than one GPU are refused.
    pub fn new(milli: u32) -> Result<Self, InvalidInput> {
        if (1..=1000).contains(&milli) {
            Ok(Self(milli as u16))
        } else {
            Err(InvalidInput::Share(milli))
        }
    }

    /// The thousandths.
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

/// A live utilisation in whole percent.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "f64", into = "u8")]
pub struct Percent(u8);

impl Percent {
    /// Rounds a reading to whole percent; NaN and values outside 0 to 100 are refused.
    pub fn new(value: f64) -> Result<Self, InvalidInput> {
        if (0.0..=100.0).contains(&value) {
            Ok(Self(libm::round(value) as u8))
        } else {
            Err(InvalidInput::Percent(value.to_string()))
        }
    }

    /// The percentage, 0 to 100.
    pub fn get(self) -> u8 {
        self.0
    }

    /// Readings jitter; placement looks at steps of five percent, so that noise neither reorders
    /// GPUs nor invalidates what is cached about them.
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
    fn a_share_of_zero_or_of_more_than_one_gpu_is_refused() {
        assert_eq!(MilliGpu::new(0), Err(InvalidInput::Share(0)));
        assert_eq!(MilliGpu::new(1001), Err(InvalidInput::Share(1001)));
        assert_eq!(MilliGpu::new(1000), Ok(MilliGpu::WHOLE));
    }

    #[test]
    fn a_utilisation_that_is_not_a_number_is_refused() {
        assert!(Percent::new(f64::NAN).is_err());
        assert!(Percent::new(-1.0).is_err());
        assert!(Percent::new(100.1).is_err());
        assert_eq!(Percent::new(99.6).map(Percent::get), Ok(100));
    }
}
