//! Values of flags and recipe files: pairs, mounts, durations, schedules.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use agentaflow_units::parse_duration;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::names::{is_label_key, is_label_value, short};
use super::{BuildError, is_name, refuse};

/// `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Before the first `=`.
    pub key: String,
    pub value: String,
}

impl Pair {
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.into() }
    }
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self::new(key, value)),
            _ => Err("use KEY=VALUE".to_owned()),
        }
    }
}

impl Serialize for Pair {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}={}", self.key, self.value))
    }
}

/// Mounted claim: `CLAIM:/path`, or `VOLUME=CLAIM:/path` to name the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub volume: String,
    pub claim: String,
    pub path: String,
}

impl FromStr for Mount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "use CLAIM:/path or VOLUME=CLAIM:/path".to_owned();
        let (claim, path) = text.split_once(':').ok_or_else(wrong)?;
        let (volume, claim) = claim.split_once('=').unwrap_or((claim, claim));
        if !is_name(volume) || !is_name(claim) || !is_mount_path(path) {
            return Err(wrong());
        }
        Ok(Self { volume: volume.into(), claim: claim.into(), path: path.into() })
    }
}

impl Serialize for Mount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}={}:{}", self.volume, self.claim, self.path))
    }
}

impl<'de> Deserialize<'de> for Mount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Decodes pairs from a map or a list of `KEY=VALUE`; values may be numbers and booleans.
pub(super) fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Pair>, D::Error> {
    struct Pairs;
    impl<'de> Visitor<'de> for Pairs {
        type Value = Vec<Pair>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map, or a list of KEY=VALUE")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some((Text(key), Text(value))) = map.next_entry()? {
                all.push(Pair { key, value });
            }
            Ok(all)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(pair) = list.next_element::<serde_json::Value>()? {
                let text = pair.as_str().unwrap_or_default();
                all.push(text.parse().map_err(de::Error::custom)?);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(Pairs)
}

/// Decodes a text that YAML parses as a number if it is not quoted.
pub(super) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<Text>::deserialize(deserializer)?.map(|text| text.0))
}

struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Ok(Self(text)),
            serde_json::Value::Number(number) => Ok(Self(number.to_string())),
            serde_json::Value::Bool(value) => Ok(Self(value.to_string())),
            _ => Err(de::Error::custom("expected a text or a number")),
        }
    }
}

/// Validates labels.
pub(super) fn labels(
    flag: &'static str,
    given: &[Pair],
) -> Result<BTreeMap<String, String>, BuildError> {
    for Pair { key, value } in given {
        if !is_label_key(key) || !is_label_value(value) {
            let pair = short(&format!("{key}={value}"));
            return refuse(flag, format!("`{pair}` is not a label: use a form such as app=train"));
        }
    }
    Ok(given.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect())
}

/// Parses seconds: `90`, `90s`, `10m`, `24h`, `2d`, `1h30m`.
pub(super) fn seconds(flag: &'static str, text: &str) -> Result<u32, BuildError> {
    let duration = parse_duration(text).ok().filter(|duration| duration.subsec_nanos() == 0);
    let seconds = duration.and_then(|duration| i32::try_from(duration.as_secs()).ok());
    seconds.filter(|seconds| *seconds > 0).map_or_else(
        || {
            refuse(
                flag,
                format!("`{}` is not a duration: use a form such as 90s, 10m or 24h", short(text)),
            )
        },
        |seconds| Ok(seconds.unsigned_abs()),
    )
}

/// Validates a schedule with five cron fields.
pub(super) fn schedule(flag: &'static str, text: &str) -> Result<String, BuildError> {
    match schedule_problem(text) {
        Some(why) => refuse(flag, why),
        None => Ok(text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")),
    }
}

/// Problem of a schedule that does not have five valid fields.
pub(crate) fn schedule_problem(text: &str) -> Option<String> {
    const FIELDS: [(u32, u32, &[&str]); 5] =
        [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, &MONTHS), (0, 6, &DAYS)];
    let fields: Vec<_> = text.split_ascii_whitespace().collect();
    let fits = fields.len() == FIELDS.len()
        && fields.iter().zip(FIELDS).all(|(field, (low, high, names))| {
            field.split(',').all(|part| is_cron_part(part, low, high, names))
        });
    let hint = "use minute, hour, day, month and weekday, such as `0 9 * * 1-5`";
    (!fits).then(|| format!("`{}` is not a schedule: {hint}", short(text)))
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

fn is_cron_part(part: &str, low: u32, high: u32, names: &[&str]) -> bool {
    let number = |text: &str| {
        let index = names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let number = index.map(|at| at as u32 + low).or_else(|| digits(text));
        number.filter(|number| (low..=high).contains(number))
    };
    let (span, every) = part.split_once('/').map_or((part, "1"), |(span, every)| (span, every));
    let is_span = span == "*"
        || match span.split_once('-') {
            Some((from, to)) => number(from).zip(number(to)).is_some_and(|(from, to)| from <= to),
            None => number(span).is_some(),
        };
    // A step beyond the range is unusual but valid.
    let is_step = every.len() <= 9 && every.bytes().all(|byte| byte.is_ascii_digit());
    is_span && is_step && every.parse().is_ok_and(|every: u32| every > 0)
}

/// A number of one or two digits, without a sign.
fn digits(text: &str) -> Option<u32> {
    let is_number = text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

pub(super) fn is_mount_path(path: &str) -> bool {
    path.len() > 1
        && path.len() < 1024
        && path.starts_with('/')
        && !path.contains(':')
        && !path.split('/').any(|part| part == "..")
        && !path.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_checked_like_the_api_server() {
        for text in ["0 9 * * 1-5", "*/5 * * * *", "0,30 8-18/2 1 jan-mar MON", "59 23 31 12 6"] {
            assert_eq!(schedule("up", text).unwrap(), text);
        }
        for text in [
            "",
            "* * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "5-1 * * * *",
            "*/0 * * * *",
            "* * * * 7",
            "@daily",
            "a * * * *",
            "+1 * * * *",
            "1- * * * *",
        ] {
            assert!(schedule("up", text).unwrap_err().to_string().starts_with("--up: "), "{text}");
        }
    }

    #[test]
    fn durations_have_units_or_are_seconds() {
        for (text, expected) in [
            ("90", 90),
            ("90s", 90),
            ("10m", 600),
            ("24h", 86_400),
            ("1h30m", 5400),
            ("2d", 172_800),
        ] {
            assert_eq!(seconds("timeout", text).unwrap(), expected);
        }
        for text in ["", "0", "-1", "1x", "h", "1h30", "99999999999", "60000d", "1ä"] {
            assert!(seconds("timeout", text).is_err(), "{text}");
        }
    }

    #[test]
    fn mounts_and_pairs_are_read() {
        let mount: Mount = "models=model-cache:/root/.cache".parse().unwrap();
        assert_eq!(
            (&*mount.volume, &*mount.claim, &*mount.path),
            ("models", "model-cache", "/root/.cache")
        );
        assert_eq!("data:/data".parse::<Mount>().unwrap().volume, "data");
        for text in ["", "a", "a:b", "A:/b", "a:/", "a:/../b", "=a:/b"] {
            assert!(text.parse::<Mount>().is_err(), "{text}");
        }
        assert_eq!("A=b=c".parse(), Ok(Pair::new("A", "b=c")));
        assert!("=b".parse::<Pair>().is_err());
    }
}
