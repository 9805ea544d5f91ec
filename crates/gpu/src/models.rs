//! GPU models of the simulation, by name.

/// Properties of a model as its driver reports them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Model {
    /// Lower-case letters and digits only, without `nvidia`, `tesla` and `geforce`.
    pub(crate) names: &'static [&'static str],
    /// MiB, as `nvidia-smi` prints them.
    pub(crate) memory: u64,
    /// Watts.
    pub(crate) power_limit: f64,
    /// Watts.
    pub(crate) idle_power: f64,
    /// MHz, idle and maximum.
    pub(crate) sm_clock: (u32, u32),
    /// MHz, idle and under load.
    pub(crate) memory_clock: (u32, u32),
    /// Cards of this model in one machine usually share NVLink.
    pub(crate) nvlink: bool,
}

const fn model(
    names: &'static [&'static str],
    memory: u64,
    power: (f64, f64),
    sm_clock: (u32, u32),
    memory_clock: (u32, u32),
    nvlink: bool,
) -> Model {
    Model {
        names,
        memory,
        idle_power: power.0,
        power_limit: power.1,
        sm_clock,
        memory_clock,
        nvlink,
    }
}

/// Several entries may share a name: the first is the default, the memory size selects another.
#[rustfmt::skip] // One row for each.
const MODELS: [Model; 27] = [
    model(&["b200"], 183_359, (140.0, 1_000.0), (120, 1_965), (3_996, 3_996), true),
    model(&["h200", "h200sxm", "h200141gb"], 143_771, (75.0, 700.0), (345, 1_980), (3_201, 3_201), true),
    model(&["h200nvl"], 143_771, (75.0, 600.0), (345, 1_785), (3_201, 3_201), true),
    model(&["gh200", "gh200480gb"], 97_871, (90.0, 900.0), (345, 1_980), (2_619, 2_619), true),
    model(&["h100", "h100sxm", "h10080gbhbm3", "h10080gb"], 81_559, (70.0, 700.0), (345, 1_980), (2_619, 2_619), true),
    model(&["h100pcie", "h100"], 81_559, (50.0, 350.0), (345, 1_755), (1_593, 1_593), false),
    model(&["h100nvl", "h100"], 95_830, (60.0, 400.0), (345, 1_785), (2_619, 2_619), true),
    model(&["a100", "a10040gb", "a100sxm440gb", "a100sxm"], 40_960, (55.0, 400.0), (210, 1_410), (1_215, 1_215), true),
    model(&["a100", "a10080gb", "a100sxm480gb"], 81_920, (60.0, 400.0), (210, 1_410), (1_593, 1_593), true),
    model(&["a100pcie", "a100pcie40gb"], 40_960, (40.0, 250.0), (210, 1_410), (1_215, 1_215), false),
    model(&["a100pcie80gb", "a10080gbpcie"], 81_920, (45.0, 300.0), (210, 1_410), (1_512, 1_512), false),
    model(&["a30"], 24_576, (30.0, 165.0), (210, 1_440), (1_215, 1_215), false),
    model(&["a10g"], 23_028, (18.0, 300.0), (210, 1_710), (405, 6_251), false),
    model(&["a10"], 23_028, (17.0, 150.0), (210, 1_695), (405, 6_251), false),
    model(&["a40"], 46_068, (30.0, 300.0), (210, 1_740), (405, 7_251), false),
    model(&["a6000", "rtxa6000"], 49_140, (22.0, 300.0), (210, 2_100), (405, 8_001), false),
    model(&["rtx6000ada", "rtx6000adageneration", "6000ada"], 49_140, (25.0, 300.0), (210, 3_105), (405, 10_001), false),
    model(&["l40s"], 46_068, (33.0, 350.0), (210, 2_520), (405, 9_001), false),
    model(&["l40"], 46_068, (33.0, 300.0), (210, 2_490), (405, 9_001), false),
    model(&["l4"], 23_034, (13.0, 72.0), (210, 2_040), (405, 6_251), false),
    model(&["t4"], 15_360, (9.0, 70.0), (300, 1_590), (405, 5_001), false),
    model(&["v100", "v10016gb", "v100sxm216gb"], 16_384, (40.0, 300.0), (135, 1_530), (877, 877), true),
    model(&["v100", "v10032gb", "v100sxm232gb"], 32_768, (42.0, 300.0), (135, 1_530), (877, 877), true),
    model(&["p100", "p100pcie16gb"], 16_384, (26.0, 250.0), (405, 1_328), (715, 715), false),
    model(&["rtx5090", "5090"], 32_607, (20.0, 575.0), (180, 2_910), (405, 14_001), false),
    model(&["rtx4090", "4090"], 24_564, (18.0, 450.0), (210, 2_745), (405, 10_501), false),
    model(&["rtx3090", "3090"], 24_576, (22.0, 350.0), (210, 1_965), (405, 9_751), false),
];

/// Properties assumed for an unknown model: a mid-range card.
const UNKNOWN: Model = model(&[], 0, (25.0, 250.0), (210, 1_700), (405, 6_000), false);

/// Power limit in watts of a known model.
pub fn power_limit(name: &str, memory: Option<u64>) -> Option<f64> {
    find(name, memory).map(|model| model.power_limit)
}

/// Model with this name; among variants, the one nearest to `memory`.
pub(crate) fn find(name: &str, memory: Option<u64>) -> Option<Model> {
    let name = canonical(name);
    let mut found: Vec<&Model> = MODELS.iter().filter(|m| m.names.contains(&&*name)).collect();
    if let Some(memory) = memory {
        // The sort is stable: at equal distance the order of the table decides.
        found.sort_by_key(|model| model.memory.abs_diff(memory));
    }
    found.first().map(|model| **model)
}

/// Unknown model with this much memory.
pub(crate) fn unknown(memory: u64) -> Model {
    Model { memory, ..UNKNOWN }
}

/// Examples for error messages.
pub(crate) const EXAMPLES: &str = "H200, H100, A100, L40S, L4, A10, T4, V100, RTX 4090";

fn canonical(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let mut rest = String::new();
    for word in name.split(|c: char| !c.is_ascii_alphanumeric()) {
        if !matches!(word, "nvidia" | "tesla" | "geforce") {
            rest.push_str(word);
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_under_its_common_names() {
        for (name, memory, expected) in [
            ("H200", None, Some(143_771)),
            ("nvidia h200", None, Some(143_771)),
            ("NVIDIA A100", None, Some(40_960)),
            ("A100", Some(80 << 10), Some(81_920)),
            ("NVIDIA A100-SXM4-80GB", None, Some(81_920)),
            ("NVIDIA A100 80GB PCIe", None, Some(81_920)),
            ("NVIDIA H100 80GB HBM3", None, Some(81_559)),
            ("Tesla T4", None, Some(15_360)),
            ("tesla-v100", None, Some(16_384)),
            ("Tesla V100-SXM2-32GB", None, Some(32_768)),
            ("NVIDIA GeForce RTX 4090", None, Some(24_564)),
            ("L4", None, Some(23_034)),
            ("Voodoo 2", None, None),
            ("", None, None),
        ] {
            assert_eq!(find(name, memory).map(|model| model.memory), expected, "{name}");
        }
    }

    #[test]
    fn every_model_is_believable_and_reachable() {
        for model in MODELS {
            assert!(model.idle_power < model.power_limit / 2.0, "{model:?}");
            assert!(model.sm_clock.0 < model.sm_clock.1, "{model:?}");
            assert!(model.memory_clock.0 <= model.memory_clock.1, "{model:?}");
            for name in model.names {
                assert_eq!(canonical(name), *name);
                assert!(find(name, Some(model.memory)).is_some_and(|m| m.memory == model.memory));
            }
        }
    }
}
