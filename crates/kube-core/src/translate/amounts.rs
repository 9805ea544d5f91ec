//! Amounts that people write in queues.

use super::quantity::Amount;

/// Thousandths of a core from a quantity such as `64` or `500m`.
pub fn milli_cpu(text: &str) -> Result<u64, String> {
    Amount::parse(text.trim()).map(Amount::milli_down)
}

/// MiB from a quantity such as `512Gi`.
pub fn mebibytes(text: &str) -> Result<u64, String> {
    Amount::parse(text.trim()).map(Amount::mib_down)
}
