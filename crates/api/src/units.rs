//! Amounts in JSON: cores, GPUs, dollars, times.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Milliseconds since 1970, written as RFC 3339 in UTC: `2026-11-15T06:43:29.120Z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub i64);

/// Thousandths of a CPU core, written as a number of cores: `4` or `0.5`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cores(pub u64);

/// Thousandths of a GPU, written as a number of GPUs: `2` or `0.25`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuAmount(pub u64);

/// Millionths of a dollar, written as a number of dollars: `2.5`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dollars(pub i64);

/// A password, token or secret variable: plain in JSON, hidden in debug output.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Stamp {
    /// Current wall-clock time.
    pub fn now() -> Self {
        Self(jiff::Timestamp::now().as_millisecond())
    }

    /// Day in UTC: `2026-11-15`.
    pub fn day(self) -> String {
        self.to_string()[..10].to_owned()
    }

    /// Month in UTC: `2026-11`.
    pub fn month(self) -> String {
        self.to_string()[..7].to_owned()
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        write!(f, "{at:.3}")
    }
}

impl Serialize for Stamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Stamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let at: jiff::Timestamp = text.parse().map_err(|_| {
            serde::de::Error::custom("not a time; write it like `2026-11-15T06:43:29Z`")
        })?;
        Ok(Self(at.as_millisecond()))
    }
}

/// Writes a scaled integer as a JSON number without a fraction where there is none.
fn write_scaled<S: Serializer>(value: i64, scale: i64, serializer: S) -> Result<S::Ok, S::Error> {
    if value % scale == 0 {
        serializer.serialize_i64(value / scale)
    } else {
        serializer.serialize_f64(value as f64 / scale as f64)
    }
}

/// Reads a JSON number into a scaled integer, rounded to the nearest.
fn read_scaled<'de, D: Deserializer<'de>>(
    deserializer: D,
    scale: f64,
    most: f64,
) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    let scaled = (value * scale).round();
    if !value.is_finite() || scaled.abs() > most {
        return Err(serde::de::Error::custom("the number is too large"));
    }
    Ok(scaled)
}

macro_rules! thousandths {
    ($type:ident, $plural:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let text = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
                f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                write_scaled(self.0 as i64, 1000, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let milli = read_scaled(deserializer, 1e3, 1e12)?;
                if milli < 0.0 {
                    let message = concat!("a number of ", $plural, " cannot be negative");
                    return Err(serde::de::Error::custom(message));
                }
                Ok(Self(milli as u64))
            }
        }
    };
}

thousandths!(Cores, "cores");
thousandths!(GpuAmount, "GPUs");

impl Serialize for Dollars {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write_scaled(self.0, 1_000_000, serializer)
    }
}

impl<'de> Deserialize<'de> for Dollars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(read_scaled(deserializer, 1e6, 1e18)? as i64))
    }
}

impl fmt::Display for Dollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let micros = self.0.unsigned_abs();
        let (whole, rest) = (micros / 1_000_000, micros % 1_000_000);
        if rest % 10_000 == 0 {
            write!(f, "{sign}${whole}.{:02}", rest / 10_000)
        } else {
            write!(f, "{sign}${whole}.{rest:06}")
        }
    }
}

macro_rules! schema {
    ($type:ident, $kind:expr, $format:expr, $about:literal) => {
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::new()
                    .schema_type(SchemaType::new($kind))
                    .format($format)
                    .description(Some($about))
                    .into()
            }
        }
        impl ToSchema for $type {}
    };
}

schema!(
    Stamp,
    Type::String,
    Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)),
    "RFC 3339 in UTC with `Z`"
);
schema!(
    Secret,
    Type::String,
    Some(SchemaFormat::KnownFormat(KnownFormat::Password)),
    "Never shown again"
);
schema!(Cores, Type::Number, None, "CPU cores, to a thousandth");
schema!(GpuAmount, Type::Number, None, "GPUs, to a thousandth");
schema!(Dollars, Type::Number, None, "US dollars, to a millionth");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_amounts_are_written_without_a_fraction() {
        assert_eq!(serde_json::to_string(&Cores(4000)).unwrap(), "4");
        assert_eq!(serde_json::to_string(&Cores(500)).unwrap(), "0.5");
        assert_eq!(serde_json::to_string(&GpuAmount(250)).unwrap(), "0.25");
        assert_eq!(serde_json::to_string(&Dollars(2_500_000)).unwrap(), "2.5");
    }

    #[test]
    fn times_are_written_in_utc_and_read_in_any_zone() {
        let at: Stamp = serde_json::from_str("\"2026-11-15T07:43:29.12+01:00\"").unwrap();
        assert_eq!(at.to_string(), "2026-11-15T06:43:29.120Z");
        assert_eq!(at.day(), "2026-11-15");
    }

    #[test]
    fn money_is_shown_to_the_cent_or_exactly() {
        assert_eq!(Dollars(1_230_000).to_string(), "$1.23");
        assert_eq!(Dollars(-15).to_string(), "-$0.000015");
    }
}
