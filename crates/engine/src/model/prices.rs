//! Default prices and sizes of GPUs.

use crate::model::name::GpuModel;
use crate::model::units::{MiB, MicroDollars};

/// A GPU model with its defaults.
struct Listed {
    model: &'static str,
    /// Micro-dollars per hour, in the order of magnitude of on-demand clouds. Operators set their own prices.
    price: u64,
    /// MiB that the driver reports; of the smallest variant, unless the name of the model has the size.
    memory: u64,
}

const fn listed(model: &'static str, price: u64, memory: u64) -> Listed {
    Listed { model, price, memory }
}

const LIST: [Listed; 20] = [
    listed("B200", 6_500_000, 183_359),
    listed("H200", 4_000_000, 143_771),
    listed("H100", 3_500_000, 81_559),
    listed("GH200", 3_000_000, 97_871),
    listed("A100", 2_000_000, 40_960),
    listed("L40S", 1_200_000, 46_068),
    listed("L40", 1_000_000, 46_068),
    listed("A40", 800_000, 46_068),
    listed("A30", 700_000, 24_576),
    listed("A10G", 750_000, 23_028),
    listed("A10", 700_000, 23_028),
    listed("L4", 600_000, 23_034),
    listed("V100", 1_500_000, 16_384),
    listed("T4", 350_000, 15_360),
    listed("RTX 5090", 900_000, 32_607),
    listed("RTX 4090", 600_000, 24_564),
    listed("RTX 4080", 400_000, 16_376),
    listed("RTX 3090", 300_000, 24_576),
    listed("RTX A6000", 800_000, 49_140),
    listed("RTX 6000", 1_000_000, 49_140),
];

fn find(model: &str) -> Option<&'static Listed> {
    let model = GpuModel::from(model);
    LIST.iter().find(|known| model.serves(&GpuModel::from(known.model)))
}

/// Default hourly price of a GPU model; `None` for unlisted models.
pub fn list_price(model: &str) -> Option<MicroDollars> {
    find(model).map(|known| MicroDollars(known.price))
}

/// Memory of a GPU model: the size in its name, such as `80GB`, else of the smallest variant; `None` for unlisted
/// models.
pub fn list_memory(model: &str) -> Option<MiB> {
    let known = find(model)?;
    let gib = model.split([' ', '-', '_', '/']).find_map(|word| {
        let (digits, unit) = word.split_at_checked(word.len().checked_sub(2)?)?;
        digits.parse::<u64>().ok().filter(|_| unit.eq_ignore_ascii_case("GB"))
    });
    Some(MiB(gib.filter(|gib| *gib < 1024).map_or(known.memory, |gib| gib * 1024)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_listed_by_the_words_of_its_name() {
        assert_eq!(list_price("NVIDIA A100-SXM4-40GB"), Some(MicroDollars(2_000_000)));
        assert_eq!(list_price("NVIDIA A10"), Some(MicroDollars(700_000)));
        assert_eq!(list_price("NVIDIA GeForce RTX 4090"), Some(MicroDollars(600_000)));
        assert_eq!(list_price("Quadro K2000"), None);
    }

    #[test]
    fn the_memory_of_a_model_is_in_its_name_or_that_of_the_smallest_variant() {
        assert_eq!(list_memory("NVIDIA A100-SXM4-80GB"), Some(MiB(81_920)));
        assert_eq!(list_memory("a100"), Some(MiB(40_960)));
        assert_eq!(list_memory("RTX 4090"), Some(MiB(24_564)));
        assert_eq!(list_memory("Quadro 8GB"), None);
    }
}
