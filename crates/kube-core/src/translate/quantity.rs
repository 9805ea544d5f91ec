//! Quantities of Kubernetes objects.

use std::collections::BTreeMap;

use agentaflow_units::{Amount, QuantityError};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Largest amount that the engine accepts.
pub(super) const LARGEST: u64 = 1 << 46;

/// Quantities by resource name.
pub(super) type Quantities = BTreeMap<String, Quantity>;

/// Exact amounts by resource name.
pub(super) type Amounts = BTreeMap<String, Amount>;

/// Parses all quantities of a list; the error names the first invalid one.
pub(super) fn amounts(list: &Quantities) -> Result<Amounts, String> {
    let parse = |(name, quantity): (&String, &Quantity)| match Amount::parse(&quantity.0) {
        Ok(amount) => Ok((name.clone(), amount)),
        Err(error) => Err(format!("{name}: {error}")),
    };
    list.iter().map(parse).collect()
}

/// Thousandths of a core from a capacity such as `64` or `500m`, rounded down.
pub fn milli_cpu(text: &str) -> Result<u64, QuantityError> {
    Amount::parse(text.trim()).map(Amount::floor_milli)
}

/// MiB from a capacity such as `512Gi`, rounded down.
pub fn mebibytes(text: &str) -> Result<u64, QuantityError> {
    Amount::parse(text.trim()).map(Amount::floor_mib)
}
