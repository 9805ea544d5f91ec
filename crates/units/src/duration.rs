//! Durations as Go formats them, `1h30m`, optionally with days.

use std::fmt::Write;
use std::time::Duration;

use thiserror::Error;

/// Units that Go's `time.ParseDuration` accepts, in nanoseconds. Both code points of the micro sign count.
const GO_UNITS: [(&str, u64); 8] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ns", 1),
];

const DAY: (&str, u64) = ("d", 86_400_000_000_000);

/// Further units of flags and files.
const HUMAN_UNITS: [(&str, u64); 3] = [DAY, ("min", 60_000_000_000), ("sec", 1_000_000_000)];

/// Text that is not a duration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a duration: use a form such as 90s, 5m or 1h30m")]
pub struct DurationError(String);

/// Duration of a flag or file: `300ms`, `90s`, `1h30m`, `1.5h`, `2d`. A bare number is in seconds.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let error = || DurationError(crate::excerpt(text));
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| error());
    }
    let unit = |name: &str| find(&GO_UNITS, name).or_else(|| find(&HUMAN_UNITS, name));
    let nanoseconds = sum_of_parts(text, unit).ok_or_else(error)?;
    let seconds = u64::try_from(nanoseconds / 1_000_000_000).map_err(|_| error())?;
    Ok(Duration::new(seconds, (nanoseconds % 1_000_000_000) as u32))
}

/// Duration in the syntax and range of Go, as the Kubernetes API server accepts it. Negative durations are errors;
/// the only bare number is `0`.
pub fn parse_go_duration(text: &str) -> Result<Duration, DurationError> {
    let error = || DurationError(crate::excerpt(text));
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if unsigned == "0" {
        return Ok(Duration::ZERO);
    }
    let nanoseconds = sum_of_parts(unsigned, |name| find(&GO_UNITS, name)).ok_or_else(error)?;
    // Go counts nanoseconds in an int64.
    let nanoseconds = i64::try_from(nanoseconds).map_err(|_| error())?;
    Ok(Duration::from_nanos(nanoseconds.unsigned_abs()))
}

/// Duration with days, to the millisecond: `2d4h`, `1m1s1ms`, `0s`.
pub fn format_duration(duration: Duration) -> String {
    format_in(duration, [DAY, GO_UNITS[0], GO_UNITS[1], GO_UNITS[2], GO_UNITS[3]])
}

/// Duration that Go parses, to the millisecond: `48h`, `1h30m`, `0s`.
pub fn format_go_duration(duration: Duration) -> String {
    format_in(duration, [GO_UNITS[0], GO_UNITS[1], GO_UNITS[2], GO_UNITS[3]])
}

/// Duration in its two largest units, rounded up to a second: `45 s`, `12 min`, `2 h 5 min`, `3 d 4 h`.
pub fn format_duration_rounded(duration: Duration) -> String {
    const UNITS: [(&str, u128); 4] = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];
    let seconds = duration.as_nanos().div_ceil(1_000_000_000);
    let largest = UNITS.iter().position(|(_, size)| seconds >= *size).unwrap_or(UNITS.len() - 1);
    let (unit, size) = UNITS[largest];
    let rest = UNITS.get(largest + 1).map(|(unit, part)| (seconds % size / part, unit));
    match rest {
        Some((part, small)) if part > 0 => format!("{} {unit} {part} {small}", seconds / size),
        _ => format!("{} {unit}", seconds / size),
    }
}

fn find(units: &[(&str, u64)], name: &str) -> Option<u64> {
    units.iter().find(|(unit, _)| *unit == name).map(|(_, nanoseconds)| *nanoseconds)
}

/// Nanoseconds of one or more numbers, each with a unit. Fractions of a nanosecond are dropped.
fn sum_of_parts(text: &str, unit: impl Fn(&str) -> Option<u64>) -> Option<u128> {
    let mut total: u128 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c| !is_number(c))?);
        let (name, tail) = tail.split_at(tail.find(is_number).unwrap_or(tail.len()));
        total = total.checked_add(nanoseconds(number, unit(name)?)?)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

fn is_number(c: char) -> bool {
    c == '.' || c.is_ascii_digit()
}

fn nanoseconds(number: &str, unit: u64) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    let mut worth = u128::from(unit);
    let mut total = u128::from(whole) * worth;
    for digit in fraction.bytes() {
        worth /= 10;
        total += u128::from(digit - b'0') * worth;
    }
    Some(total)
}

fn format_in<const N: usize>(duration: Duration, units: [(&str, u64); N]) -> String {
    let mut rest = duration.as_nanos();
    let mut text = String::new();
    for (name, nanoseconds) in units {
        let count = rest / u128::from(nanoseconds);
        if count > 0 {
            let _ = write!(text, "{count}{name}");
            rest %= u128::from(nanoseconds);
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn flags_take_units_days_or_bare_seconds() {
        let ninety = Duration::from_secs(90);
        for text in ["90", "90s", "1m30s", "1min30sec", "0.025h", "90000ms"] {
            assert_eq!(parse_duration(text), Ok(ninety), "{text}");
        }
        assert_eq!(parse_duration("2d"), Ok(Duration::from_hours(48)));
        for wrong in ["", "h", "5x", "-1", "-1h", "1h-5m", "1e400", "nan", "1h 30m", "4h3", "1..5h"]
        {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rounded_duration_has_two_units() {
        for (millis, expected) in [
            (0, "0 s"),
            (44_001, "45 s"),
            (720_000, "12 min"),
            (7_500_000, "2 h 5 min"),
            (274_000_000, "3 d 4 h"),
        ] {
            assert_eq!(format_duration_rounded(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn go_durations_follow_go() {
        let table: [(&str, Option<u64>); 22] = [
            ("4h", Some(14_400_000_000)),
            ("90m", Some(5_400_000_000)),
            ("1h30m", Some(5_400_000_000)),
            ("1.5h", Some(5_400_000_000)),
            (".5s", Some(500_000)),
            ("1.s", Some(1_000_000)),
            ("+1s", Some(1_000_000)),
            ("1m1ms1us", Some(60_001_001)),
            ("3µs", Some(3)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("", None),
            ("5", None),
            ("-1h", None),
            ("h", None),
            ("1d", None),
            ("1h 30m", None),
            ("1.2.3s", None),
            ("1..5h", None),
            ("1e999h", None),
            ("99999999999999999999h", None),
            ("2562048h", None),
        ];
        for (text, microseconds) in table {
            let expected = microseconds.map(Duration::from_micros);
            assert_eq!(parse_go_duration(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn durations_are_formatted_in_falling_units() {
        let both = |seconds| {
            let duration = Duration::from_secs(seconds);
            (format_duration(duration), format_go_duration(duration))
        };
        assert_eq!(both(5400), ("1h30m".into(), "1h30m".into()));
        assert_eq!(both(180_000), ("2d2h".into(), "50h".into()));
        assert_eq!(both(0), ("0s".into(), "0s".into()));
        assert_eq!(format_duration(Duration::from_millis(61_001)), "1m1s1ms");
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "([0-9.]{0,22}[a-zµ]{0,3}){0,4}\\PC{0,3}") {
            let _ = (parse_duration(&text), parse_go_duration(&text));
        }

        #[test]
        fn formatted_durations_parse_to_themselves(milliseconds in 0_u64..1 << 43) {
            let duration = Duration::from_millis(milliseconds);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
            prop_assert_eq!(parse_go_duration(&format_go_duration(duration)), Ok(duration));
        }
    }
}
