//! Quantities as Kubernetes writes them, only to compare two of them.

/// The quantity in billionths, or nothing when it is none.
pub(super) fn parse(text: &str) -> Option<i128> {
    let text = text.trim();
    let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (negative, digits) = match number.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let valid = |part: &str| part.len() <= 18 && part.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !valid(whole) || !valid(fraction) {
        return None;
    }
    let mantissa: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let nanos = mantissa.checked_mul(scale(suffix)?)? / 10_i128.pow(fraction.len() as u32);
    Some(if negative { -nanos } else { nanos })
}

/// Billionths in one unit.
fn scale(suffix: &str) -> Option<i128> {
    const ONE: i128 = 1_000_000_000;
    let decimal = |exponent: u32| Some(ONE * 10_i128.pow(exponent));
    let binary = |exponent: u32| Some(ONE << exponent);
    match suffix {
        "n" => Some(1),
        "u" => Some(1_000),
        "m" => Some(1_000_000),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?;
            match u32::try_from(exponent) {
                Ok(exponent) if exponent <= 18 => decimal(exponent),
                Err(_) if exponent >= -9 => Some(ONE / 10_i128.pow(exponent.unsigned_abs())),
                _ => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, nanos) in [
            ("1", Some(1_000_000_000)),
            ("500m", Some(500_000_000)),
            ("1.5", Some(1_500_000_000)),
            ("2Ki", Some(2_048_000_000_000)),
            ("1e3", Some(1_000_000_000_000)),
            ("1E", Some(10_i128.pow(27))),
            ("-1", Some(-1_000_000_000)),
            ("", None),
            (".", None),
            ("3 gb", None),
            ("1e99", None),
            ("99999999999999999999Ei", None),
        ] {
            assert_eq!(parse(text), nanos, "{text}");
        }
    }
}
