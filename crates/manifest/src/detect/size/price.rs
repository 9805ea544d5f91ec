//! GPU cost: the cheapest machine of the catalogue in any cloud.

use std::sync::LazyLock;

use super::gpu::{GpuType, PER_NODE};
use crate::catalogue::Catalogue;

/// Type, GPUs and micro-dollars an hour of every machine with a price.
static MACHINES: LazyLock<Vec<(GpuType, u32, u64)>> = LazyLock::new(|| {
    // Tests cover the built-in catalogue; without prices all types would be equal.
    let catalogue = Catalogue::built_in().unwrap_or_default();
    let priced = catalogue.instances().iter().filter_map(|machine| {
        let (model, dollars) = (machine.model()?, machine.on_demand?);
        let gpu = GpuType::ALL.into_iter().find(|gpu| gpu.model() == Some(model))?;
        Some((gpu, machine.gpus, (dollars * 1e6) as u64))
    });
    priced.collect()
});

/// Cost per hour on demand, in micro-dollars: machines are rented whole. Counts above one machine use machines of
/// eight.
pub(super) fn cost(gpu: GpuType, count: u32) -> u64 {
    let has = |machine: &&(GpuType, u32, u64)| machine.0 == gpu && machine.1 >= count.min(PER_NODE);
    let cheapest = MACHINES.iter().filter(has).map(|(_, _, price)| *price).min();
    cheapest.unwrap_or(u64::MAX).saturating_mul(u64::from(count.div_ceil(PER_NODE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_price_singly_and_by_the_machine() {
        for gpu in GpuType::ALL {
            for count in [1, 2, 4, 8] {
                assert!((1..1_000_000_000).contains(&cost(gpu, count)), "{count} × {gpu:?}");
            }
        }
    }

    #[test]
    fn a_gpu_sold_by_the_machine_costs_the_machine() {
        assert_eq!(cost(GpuType::T4, 1), 530_000);
        assert_eq!(cost(GpuType::H200, 1), cost(GpuType::H200, 8));
        assert_eq!(cost(GpuType::A100Large, 16), 2 * cost(GpuType::A100Large, 8));
    }
}
