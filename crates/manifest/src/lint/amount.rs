//! Quantities in manifests.

use agentaflow_units::Amount;
use serde_json::Value;

/// Quantity written as a number or a text; none where Kubernetes would reject it.
pub(super) fn amount(value: &Value) -> Option<Amount> {
    match value {
        Value::Number(number) => Amount::parse(&number.to_string()).ok(),
        Value::String(text) => Amount::parse(text.trim()).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantities_are_numbers_or_texts() {
        let table = [
            (json!("16Gi"), Some(16384)),
            (json!("1024Ki"), Some(1)),
            (json!(1_048_576), Some(1)),
            (json!(2.5e9), Some(2384)),
            (json!("2097152"), Some(2)),
            (json!("1e9"), Some(953)),
            (json!("nan"), None),
            (json!("inf"), None),
            (json!("-1Gi"), None),
            (json!("16GB"), None),
            (json!(null), None),
        ];
        for (value, mib) in table {
            assert_eq!(amount(&value).map(Amount::floor_mib), mib, "{value}");
        }
        let milli = |value| amount(&value).map(Amount::ceil_milli);
        assert_eq!(
            [json!("500m"), json!("4"), json!(0.5)].map(milli),
            [Some(500), Some(4000), Some(500)]
        );
    }
}
