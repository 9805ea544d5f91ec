//! Amounts as Kubernetes writes them: `8`, `4000m`, `16Gi`.

use super::names::short;
use super::{BuildError, refuse};

/// Suffixes with what they multiply by, in thousandths.
const SUFFIXES: [(&str, u128); 12] = [
    ("m", 1),
    ("", 1000),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("Ki", 1000 << 10),
    ("Mi", 1000 << 20),
    ("Gi", 1000 << 30),
    ("Ti", 1000 << 40),
    ("Pi", 1000 << 50),
];

/// An amount in thousandths; 0 and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(u128);

impl Amount {
    /// Reads an amount; finer than thousandths, an exponent or a sign is not taken.
    pub fn parse(text: &str) -> Option<Self> {
        let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (_, scale) = SUFFIXES.iter().find(|(name, _)| *name == suffix)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if number.is_empty() || whole.len() > 15 || fraction.len() > 9 || fraction.contains('.') {
            return None;
        }
        if whole.is_empty() || (number.contains('.') && fraction.is_empty()) {
            return None;
        }
        let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
        let all = digits.checked_mul(*scale)?;
        let divisor = 10_u128.pow(fraction.len() as u32);
        all.is_multiple_of(divisor).then_some(Self(all / divisor))
    }

    /// So many thousandths of a core.
    pub fn milli(milli: u64) -> Self {
        Self(u128::from(milli))
    }

    /// So many MiB.
    pub fn mib(mib: u64) -> Self {
        Self(u128::from(mib) * (1000 << 20))
    }

    /// Thousandths.
    pub fn as_milli(self) -> u64 {
        u64::try_from(self.0).unwrap_or(u64::MAX)
    }

    /// MiB, rounded up.
    pub fn as_mib(self) -> u64 {
        u64::try_from(self.0.div_ceil(1000 << 20)).unwrap_or(u64::MAX)
    }

    /// Half of it, rounded up.
    pub(super) fn half(self) -> Self {
        Self(self.0.div_ceil(2))
    }

    /// As a plain number, without a suffix.
    pub(super) fn plain_text(self) -> String {
        let text = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }

    /// As memory is written: the largest binary unit that loses nothing.
    pub fn memory_text(self) -> String {
        let bytes = self.0.div_ceil(1000);
        let units = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
        let unit = units.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
        unit.map_or_else(|| bytes.to_string(), |(name, shift)| format!("{}{name}", bytes >> shift))
    }
}

/// Half of an amount, in the unit in which it was written where that loses nothing: the request of a limit.
pub(super) fn half(text: &str, is_memory: bool) -> Option<String> {
    let amount = Amount::parse(text)?;
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    if let Some(number) = number.parse::<u64>().ok().filter(|number| number.is_multiple_of(2)) {
        // No fraction: what follows the digits is the suffix.
        if SUFFIXES.iter().any(|(name, _)| *name == suffix) {
            return Some(format!("{}{suffix}", number / 2));
        }
    }
    let half = amount.half();
    Some(if is_memory { half.memory_text() } else { format!("{}m", half.0) })
}

/// A number of cores that was given.
pub(super) fn cpu(flag: &'static str, text: &str) -> Result<Amount, BuildError> {
    match Amount::parse(text) {
        Some(amount) if (1..=4_096_000).contains(&amount.0) => Ok(amount),
        Some(amount) if amount.0 > 0 => {
            refuse(flag, format!("`{}` is more than the 4096 cores of any machine", short(text)))
        }
        _ => refuse(
            flag,
            format!("`{}` is no number of cores: write it like 8, 0.5 or 8000m", short(text)),
        ),
    }
}

/// An amount of memory or storage that was given.
pub(super) fn memory(flag: &'static str, text: &str) -> Result<Amount, BuildError> {
    const SMALLEST: u128 = 1000 << 20;
    match Amount::parse(text) {
        Some(amount) if amount.0.is_multiple_of(1000) && amount.0 >= SMALLEST => Ok(amount),
        Some(amount) if amount.0.is_multiple_of(1000) => refuse(
            flag,
            format!(
                "`{}` is less than a MiB: is the unit missing? Write it like 16Gi",
                short(text)
            ),
        ),
        _ => refuse(
            flag,
            format!("`{}` is no amount of memory: write it like 16Gi or 512Mi", short(text)),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_limit_keeps_its_unit_where_it_can() {
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
    fn what_is_no_amount_is_refused() {
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
            assert_eq!(Amount::parse(text), None, "{text}");
        }
        assert!(Amount::parse("999999999999999Pi").is_some());
        assert!(memory("memory", "16").unwrap_err().to_string().contains("is the unit missing"));
        assert!(cpu("cpu", "0").is_err() && cpu("cpu", "5000").is_err());
    }
}
