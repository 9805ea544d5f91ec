//! A reading in 16 bits: 5 bits of exponent, 11 bits of mantissa with an implicit leading bit. Whole numbers up to 4,096 are
//! exact; the relative error of other values is below 0.025 %.

/// Code of a missing reading.
const NONE: u16 = u16::MAX;
/// Smallest step: 1/256.
const UNIT: f64 = 256.0;
/// Largest value, in units.
const LARGEST: f64 = (4094_u64 << 30) as f64;
const MANTISSA_BITS: u32 = 11;
const IMPLICIT: u64 = 1 << MANTISSA_BITS;

/// Negative values and values that are not numbers have no code.
pub(crate) fn pack(value: Option<f64>) -> u16 {
    let Some(value) = value.filter(|value| *value >= 0.0) else { return NONE };
    let units = (value * UNIT).min(LARGEST);
    let whole = units.round() as u64;
    if whole < 2 * IMPLICIT {
        return whole as u16;
    }
    let shift = whole.ilog2() - MANTISSA_BITS;
    let mantissa = (units / (1_u64 << shift) as f64).round() as u64;
    // A mantissa that rounds up to the next power of two carries into the exponent.
    let code = (u64::from(shift + 1) << MANTISSA_BITS) + mantissa - IMPLICIT;
    code as u16
}

pub(crate) fn unpack(code: u16) -> Option<f64> {
    if code == NONE {
        return None;
    }
    let (exponent, mantissa) = (u32::from(code) >> MANTISSA_BITS, u64::from(code) % IMPLICIT);
    let units = match exponent {
        0 => mantissa,
        exponent => (mantissa + IMPLICIT) << (exponent - 1),
    };
    Some(units as f64 / UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(value: f64) -> f64 {
        unpack(pack(Some(value))).unwrap()
    }

    #[test]
    fn whole_numbers_up_to_4096_are_exact() {
        assert!(
            (0..=4096)
                .all(|number| kept(f64::from(number)).to_bits() == f64::from(number).to_bits())
        );
    }

    #[test]
    fn other_values_keep_three_digits_over_the_whole_range() {
        let mut value = 0.01;
        while value < 1e10 {
            let error = (kept(value) - value).abs();
            assert!(error <= (value * 0.000_25).max(0.5 / UNIT), "{value}: {error}");
            value *= 1.37;
        }
        assert!(kept(f64::INFINITY) > 1.7e10 && kept(1e300) > 1.7e10);
    }

    #[test]
    fn every_code_is_its_own_value_and_greater_codes_are_greater_values() {
        let values: Vec<f64> = (0..NONE).map(|code| unpack(code).unwrap()).collect();
        assert!(values.windows(2).all(|pair| pair[0] < pair[1]));
        assert!((0..NONE).all(|code| pack(unpack(code)) == code));
    }

    #[test]
    fn a_missing_negative_or_invalid_reading_is_missing() {
        for value in [None, Some(-1.0), Some(f64::NAN)] {
            assert_eq!(unpack(pack(value)), None);
        }
    }
}
