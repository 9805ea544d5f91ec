//! Amounts as Kubernetes writes them: `16Gi`, `500m`, `2`.

use serde_json::Value;

const SUFFIXES: [(&str, i32, u32); 15] = [
    ("Ki", 2, 10),
    ("Mi", 2, 20),
    ("Gi", 2, 30),
    ("Ti", 2, 40),
    ("Pi", 2, 50),
    ("Ei", 2, 60),
    ("n", -10, 9),
    ("u", -10, 6),
    ("m", -10, 3),
    ("k", 10, 3),
    ("M", 10, 6),
    ("G", 10, 9),
    ("T", 10, 12),
    ("P", 10, 15),
    ("E", 10, 18),
];

/// An amount in thousandths, which is what CPUs are counted in.
pub(super) fn milli(value: &Value) -> Option<f64> {
    units(value).map(|units| units * 1000.0)
}

/// An amount in MiB.
pub(super) fn mebibytes(value: &Value) -> Option<f64> {
    units(value).map(|units| units / f64::from(1 << 20))
}

/// An amount in its unit: bytes, or CPUs.
fn units(value: &Value) -> Option<f64> {
    let text = match value {
        Value::Number(number) => return number.as_f64(),
        Value::String(text) => text.trim(),
        _ => return None,
    };
    let (digits, base, power) = SUFFIXES
        .iter()
        .find_map(|(suffix, base, power)| Some((text.strip_suffix(suffix)?, *base, *power)))
        .unwrap_or((text, 10, 0));
    let number: f64 = digits.parse().ok()?;
    let factor = f64::from(base.abs()).powi(power as i32);
    let amount = if base < 0 { number / factor } else { number * factor };
    (amount.is_finite() && amount >= 0.0).then_some(amount)
}

/// A number of MiB as people write it.
pub(super) fn memory(mebibytes: f64) -> String {
    let whole = mebibytes.floor() as u64;
    if whole > 0 && whole.is_multiple_of(1024) {
        format!("{}Gi", whole / 1024)
    } else {
        format!("{whole}Mi")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn amounts_are_read_as_kubernetes_reads_them() {
        let table = [
            (json!("16Gi"), Some(16384.0)),
            (json!("1024Ki"), Some(1.0)),
            (json!(1_048_576), Some(1.0)),
            (json!("2097152"), Some(2.0)),
            (json!("1e9"), Some(953.674_316_406_25)),
            (json!("nan"), None),
            (json!("inf"), None),
            (json!("-1Gi"), None),
            (json!("16GB"), None),
            (json!(null), None),
        ];
        for (value, amount) in table {
            assert_eq!(mebibytes(&value), amount, "{value}");
        }
        assert_eq!(milli(&json!("500m")), Some(500.0));
        assert_eq!(milli(&json!("4")), Some(4000.0));
        assert_eq!(milli(&json!(0.5)), Some(500.0));
        assert_eq!(memory(2048.0), "2Gi");
        assert_eq!(memory(1500.7), "1500Mi");
    }
}
