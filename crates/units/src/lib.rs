//! The workspace's only parser and formatter of quantities, memory sizes and durations.
//!
//! * [`Amount`]: Kubernetes resource quantities (`1500m`, `2Gi`, `0.5`, `1e3`), exact to a billionth.
//! * [`parse_mib`], [`format_mib`], [`quantity_of_mib`]: memory sizes of flags and tables (`8G`, `1.5 GiB`, `8Gi`).
//! * [`parse_duration`], [`parse_go_duration`], [`format_duration`], [`format_go_duration`]: durations (`1h30m`).
//! * [`hash64`], [`hash32`]: stable hashes for names and labels.
//! * [`nearest`], [`did_you_mean`]: suggestions for misspelled names.

mod duration;
mod hash;
mod memory;
mod quantity;
mod suggest;

pub use duration::{
    DurationError, format_duration, format_duration_rounded, format_go_duration, parse_duration,
    parse_go_duration,
};
pub use hash::{hash32, hash64};
pub use memory::{MemoryError, format_mib, parse_mib, quantity_of_mib};
pub use quantity::{Amount, QuantityError};
pub use suggest::{did_you_mean, nearest, nearest_within};

/// A decimal number without trailing zeros: `1.500` is `1.5`.
pub fn trim_zeros(decimal: &str) -> &str {
    decimal.trim_end_matches('0').trim_end_matches('.')
}

/// The first characters of a rejected text, for error messages: input can be arbitrarily long.
fn excerpt(text: &str) -> String {
    text.chars().take(32).collect()
}
