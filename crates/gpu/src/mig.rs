//! Profiles and placements of MIG slices.
//!
//! NVML's safe bindings return a slice's identifier, name and memory, but not its placement; `nvidia-smi mig -lgi`
//! prints the placement of each GPU instance. Slices of one profile are interchangeable: each gets any placement of
//! its profile.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::types::MigDevice;

/// Placements on one GPU: profile and first memory slot.
pub(crate) type Placements = Vec<(String, u8)>;

/// The profile in a slice's name: `1g.18gb` in `NVIDIA H200 MIG 1g.18gb`.
pub(crate) fn profile(name: &str) -> Option<String> {
    let (_, profile) = name.rsplit_once("MIG ")?;
    let profile = profile.split_whitespace().next()?;
    profile.contains("g.").then(|| profile.to_owned())
}

/// GiB in a profile's name: 18 for `1g.18gb+me`.
pub(crate) fn profile_gib(profile: &str) -> Option<u64> {
    let (_, memory) = profile.rsplit_once('.')?;
    memory.split("gb").next()?.parse().ok()
}

/// Parses the table of `nvidia-smi mig -lgi`, by GPU index. Lines that are not rows are skipped.
pub(crate) fn placements(text: &str) -> BTreeMap<u32, Placements> {
    let mut found: BTreeMap<u32, Placements> = BTreeMap::new();
    for line in text.lines() {
        if let Some((gpu, profile, start)) = row(line) {
            found.entry(gpu).or_default().push((profile, start));
        }
    }
    found
}

/// `|   0  MIG 1g.5gb          19       13          6:1     |`.
fn row(line: &str) -> Option<(u32, String, u8)> {
    let mut words = line.trim().trim_matches('|').split_whitespace();
    let gpu = words.next()?.parse().ok()?;
    let profile = (words.next()? == "MIG").then(|| words.next())??.to_owned();
    let (start, _size) = words.last()?.split_once(':')?;
    Some((gpu, profile, start.parse().ok()?))
}

/// Assigns each slice a placement: one that the driver reported for its profile, otherwise any free one.
pub(crate) fn place(slices: &mut [MigDevice], reported: &Placements, model: &str, memory: u64) {
    // The A30 alone has four memory slots.
    let slots: u64 = if model.contains("A30") { 4 } else { 8 };
    let mut reported = reported.clone();
    let mut taken = 0_u64;
    let mut rest: Vec<&mut MigDevice> = Vec::new();
    for slice in slices {
        let size = size(slice.memory, memory, slots);
        if let Some(start) = take(&mut reported, &slice.profile) {
            slice.start = start;
            taken |= mask(u64::from(start), size);
        } else {
            rest.push(slice);
        }
    }
    // Large slices can start at few slots only, so they choose first.
    rest.sort_by_key(|slice| Reverse(slice.memory));
    for slice in rest {
        let size = size(slice.memory, memory, slots);
        let free = (0..slots).step_by(size as usize).find(|start| taken & mask(*start, size) == 0);
        slice.start = free.unwrap_or(0) as u8;
        taken |= mask(u64::from(slice.start), size);
    }
}

/// Removes a placement of this profile. A compute instance (`1c.3g.20gb`) shares the placement of its GPU instance.
fn take(reported: &mut Placements, profile: &str) -> Option<u8> {
    let around = profile.split_once("c.").map_or(profile, |(_, around)| around);
    let at = reported.iter().position(|(name, _)| name == around)?;
    Some(if around == profile { reported.swap_remove(at).1 } else { reported[at].1 })
}

/// Memory slots that a slice covers: 1, 2, 4 or 8.
fn size(memory: u64, whole: u64, slots: u64) -> u64 {
    let exact = (memory.saturating_mul(slots) + whole / 2).checked_div(whole).unwrap_or(1);
    exact.clamp(1, slots).next_power_of_two()
}

fn mask(start: u64, size: u64) -> u64 {
    ((1 << size) - 1) << start.min(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
+-------------------------------------------------------+
| GPU instances:                                        |
| GPU   Name             Profile  Instance   Placement  |
|                          ID       ID       Start:Size |
|=======================================================|
|   0  MIG 1g.5gb          19       13          6:1     |
+-------------------------------------------------------+
|   0  MIG 1g.5gb+me       20       14          5:1     |
+-------------------------------------------------------+
|   0  MIG 3g.20gb          9        2          0:4     |
+-------------------------------------------------------+
|   1  MIG 7g.40gb          0        0          0:8     |
+-------------------------------------------------------+
";

    fn slices(list: &[(&str, u64)]) -> Vec<MigDevice> {
        let slice = |&(profile, memory): &(&str, u64)| MigDevice {
            profile: profile.to_owned(),
            memory,
            ..MigDevice::default()
        };
        list.iter().map(slice).collect()
    }

    fn check(list: &[(&str, u64)], reported: &[(&str, u8)], expected: &[u8]) {
        let mut slices = slices(list);
        let reported = reported.iter().map(|(name, start)| ((*name).to_owned(), *start)).collect();
        place(&mut slices, &reported, "NVIDIA A100-SXM4-40GB", 40960);
        let starts: Vec<u8> = slices.iter().map(|slice| slice.start).collect();
        assert_eq!(starts, expected, "{list:?} {reported:?}");
    }

    #[test]
    fn the_table_of_nvidia_smi_is_read() {
        let found = placements(TABLE);
        let of = |list: &[(&str, u8)]| -> Placements {
            list.iter().map(|(name, start)| ((*name).to_owned(), *start)).collect()
        };
        assert_eq!(found[&0], of(&[("1g.5gb", 6), ("1g.5gb+me", 5), ("3g.20gb", 0)]));
        assert_eq!(found[&1], of(&[("7g.40gb", 0)]));
        assert!(placements("No GPU instances found: Not Found\n").is_empty());
        assert!(placements("| x MIG\n|  0 MIG 1g.5gb 1 2 9999:1 |\n| 0 MIG |\n").is_empty());
    }

    #[test]
    fn profiles_are_read_from_names() {
        assert_eq!(profile("NVIDIA H200 MIG 1g.18gb").as_deref(), Some("1g.18gb"));
        assert_eq!(profile("NVIDIA A100 MIG 1c.3g.20gb").as_deref(), Some("1c.3g.20gb"));
        assert_eq!(profile("NVIDIA H200"), None);
        assert_eq!(profile_gib("1g.18gb+me"), Some(18));
        assert_eq!(profile_gib("1c.3g.20gb"), Some(20));
        assert_eq!(profile_gib("odd"), None);
    }

    #[test]
    fn places_come_from_the_driver_where_it_tells_them() {
        check(&[("1g.5gb", 4864), ("3g.20gb", 19968)], &[("3g.20gb", 4), ("1g.5gb", 2)], &[2, 4]);
        check(&[("1c.3g.20gb", 19968), ("1c.3g.20gb", 19968)], &[("3g.20gb", 4)], &[4, 4]);
    }

    #[test]
    fn places_that_the_driver_does_not_tell_are_possible_ones() {
        check(&[("1g.5gb", 4864); 7], &[], &[0, 1, 2, 3, 4, 5, 6]);
        check(&[("1g.5gb", 4864), ("2g.10gb", 9856), ("4g.20gb", 19968)], &[], &[6, 4, 0]);
        check(&[("2g.10gb", 9856), ("1g.5gb", 4864)], &[("1g.5gb", 0)], &[2, 0]);
        check(&[("7g.40gb", 40192)], &[], &[0]);
        check(&[("7g.40gb", 40192), ("odd", 0)], &[], &[0, 0]);
    }
}
