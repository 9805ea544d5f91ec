//! Quantities given as flags: `8`, `4000m`, `16Gi`.

use agentaflow_units::Amount;

use super::names::short;
use super::{BuildError, refuse};

/// Most digits before the point.
const WHOLE_DIGITS: usize = 15;

/// Accepts fewer forms than Kubernetes: no sign, no exponent, at most thousandths.
pub(super) fn parse(text: &str) -> Option<Amount> {
    let (number, suffix) = split(text);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_plain = (1..=WHOLE_DIGITS).contains(&whole.len())
        && !fraction.is_empty()
        && !suffix.starts_with(['e', 'E', 'n', 'u']);
    Amount::parse(text).ok().filter(|amount| is_plain && amount.is_whole_milli())
}

fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Request for a given limit: half of the limit, in the same unit if the half is a whole number.
pub(super) fn half(text: &str, is_memory: bool) -> Option<String> {
    let amount = parse(text)?;
    let (number, suffix) = split(text);
    if let Some(number) = number.parse::<u64>().ok().filter(|number| number.is_multiple_of(2)) {
        return Some(format!("{}{suffix}", number / 2));
    }
    let half = amount.half();
    Some(if is_memory { half.to_binary() } else { format!("{}m", half.ceil_milli()) })
}

/// Checks a number of cores.
pub(super) fn cpu(flag: &'static str, text: &str) -> Result<Amount, BuildError> {
    match parse(text) {
        Some(amount) if (1..=4_096_000).contains(&amount.ceil_milli()) => Ok(amount),
        Some(amount) if amount > Amount::default() => {
            refuse(flag, format!("`{}` is more than 4096 cores", short(text)))
        }
        _ => refuse(
            flag,
            format!(
                "`{}` is not a number of cores: use a form such as 8, 0.5 or 8000m",
                short(text)
            ),
        ),
    }
}

/// Checks an amount of memory or storage.
pub(super) fn memory(flag: &'static str, text: &str) -> Result<Amount, BuildError> {
    match parse(text).filter(|amount| amount.is_whole_units()) {
        Some(amount) if amount >= Amount::from_mib(1) => Ok(amount),
        Some(_) => refuse(
            flag,
            format!(
                "`{}` is less than a MiB: is the unit missing? Use a form such as 16Gi",
                short(text)
            ),
        ),
        None => refuse(
            flag,
            format!(
                "`{}` is not an amount of memory: use a form such as 16Gi or 512Mi",
                short(text)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_limit_keeps_its_unit() {
        for (text, is_memory, expected) in [
            ("16Gi", true, "8Gi"),
            ("32Gi", true, "16Gi"),
            ("7Gi", true, "3584Mi"),
            ("1Gi", true, "512Mi"),
            ("1.5Gi", true, "768Mi"),
            ("5G", true, "2500000000"),
            ("8000m", false, "4000m"),
            ("8", false, "4"),
            ("7", false, "3500m"),
            ("0.5", false, "250m"),
            ("1m", false, "1m"),
        ] {
            assert_eq!(half(text, is_memory).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_errors() {
        for text in [
            "",
            "-1",
            "x",
            "1x",
            "1.2.3",
            ".",
            "m",
            "1 Gi",
            "1gi",
            "1e3",
            ".5",
            "1.",
            "٣",
            "1.0001",
            "9999999999999999",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(parse("999999999999999Pi").is_some());
        assert!(memory("memory", "16").unwrap_err().to_string().contains("is the unit missing"));
        assert!(cpu("cpu", "0").is_err() && cpu("cpu", "5000").is_err());
    }
}
