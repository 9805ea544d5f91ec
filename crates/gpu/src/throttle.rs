//! Names of NVML's throttle reasons, which `nvidia-smi` prints as the same bits.

/// Bit and name. Bit 0, "GPU idle", is left out: an idle GPU is not throttled.
const REASONS: [(u64, &str); 8] = [
    (0x002, "clock setting"),
    (0x004, "power cap"),
    (0x008, "hardware slowdown"),
    (0x010, "sync boost"),
    (0x020, "thermal"),
    (0x040, "thermal (hardware)"),
    (0x080, "power brake"),
    (0x100, "display clock setting"),
];

/// Names of the set bits; unknown bits are ignored.
pub(crate) fn reasons(bits: u64) -> Vec<String> {
    REASONS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, word)| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_gpu_is_not_throttled_and_unknown_bits_are_left_out() {
        for (bits, expected) in [
            (0, vec![]),
            (0x1, vec![]),
            (0x4, vec!["power cap"]),
            (0x68, vec!["hardware slowdown", "thermal", "thermal (hardware)"]),
            (0x8000_0000_0000_0080, vec!["power brake"]),
        ] {
            assert_eq!(reasons(bits), expected, "{bits:#x}");
        }
    }
}
