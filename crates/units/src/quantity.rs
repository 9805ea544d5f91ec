//! Kubernetes resource quantities: `1500m`, `2Gi`, `0.5`, `1e3`.

use thiserror::Error;

/// Billionths, the finest step that Kubernetes keeps, in one unit.
const NANOS: i128 = 1_000_000_000;

/// Largest amount, in billionths: whole units, so that a saturated amount is not a fraction. Larger input saturates
/// here, and sums of many amounts cannot overflow.
const CEILING: i128 = NANOS << 70;

/// Mantissa from which further digits are dropped: eighteen digits are exact.
const EIGHTEEN_DIGITS: i128 = 100_000_000_000_000_000;

/// Text that Kubernetes does not accept as a quantity, or a negative quantity.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a quantity")]
pub struct QuantityError(String);

/// Exact, non-negative value of a quantity: a number of cores, bytes or devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

impl Amount {
    /// Accepts the grammar of Kubernetes: sign, decimal or binary suffix, decimal exponent. Digits finer than a
    /// billionth are rounded up.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let error = || QuantityError(crate::excerpt(text));
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end =
            unsigned.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return Err(error());
        }
        let amount = Self::scaled(whole, fraction, Scale::parse(suffix).ok_or_else(error)?);
        if text.starts_with('-') && amount.0 > 0 {
            return Err(error());
        }
        Ok(amount)
    }

    pub fn from_units(count: u64) -> Self {
        Self(i128::from(count) * NANOS)
    }

    pub fn from_milli(milli: u64) -> Self {
        Self(i128::from(milli) * (NANOS / 1000))
    }

    pub fn from_mib(mib: u64) -> Self {
        Self((i128::from(mib) * (NANOS << 20)).min(CEILING))
    }

    /// Whole units, rounded up.
    pub fn ceil_units(self) -> u64 {
        self.ceil(NANOS)
    }

    /// Whole units, rounded down.
    pub fn floor_units(self) -> u64 {
        self.floor(NANOS)
    }

    /// Thousandths, rounded up.
    pub fn ceil_milli(self) -> u64 {
        self.ceil(NANOS / 1000)
    }

    /// Thousandths, rounded down.
    pub fn floor_milli(self) -> u64 {
        self.floor(NANOS / 1000)
    }

    /// MiB of an amount in bytes, rounded up.
    pub fn ceil_mib(self) -> u64 {
        self.ceil(NANOS << 20)
    }

    /// MiB of an amount in bytes, rounded down.
    pub fn floor_mib(self) -> u64 {
        self.floor(NANOS << 20)
    }

    pub fn as_f64(self) -> f64 {
        self.0 as f64 / NANOS as f64
    }

    pub fn is_whole_units(self) -> bool {
        self.0 % NANOS == 0
    }

    pub fn is_whole_milli(self) -> bool {
        self.0 % (NANOS / 1000) == 0
    }

    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self((self.0 + other.0).min(CEILING))
    }

    /// Half of the amount, rounded up to a billionth.
    #[must_use]
    pub fn half(self) -> Self {
        Self((self.0 + 1) / 2)
    }

    /// Decimal number without a suffix: `0.5`. The text is exact.
    pub fn to_decimal(self) -> String {
        let text = format!("{}.{:09}", self.0 / NANOS, self.0 % NANOS);
        crate::trim_zeros(&text).to_owned()
    }

    /// Largest binary suffix that divides the amount: `8Gi`, `1500Mi`, `2500000000`. Part of a byte is rounded up.
    pub fn to_binary(self) -> String {
        let bytes = (self.0 + NANOS - 1) / NANOS;
        let suffixes = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
        let suffix = suffixes.iter().find(|(_, shift)| bytes > 0 && bytes % (1 << shift) == 0);
        suffix
            .map_or_else(|| bytes.to_string(), |(name, shift)| format!("{}{name}", bytes >> shift))
    }

    fn ceil(self, step: i128) -> u64 {
        saturated((self.0 + step - 1) / step)
    }

    fn floor(self, step: i128) -> u64 {
        saturated(self.0 / step)
    }

    /// Applies the scale to the digits. Digits after the eighteenth, and digits finer than a billionth, are rounded
    /// up.
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
        Self(times_power_of_ten((mantissa + i128::from(inexact)) * factor, power))
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), Self::saturating_add)
    }
}

/// Multiplier that the suffix of a quantity stands for.
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

/// `number` × 10^`power`, rounded up and limited to the ceiling.
fn times_power_of_ten(mut number: i128, power: i64) -> i128 {
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
        // A divisor beyond 128 bits exceeds every mantissa: the result rounds up to one billionth.
        let Some(divisor) = 10_i128.checked_pow(digits) else { return 1 };
        number = number / divisor + i128::from(number % divisor != 0);
    }
    number.min(CEILING)
}

fn saturated(value: i128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_round_up_and_capacities_round_down() {
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
            let got = (amount.ceil_milli(), amount.ceil_units(), amount.floor_units());
            assert_eq!(got, (milli, up, down), "{text}");
        }
    }

    #[test]
    fn bytes_convert_to_mebibytes() {
        let table = [
            ("1Mi", 1, 1),
            ("1", 1, 0),
            ("1048577", 2, 1),
            ("1G", 954, 953),
            ("1Ei", 1 << 40, 1 << 40),
        ];
        for (text, up, down) in table {
            let amount = Amount::parse(text).unwrap();
            assert_eq!((amount.ceil_mib(), amount.floor_mib()), (up, down), "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_errors_and_huge_ones_saturate() {
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
            assert!(amount.ceil_units() >= 1);
            assert!(amount.saturating_add(amount) >= amount);
        }
        assert!(Amount::parse("9e99999999999").is_err());
        let exa = Amount::parse("1E").unwrap();
        assert_eq!((exa.ceil_units(), exa.ceil_milli()), (1_000_000_000_000_000_000, u64::MAX));
    }

    #[test]
    fn amounts_are_formatted_without_loss() {
        let binary = |text: &str| Amount::parse(text).unwrap().to_binary();
        assert_eq!(
            ["1.5Gi", "16Gi", "5G", "0", "1m", "2048Gi"].map(binary),
            ["1536Mi", "16Gi", "5000000000", "0", "1", "2Ti"]
        );
        let decimal = |text: &str| Amount::parse(text).unwrap().to_decimal();
        assert_eq!(["1500m", "8", "1n", "2Ki"].map(decimal), ["1.5", "8", "0.000000001", "2048"]);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "[-+]?[0-9]{0,45}[.]?[0-9]{0,45}([eE][-+]?[0-9]{0,12}|[nmukMGTPEi]{0,2}|.{0,3})") {
            if let Ok(amount) = Amount::parse(&text) {
                prop_assert!(amount.ceil_units() >= amount.floor_units());
                prop_assert!(amount.ceil_mib() >= amount.floor_mib());
            }
        }

        #[test]
        fn decimal_text_round_trips(milli in 0_u64..1 << 50) {
            let amount = Amount::from_milli(milli);
            prop_assert_eq!(Amount::parse(&amount.to_decimal()), Ok(amount));
        }

        #[test]
        fn binary_text_round_trips(bytes in 0_u64..1 << 59) {
            let amount = Amount::from_units(bytes);
            prop_assert_eq!(Amount::parse(&amount.to_binary()), Ok(amount));
        }

        #[test]
        fn equal_values_in_different_units_are_equal(mib in 0_u64..1 << 40) {
            let amount = Amount::from_mib(mib);
            prop_assert_eq!(amount, Amount::parse(&format!("{mib}Mi")).unwrap());
            prop_assert_eq!((amount.ceil_mib(), amount.floor_mib()), (mib, mib));
        }
    }
}
