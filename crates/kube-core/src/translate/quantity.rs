//! Amounts as Kubernetes writes them: `1500m`, `2Gi`, `0.5`, `1e3`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// The largest amount of anything that the engine accepts.
pub(super) const LARGEST: u64 = 1 << 46;

/// The finest step that Kubernetes keeps is a billionth.
const BILLION: i128 = 1_000_000_000;

/// Amounts beyond this are as good as this: far more than any cluster has, and sums of many stay exact.
const CEILING: i128 = 1 << 100;

/// Digits that are kept exactly.
const EIGHTEEN_DIGITS: i128 = 100_000_000_000_000_000;

/// Resources by name.
pub(super) type Quantities = BTreeMap<String, Quantity>;

/// An exact amount, in billionths; never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

impl Amount {
    /// Reads a quantity. What Kubernetes would not accept, and what is less than nothing, is refused.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refusal =
            || format!("`{}` is not an amount", text.chars().take(32).collect::<String>());
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end =
            unsigned.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return Err(refusal());
        }
        let amount = Self::scaled(whole, fraction, Scale::parse(suffix).ok_or_else(refusal)?);
        if text.starts_with('-') && amount.0 > 0 {
            return Err(refusal());
        }
        Ok(amount)
    }

    /// So many whole units.
    pub fn units(count: u64) -> Self {
        Self(i128::from(count) * BILLION)
    }

    /// Whole units, rounded up.
    pub(super) fn units_up(self) -> u64 {
        self.up(1, 1)
    }

    /// Whole units, rounded down.
    pub(super) fn units_down(self) -> u64 {
        clamped(self.0 / BILLION)
    }

    /// Thousandths, rounded up.
    pub(super) fn milli_up(self) -> u64 {
        self.up(1000, 1)
    }

    /// Thousandths, rounded down.
    pub(super) fn milli_down(self) -> u64 {
        clamped(self.0 / (BILLION / 1000))
    }

    /// MiB, rounded up.
    pub(super) fn mib_up(self) -> u64 {
        self.up(1, 1 << 20)
    }

    /// MiB, rounded down.
    pub(super) fn mib_down(self) -> u64 {
        clamped(self.0 / (BILLION << 20))
    }

    /// The sum of both.
    pub(super) fn plus(self, other: Self) -> Self {
        Self((self.0 + other.0).min(CEILING))
    }

    fn up(self, times: i128, divided: i128) -> u64 {
        let step = BILLION * divided;
        clamped((self.0.saturating_mul(times) + step - 1) / step)
    }

    /// The digits with the scale applied; anything finer than a billionth counts as one, and so does anything
    /// behind the eighteenth digit.
    fn scaled(whole: &str, fraction: &str, scale: Scale) -> Self {
        let mut mantissa: i128 = 0;
        let mut dropped: i64 = 0;
        let mut inexact = false;
        for digit in whole.bytes().chain(fraction.bytes()) {
            if mantissa < EIGHTEEN_DIGITS {
                mantissa = mantissa * 10 + i128::from(digit - b'0');
            } else {
                dropped += 1;
                inexact |= digit != b'0';
            }
        }
        let (factor, power) = match scale {
            Scale::Binary(shift) => (1_i128 << shift, 0),
            Scale::Decimal(power) => (1, power),
        };
        let power = power + 9 + dropped - fraction.len() as i64;
        Self(times_ten((mantissa + i128::from(inexact)) * factor, power))
    }
}

/// Reads all quantities of a list; the first that cannot be read is named.
pub(super) fn amounts(list: &Quantities) -> Result<Amounts, String> {
    let read = |(name, quantity): (&String, &Quantity)| match Amount::parse(&quantity.0) {
        Ok(amount) => Ok((name.clone(), amount)),
        Err(why) => Err(format!("{why} of {name}")),
    };
    list.iter().map(read).collect()
}

/// Exact amounts by the name of the resource.
pub(super) type Amounts = BTreeMap<String, Amount>;

/// What the suffix of a quantity multiplies it by.
#[derive(Clone, Copy)]
enum Scale {
    /// Two to this power.
    Binary(u32),
    /// Ten to this power.
    Decimal(i64),
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "" => Self::Decimal(0),
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            "Ki" => Self::Binary(10),
            "Mi" => Self::Binary(20),
            "Gi" => Self::Binary(30),
            "Ti" => Self::Binary(40),
            "Pi" => Self::Binary(50),
            "Ei" => Self::Binary(60),
            exponent => {
                Self::Decimal(exponent.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?.into())
            }
        })
    }
}

/// `number` × 10^`power`, rounded up and never beyond the ceiling.
fn times_ten(mut number: i128, power: i64) -> i128 {
    if number == 0 {
        return 0;
    }
    for _ in 0..power {
        if number >= CEILING {
            return CEILING;
        }
        number *= 10;
    }
    if power < 0 {
        let digits = power.unsigned_abs().try_into().unwrap_or(u32::MAX);
        // No number has so many digits: less than the finest step is one step.
        let Some(divisor) = 10_i128.checked_pow(digits) else { return 1 };
        number = number / divisor + i128::from(number % divisor != 0);
    }
    number.min(CEILING)
}

fn clamped(value: i128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_rounded_up_where_asked_for_and_down_where_offered() {
        let table: [(&str, u64, u64, u64); 21] = [
            // milli up, units up, units down
            ("0", 0, 0, 0),
            ("1", 1000, 1, 1),
            ("+1", 1000, 1, 1),
            ("-0", 0, 0, 0),
            ("100m", 100, 1, 0),
            ("0.1", 100, 1, 0),
            (".5", 500, 1, 0),
            ("1.", 1000, 1, 1),
            ("1n", 1, 1, 0),
            ("1500u", 2, 1, 0),
            ("1.0000000001", 1001, 2, 1),
            ("2k", 2_000_000, 2000, 2000),
            ("2Ki", 2_048_000, 2048, 2048),
            ("1.5Gi", 1_610_612_736_000, 1_610_612_736, 1_610_612_736),
            ("1e3", 1_000_000, 1000, 1000),
            ("1E3", 1_000_000, 1000, 1000),
            ("15e-1", 1500, 2, 1),
            ("1e-50", 1, 1, 0),
            ("1M", 1_000_000_000, 1_000_000, 1_000_000),
            ("3T", 3_000_000_000_000_000, 3_000_000_000_000, 3_000_000_000_000),
            ("2P", 2_000_000_000_000_000_000, 2_000_000_000_000_000, 2_000_000_000_000_000),
        ];
        for (text, milli, up, down) in table {
            let amount = Amount::parse(text).unwrap();
            let got = (amount.milli_up(), amount.units_up(), amount.units_down());
            assert_eq!(got, (milli, up, down), "{text}");
        }
    }

    #[test]
    fn memory_is_counted_in_mebibytes() {
        let table = [
            ("1Mi", 1, 1),
            ("1", 1, 0),
            ("1048577", 2, 1),
            ("1G", 954, 953),
            ("1Ei", 1 << 40, 1 << 40),
        ];
        for (text, up, down) in table {
            let amount = Amount::parse(text).unwrap();
            assert_eq!((amount.mib_up(), amount.mib_down()), (up, down), "{text}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused_and_never_panics() {
        let long = "9".repeat(100_000);
        for text in [
            "", "-1", "-1m", "x", "1x", "1.2.3", ".", "m", "1 Gi", "1gi", "1e", "--1", "1e1.5", "٣",
        ] {
            assert!(Amount::parse(text).is_err(), "{text}");
        }
        for text in
            [&*long, &format!("{long}Ei"), &format!("0.{long}"), "9e2147483647", "9e-2147483648"]
        {
            let amount = Amount::parse(text).unwrap();
            assert!(amount.units_up() >= 1);
            assert!(amount.plus(amount) >= amount);
        }
        assert!(Amount::parse("9e99999999999").is_err());
        let exa = Amount::parse("1E").unwrap();
        assert_eq!((exa.units_up(), exa.milli_up()), (1_000_000_000_000_000_000, u64::MAX));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_reading_a_quantity_panic(text in "[-+]?[0-9]{0,45}[.]?[0-9]{0,45}([eE][-+]?[0-9]{0,12}|[nmukMGTPEi]{0,2}|.{0,3})") {
            if let Ok(amount) = Amount::parse(&text) {
                proptest::prop_assert!(amount.units_up() >= amount.units_down());
                proptest::prop_assert!(amount.mib_up() >= amount.mib_down());
            }
        }
    }
}
