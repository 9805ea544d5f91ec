//! Amounts in text form: `1h30m`, `8Gi`, `500m`, `0.5`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use agentaflow_engine::{MiB, MicroDollars, MilliCpu, Span};
use agentaflow_units::{format_duration, parse_duration, parse_mib, quantity_of_mib};

/// An amount with a text form and a plain number in its base unit.
trait Amount: Sized {
    /// Accepted forms, for errors.
    const EXPECTED: &'static str;
    fn from_number(number: f64) -> Option<Self>;
    fn from_text(text: &str) -> Option<Self>;
}

/// A duration: `90s`, `15m`, `4h`, `1h30m`, `2d`; a plain number is seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Length(pub Span);

/// Memory: `512Mi`, `8Gi`, `1.5Ti`, optionally with a `B`; a plain number is MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub MiB);

/// CPU: cores, or thousandths as `500m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cores(pub MilliCpu);

/// GPU thousandths: `2` is two whole GPUs, `0.25` a quarter of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuCount(pub u64);

/// Dollars, stored in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dollars(pub MicroDollars);

/// A duration or a range. Implemented by hand, because errors of an untagged enum do not name the cause.
impl<'de> Deserialize<'de> for super::DurationSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DurationReader)
    }
}

struct DurationReader;

impl<'de> Visitor<'de> for DurationReader {
    type Value = super::DurationSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or a range such as `{{ from: 10m, to: 8h }}`", Length::EXPECTED)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let range = Deserialize::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(super::DurationSpec::Range(range))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        Reader::<Length>::new().number(number as f64).map(super::DurationSpec::Fixed)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        Reader::<Length>::new().number(number as f64).map(super::DurationSpec::Fixed)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        Reader::<Length>::new().number(number).map(super::DurationSpec::Fixed)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        let length = Length::from_text(text);
        length
            .map(super::DurationSpec::Fixed)
            .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

/// Limit of every amount; larger values are typos, and sums do not overflow.
const MAX: f64 = (1_u64 << 46) as f64;

impl Amount for Length {
    const EXPECTED: &'static str = "a length of time such as `90s`, `15m`, `4h`, `1h30m` or `2d`";

    fn from_number(seconds: f64) -> Option<Self> {
        scaled(seconds, 1000.0).map(|millis| Self(Span(millis)))
    }

    fn from_text(text: &str) -> Option<Self> {
        // A plain number has no unit here, and spaces may separate the parts.
        let parts = text.split_whitespace().map(|part| {
            let has_unit = part.ends_with(|c: char| c.is_ascii_alphabetic());
            parse_duration(part).ok().filter(|_| has_unit)
        });
        let parts: Vec<_> = parts.collect::<Option<_>>()?;
        let seconds: f64 = parts.iter().map(Duration::as_secs_f64).sum();
        Self::from_number(seconds).filter(|_| !parts.is_empty())
    }
}

impl Amount for Size {
    const EXPECTED: &'static str = "a size such as `512Mi`, `8Gi` or `1Ti`, or a number of MiB";

    fn from_number(mib: f64) -> Option<Self> {
        scaled(mib, 1.0).map(|mib| Self(MiB(mib)))
    }

    fn from_text(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_binary = text.strip_suffix('B').unwrap_or(text).ends_with('i');
        let mib = parse_mib(text).ok().filter(|mib| is_binary && *mib as f64 <= MAX);
        mib.map(|mib| Self(MiB(mib)))
    }
}

impl Amount for Cores {
    const EXPECTED: &'static str =
        "a number of cores such as `8` or `0.5`, or thousandths such as `500m`";

    fn from_number(cores: f64) -> Option<Self> {
        scaled(cores, 1000.0).map(|milli| Self(MilliCpu(milli)))
    }

    fn from_text(text: &str) -> Option<Self> {
        let number = text.trim().strip_suffix('m')?;
        scaled(number.parse().ok()?, 1.0).map(|milli| Self(MilliCpu(milli)))
    }
}

impl Amount for GpuCount {
    const EXPECTED: &'static str = "a number of GPUs such as `2`, or a part of one such as `0.25`, with at most three decimals";

    fn from_number(gpus: f64) -> Option<Self> {
        // A fourth decimal would be lost.
        let exact = (gpus * 1000.0 - (gpus * 1000.0).round()).abs() < 1e-6;
        scaled(gpus, 1000.0).filter(|_| exact).map(Self)
    }

    fn from_text(_: &str) -> Option<Self> {
        None
    }
}

impl Amount for Dollars {
    const EXPECTED: &'static str = "an amount of dollars such as `2.5`";

    fn from_number(dollars: f64) -> Option<Self> {
        scaled(dollars, 1e6).map(|micro| Self(MicroDollars(micro)))
    }

    fn from_text(text: &str) -> Option<Self> {
        Self::from_number(text.trim().strip_prefix('$')?.parse().ok()?)
    }
}

/// A number in the base unit; rejects negative, infinite and too large values.
fn scaled(number: f64, unit: f64) -> Option<u64> {
    let value = (number * unit).round();
    (number >= 0.0 && value <= MAX).then_some(value as u64)
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_duration(Duration::from_millis(self.0.0)))
    }
}

impl FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_text(text).ok_or_else(|| format!("`{text}` is not {}", Self::EXPECTED))
    }
}

impl Serialize for Length {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&quantity_of_mib(self.0.0))
    }
}

/// Whole numbers serialize without decimals: `2`, not `2.0`.
fn serialize_scaled<S: Serializer>(
    value: u64,
    unit: u64,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if value.is_multiple_of(unit) {
        serializer.serialize_u64(value / unit)
    } else {
        serializer.serialize_f64(value as f64 / unit as f64)
    }
}

macro_rules! number {
    ($name:ident, $value:expr, $unit:literal) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let value: fn(&Self) -> u64 = $value;
                serialize_scaled(value(self), $unit, serializer)
            }
        }
    };
}

number!(Cores, |cores| cores.0.0, 1000);
number!(GpuCount, |gpus| gpus.0, 1000);
number!(Dollars, |dollars| dollars.0.0, 1_000_000);

macro_rules! readable {
    ($($name:ident)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Reader::new())
            }
        }
    )*};
}

readable!(Length Size Cores GpuCount Dollars);

struct Reader<T>(std::marker::PhantomData<T>);

impl<T: Amount> Reader<T> {
    fn new() -> Self {
        Self(std::marker::PhantomData)
    }

    fn number<E: de::Error>(&self, number: f64) -> Result<T, E> {
        T::from_number(number).ok_or_else(|| E::invalid_value(de::Unexpected::Float(number), self))
    }
}

impl<T: Amount> Visitor<'_> for Reader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.number(number as f64)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.number(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.number(number)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::from_text(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_and_display() {
        let table = [
            ("90s", 90),
            ("15m", 900),
            ("4h", 14_400),
            ("1h30m", 5400),
            ("2d", 172_800),
            ("1.5h", 5400),
        ];
        for (text, seconds) in table {
            assert_eq!(text.parse(), Ok(Length(Span::seconds(seconds))), "{text}");
        }
        assert_eq!(Length(Span::seconds(5400)).to_string(), "1h30m");
        assert_eq!(Length(Span(61_001)).to_string(), "1m1s1ms");
        assert_eq!(Length(Span(0)).to_string(), "0s");
        for text in ["", "4", "h", "4 hours", "-4h", "4h3", "1..5h"] {
            assert!(text.parse::<Length>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_cores_and_gpus_parse_from_text_or_numbers() {
        let size = |text: &str| serde_json::from_str::<Size>(text).map(|size| size.0.0).ok();
        assert_eq!(size("\"8Gi\""), Some(8192));
        assert_eq!(size("\"1.5TiB\""), Some(1_572_864));
        assert_eq!(size("512"), Some(512));
        assert_eq!((size("\"8GB\""), size("-1"), size("1e99")), (None, None, None));
        let cores = |text: &str| serde_json::from_str::<Cores>(text).map(|cores| cores.0.0).ok();
        assert_eq!(
            (cores("8"), cores("0.5"), cores("\"250m\"")),
            (Some(8000), Some(500), Some(250))
        );
        let gpus = |text: &str| serde_json::from_str::<GpuCount>(text).map(|gpus| gpus.0).ok();
        assert_eq!((gpus("2"), gpus("0.25"), gpus("-2")), (Some(2000), Some(250), None));
        assert_eq!((gpus("0.0004"), gpus("0.3333"), gpus("0.333")), (None, None, Some(333)));
        assert_eq!((gpus("0"), gpus("64.001")), (Some(0), Some(64_001)));
    }
}
