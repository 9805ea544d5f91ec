//! Amounts as text.

use agentaflow_api::pending::QuotaResource;
use agentaflow_units::{format_mib, trim_zeros};

/// Two amounts of memory in MiB; exact where rounding would make them equal.
pub(crate) fn sizes(requested: u64, available: u64) -> [String; 2] {
    let rounded = [format_mib(requested), format_mib(available)];
    if rounded[0] == rounded[1] {
        [format!("{requested} MiB"), format!("{available} MiB")]
    } else {
        rounded
    }
}

/// Memory in MiB, rounded down: a proposal must fit.
pub(crate) fn size_within(mib: u64) -> String {
    let tenth = match mib {
        0..1024 => return format_mib(mib),
        1024..1_048_576 => 1024,
        _ => 1_048_576,
    };
    // Rounded up to a whole MiB, a tenth of a unit reads as itself.
    format_mib((mib * 10 / tenth * tenth).div_ceil(10).min(mib))
}

/// An amount of a quota in its own unit.
pub(crate) fn quota(resource: &QuotaResource, value: u64) -> String {
    match resource {
        QuotaResource::Cpu => cores(value),
        QuotaResource::Memory => format!("{value} MiB of memory"),
        QuotaResource::Storage => format!("{value} MiB of local storage"),
        QuotaResource::Gpu => gpus(value, "GPU"),
        QuotaResource::GpuModel(model) => gpus(value, &format!("{model} GPU")),
        QuotaResource::Named(name) => format!("{value} {name}"),
    }
}

fn gpus(milli: u64, unit: &str) -> String {
    format!("{} {unit}{}", thousandths(milli), if milli == 1000 { "" } else { "s" })
}

/// CPU in thousandths of a core.
pub(crate) fn cores(milli: u64) -> String {
    format!("{} CPU {}", thousandths(milli), if milli == 1000 { "core" } else { "cores" })
}

/// Thousandths as a decimal number without trailing zeros: 1500 is `1.5`.
pub fn thousandths(value: u64) -> String {
    let decimals = format!("{}.{:03}", value / 1000, value % 1000);
    trim_zeros(&decimals).to_owned()
}

/// A number and its noun: `1 GPU`, `4 GPUs`.
pub fn count(number: u32, noun: &str) -> String {
    format!("{number} {}", plural(number, noun))
}

pub(crate) fn plural(number: u32, noun: &str) -> String {
    if number == 1 { noun.to_owned() } else { format!("{noun}s") }
}
