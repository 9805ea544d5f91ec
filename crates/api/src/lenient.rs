//! Lenient deserialisation for existing clients: `24576.0` for an integer, `null` for absent.

use serde::{Deserialize, Deserializer, de};
use std::fmt;

/// An optional whole number: an integer, a float without a fraction, or null.
pub fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    deserializer.deserialize_any(Whole)
}

/// Like [`whole`], for numbers that fit into 32 bits.
pub fn small<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let value = whole(deserializer)?;
    value
        .map(|value| u32::try_from(value).map_err(|_| de::Error::custom("the number is too large")))
        .transpose()
}

/// Like [`whole`], for ids.
pub fn id<'de, D: Deserializer<'de>, T: From<i64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let value = whole(deserializer)?;
    value
        .map(|value| i64::try_from(value).map_err(|_| de::Error::custom("the number is too large")))
        .transpose()
        .map(|id| id.map(T::from))
}

/// Like [`small`], for a field that is negative only in answers.
pub fn small_signed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i32>, D::Error> {
    let value = whole(deserializer)?;
    value
        .map(|value| i32::try_from(value).map_err(|_| de::Error::custom("the number is too large")))
        .transpose()
}

/// A value with a default, where null means the default too.
pub fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A command: a list of words, or one line for the shell.
pub fn command<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a command is a list of words, or one line for the shell")]
    enum Command {
        Words(Vec<String>),
        Line(String),
    }
    Ok(Option::<Command>::deserialize(deserializer)?.map(|command| match command {
        Command::Words(words) => words,
        Command::Line(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
    }))
}

struct Whole;

impl<'de> de::Visitor<'de> for Whole {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of 0 or more")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        // Beyond 2^53, a float cannot represent every integer.
        if value > 1 << 53 {
            return Err(E::custom("the number is too large"));
        }
        Ok(Some(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        let value = u64::try_from(value)
            .map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))?;
        self.visit_u64(value)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        if value.fract() != 0.0 || !(0.0..=9.007_199_254_740_992e15).contains(&value) {
            return Err(E::invalid_value(de::Unexpected::Float(value), &self));
        }
        Ok(Some(value as u64))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_none<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}
