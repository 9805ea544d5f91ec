//! Default GPU prices.

use crate::model::name::GpuModel;
use crate::model::units::MicroDollars;

/// Micro-dollars per hour, in the order of magnitude of on-demand clouds. Operators set their own prices.
const LIST: [(&str, u64); 14] = [
    ("B200", 6_500_000),
    ("H200", 4_000_000),
    ("H100", 3_500_000),
    ("GH200", 3_000_000),
    ("A100", 2_000_000),
    ("L40S", 1_200_000),
    ("L40", 1_000_000),
    ("A40", 800_000),
    ("A30", 700_000),
    ("A10G", 750_000),
    ("A10", 700_000),
    ("L4", 600_000),
    ("V100", 1_500_000),
    ("T4", 350_000),
];

/// Default hourly price of a GPU model; `None` for unlisted models.
pub fn list_price(model: &str) -> Option<MicroDollars> {
    let model = GpuModel::from(model);
    let known = LIST.iter().find(|(name, _)| model.serves(&GpuModel::from(*name)));
    known.map(|(_, price)| MicroDollars(*price))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_listed_by_the_words_of_its_name() {
        assert_eq!(list_price("NVIDIA A100-SXM4-40GB"), Some(MicroDollars(2_000_000)));
        assert_eq!(list_price("NVIDIA A10"), Some(MicroDollars(700_000)));
        assert_eq!(list_price("RTX 4090"), None);
    }
}
