//! Value of an unquoted scalar: the core schema of YAML 1.2, with octal file modes as `kubectl` parses them.

use serde_json::{Number, Value};

use super::Problem;

/// Something that other tools read differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ambiguity {
    /// `yes`, `no`, `on`, `off` and the like.
    #[error(
        "`{0}` is text in YAML 1.2 and a boolean in YAML 1.1, which `kubectl` uses; quote it, or use true or false"
    )]
    Truth(String),
    /// `0644`.
    #[error("`{0}` is the octal number {1} for `kubectl`, and a decimal number in YAML 1.2")]
    Octal(String, Number),
    /// An integer of more than 64 bits.
    #[error("`{0}` exceeds all integer types and is kept as text")]
    Large(String),
    /// `1_000`, `.inf`, `.nan`.
    #[error("`{0}` is text here and a number for other tools; quote it if text is intended")]
    Number(String),
}

/// Value of an unquoted scalar, and its ambiguity.
pub(super) fn plain(text: &str) -> (Value, Option<Ambiguity>) {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return (Value::Null, None),
        "true" | "True" | "TRUE" => return (Value::Bool(true), None),
        "false" | "False" | "FALSE" => return (Value::Bool(false), None),
        _ => {}
    }
    let first = text.as_bytes()[0];
    if !first.is_ascii_digit() && !matches!(first, b'+' | b'-' | b'.') {
        let ambiguity = is_old_truth(text).then(|| Ambiguity::Truth(text.to_owned()));
        return (Value::String(text.to_owned()), ambiguity);
    }
    number(text)
}

/// The value of a scalar with a tag of YAML's own, such as `!!str`.
pub(super) fn tagged(text: &str, tag: &str) -> Result<Value, Problem> {
    let value = plain(text).0;
    let fits = match tag {
        "str" => return Ok(Value::String(text.to_owned())),
        "null" => value.is_null(),
        "bool" => value.is_boolean(),
        "int" => value.is_i64() || value.is_u64(),
        "float" => value.is_number(),
        _ => false,
    };
    let wrong = || Problem::WrongTag { text: text.to_owned(), tag: tag.to_owned() };
    if fits { Ok(value) } else { Err(wrong()) }
}

fn is_old_truth(text: &str) -> bool {
    text.len() <= 3
        && ["y", "n", "yes", "no", "on", "off"].iter().any(|word| word.eq_ignore_ascii_case(text))
}

fn number(text: &str) -> (Value, Option<Ambiguity>) {
    let as_text = || Value::String(text.to_owned());
    let (negative, digits) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if let Some((radix, digits)) = radix(digits) {
        return match u64::from_str_radix(digits, radix).ok().and_then(|size| whole(negative, size))
        {
            Some(value) if radix == 8 && !text.contains('o') => {
                let ambiguity = Ambiguity::Octal(text.to_owned(), value.clone());
                (Value::Number(value), Some(ambiguity))
            }
            Some(value) => (Value::Number(value), None),
            None => (as_text(), Some(Ambiguity::Large(text.to_owned()))),
        };
    }
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return match digits.parse().ok().and_then(|size| whole(negative, size)) {
            Some(value) => (Value::Number(value), None),
            None => (as_text(), Some(Ambiguity::Large(text.to_owned()))),
        };
    }
    if is_float(digits)
        && let Some(value) = text.parse().ok().and_then(Number::from_f64)
    {
        return (Value::Number(value), None);
    }
    let odd = matches!(digits, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN")
        || (digits.contains('_') && digits.bytes().all(|b| b.is_ascii_digit() || b == b'_'));
    (as_text(), odd.then(|| Ambiguity::Number(text.to_owned())))
}

/// Radix and digits of a number that is not decimal.
fn radix(digits: &str) -> Option<(u32, &str)> {
    let (radix, rest) = if let Some(rest) = digits.strip_prefix("0x") {
        (16, rest)
    } else if let Some(rest) = digits.strip_prefix("0o") {
        (8, rest)
    } else {
        (8, digits.strip_prefix('0')?)
    };
    (!rest.is_empty() && rest.chars().all(|digit| digit.is_digit(radix))).then_some((radix, rest))
}

fn whole(negative: bool, size: u64) -> Option<Number> {
    if !negative {
        return Some(size.into());
    }
    0_i64.checked_sub_unsigned(size).map(Number::from)
}

/// `[digits] [. digits] [e [+-] digits]`, with a digit before the exponent.
fn is_float(digits: &str) -> bool {
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (digits, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let exponent = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !exponent.is_empty() && all_digits(exponent)
    });
    exponent
        && all_digits(whole)
        && all_digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
}

/// True if every YAML tool parses the unquoted scalar as text.
pub(crate) fn is_plain_text(text: &str) -> bool {
    matches!(plain(text), (Value::String(_), None))
}
