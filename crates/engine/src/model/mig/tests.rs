//! Valid combinations of slices on one GPU, exhaustively per table.

use super::*;
use std::collections::BTreeSet;

#[test]
fn a_geometry_is_found_by_model_spelling_and_memory() {
    let cases = [
        ("NVIDIA A100-SXM4-40GB", 40960, Some("A100-40")),
        ("NVIDIA A100-SXM4-40GB", 40536, Some("A100-40")),
        ("NVIDIA A100 80GB PCIe", 81920, Some("A100-80")),
        ("A100", 81251, Some("A100-80")),
        ("nvidia-tesla-a100", 40000, Some("A100-40")),
        ("NVIDIA-A100-PCIE-40GB", 40960, Some("A100-40")),
        ("NVIDIA A30", 24576, Some("A30-24")),
        ("H100 80GB HBM3", 81559, Some("H100-80")),
        ("h100", 81920, Some("H100-80")),
        ("NVIDIA H100 NVL", 95830, Some("H100-94")),
        ("NVIDIA GH200 480GB", 97871, Some("H100-96")),
        ("NVIDIA H200", 143_771, Some("H200-141")),
        ("NVIDIA H200 NVL", 143_771, Some("H200-141")),
        ("A100", 65536, None),
        ("A100", 0, None),
        ("A100", u64::MAX, None),
        ("NVIDIA A100X", 81920, None),
        ("NVIDIA A10", 24576, None),
        ("NVIDIA GH200 144G HBM3e", 147_456, None),
        ("Tesla V100-SXM2-16GB", 16384, None),
        ("", 40960, None),
    ];
    for (model, memory, expected) in cases {
        let found = Geometry::for_gpu(model, memory).map(|geometry| geometry.name);
        assert_eq!(found, expected, "{model} with {memory} MiB");
    }
}

#[test]
fn a_profile_is_found_by_name_and_resource_name() {
    let cases = [
        ("1g.5gb", Some("1g.5gb")),
        ("mig-1g.5gb", Some("1g.5gb")),
        ("nvidia.com/mig-1g.5gb", Some("1g.5gb")),
        ("1g.5gb+me", Some("1g.5gb+me")),
        ("nvidia.com/mig-1g.5gb.me", Some("1g.5gb+me")),
        ("2g.12gb.me", Some("2g.12gb+me")),
        ("7g.141gb", Some("7g.141gb")),
        ("2g.10gb.me", None),
        ("nvidia.com/gpu", None),
        ("1g.5gb ", None),
        ("mig-", None),
        ("", None),
    ];
    for (name, expected) in cases {
        assert_eq!(known_profile(name), expected, "{name}");
    }
}

#[test]
fn a_share_is_rounded_up() {
    let shares = |name| [1, 2, 3, 4, 7].map(|compute| milli(compute, geometry(name)));
    assert_eq!(shares("A100-40"), [143, 286, 429, 572, 1000]);
    assert_eq!(shares("A30-24")[..4], [250, 500, 750, 1000]);
}

#[test]
fn profile_counts_match_the_mig_user_guide() {
    for geometry in &GEOMETRIES {
        let expected: &[usize] =
            if geometry.compute_slices == 7 { &[7, 1, 4, 3, 2, 1, 1] } else { &[4, 1, 2, 1, 1] };
        let counts: Vec<_> = ids(geometry).map(|id| fill(geometry, id).len()).collect();
        assert_eq!(counts, expected, "{}", geometry.name);
    }
}

#[test]
fn profile_combinations_match_the_mig_user_guide() {
    let cases = [
        ("A100-40", "7g.40gb", true),
        ("A100-40", "4g.20gb 3g.20gb", true),
        ("A100-40", "4g.20gb 2g.10gb 1g.5gb", true),
        ("A100-40", "4g.20gb 1g.5gb 1g.5gb 1g.5gb", true),
        ("A100-40", "3g.20gb 3g.20gb", true),
        ("A100-40", "3g.20gb 2g.10gb 1g.5gb 1g.5gb", true),
        ("A100-40", "2g.10gb 2g.10gb 2g.10gb 1g.5gb", true),
        ("A100-40", "2g.10gb 2g.10gb 2g.10gb 1g.10gb", true),
        ("A100-40", "2g.10gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb", true),
        ("A100-40", "1g.5gb+me 1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb", true),
        ("A100-40", "7g.40gb 1g.5gb", false),
        ("A100-40", "4g.20gb 4g.20gb", false),
        ("A100-40", "4g.20gb 2g.10gb 2g.10gb", false),
        ("A100-40", "3g.20gb 3g.20gb 1g.5gb", false),
        ("A100-40", "3g.20gb 2g.10gb 2g.10gb 1g.5gb", false),
        ("A100-40", "1g.5gb+me 1g.5gb+me", false),
        ("H100-80", "3g.40gb 1g.20gb 1g.10gb 1g.10gb", true),
        ("H100-94", "3g.47gb 1g.24gb 1g.12gb", true),
        ("H100-96", "3g.48gb 2g.24gb 1g.24gb", true),
        ("H200-141", "4g.71gb 1g.35gb 1g.35gb", true),
        ("H200-141", "4g.71gb 1g.35gb 1g.35gb 1g.18gb", false),
        ("A30-24", "2g.12gb 1g.6gb 1g.6gb", true),
        ("A30-24", "2g.12gb+me 2g.12gb", true),
        ("A30-24", "2g.12gb+me 1g.6gb+me", false),
        ("A30-24", "4g.24gb 1g.6gb", false),
    ];
    for (name, profiles, expected) in cases {
        let geometry = geometry(name);
        let wanted: Vec<_> =
            profiles.split(' ').map(|profile| geometry.profile(profile).unwrap()).collect();
        let possible = can_place_all(geometry, Slots::default(), &wanted);
        assert_eq!(possible, expected, "{profiles} on {name}");
    }
}

#[test]
fn no_arrangement_overlaps_or_exceeds_the_gpu() {
    for geometry in &GEOMETRIES {
        for instances in arrangements(geometry) {
            let shapes = instances.iter().map(|i| (geometry.get(i.profile).unwrap(), i.start));
            let mut covered = [0_u8; 8];
            for slot in shapes.clone().flat_map(|(shape, at)| at..at + shape.slots) {
                covered[usize::from(slot)] += 1;
            }
            let compute: u8 = shapes.clone().map(|(shape, _)| shape.compute).sum();
            let slots: u8 = shapes.clone().map(|(shape, _)| shape.slots).sum();
            assert!(covered.iter().all(|&times| times <= 1), "{instances:?}");
            assert!(compute <= geometry.compute_slices, "{instances:?}");
            assert!(slots <= geometry.memory_slots, "{instances:?}");
            assert!(shapes.filter(|(shape, _)| shape.media).count() <= 1, "{instances:?}");
        }
    }
}

#[test]
fn releasing_a_slice_restores_the_slots() {
    for geometry in &GEOMETRIES {
        for instances in arrangements(geometry) {
            let full = Slots::of(geometry, &instances).unwrap();
            for gone in &instances {
                let mut slots = full;
                slots.release(geometry, gone.profile, gone.start);
                let rest: Vec<_> = instances.iter().copied().filter(|i| i != gone).collect();
                assert_eq!(Some(slots), Slots::of(geometry, &rest));
                assert_eq!(slots.is_free(), rest.is_empty());
            }
        }
    }
}

#[test]
fn overlapping_or_unknown_instances_are_invalid() {
    let a100 = geometry("A100-40");
    let place = |name, start| Instance { profile: a100.profile(name).unwrap(), start };
    assert!(Slots::of(a100, &[place("4g.20gb", 0), place("3g.20gb", 4)]).is_some());
    assert!(Slots::of(a100, &[place("4g.20gb", 0), place("1g.5gb", 3)]).is_none());
    assert!(Slots::of(a100, &[place("4g.20gb", 4)]).is_none());
    assert!(Slots::of(a100, &[place("1g.5gb", 255)]).is_none());
    assert!(Slots::of(a100, &[Instance { profile: ProfileId(99), start: 0 }]).is_none());
}

#[test]
fn slice_positions_match_the_mig_user_guide() {
    let cases: [(&[&str], &[u8]); 4] = [
        (&["1g.5gb"; 7], &[6, 4, 5, 0, 1, 2, 3]),
        (&["2g.10gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb"], &[4, 6, 0, 1, 2, 3]),
        (&["3g.20gb", "1g.5gb", "2g.10gb", "1g.5gb"], &[4, 0, 2, 1]),
        (&["1g.5gb", "1g.5gb", "2g.10gb"], &[6, 4, 0]),
    ];
    for (profiles, expected) in cases {
        let a100 = geometry("A100-40");
        let mut slots = Slots::default();
        let place = |name: &&str| {
            let profile = a100.profile(name).unwrap();
            let start = slots.best_start(a100, profile, None).unwrap();
            slots.take(a100, profile, start);
            start
        };
        assert_eq!(profiles.iter().map(place).collect::<Vec<_>>(), expected, "{profiles:?}");
    }
}

#[test]
fn a_first_slice_keeps_the_larger_half_free() {
    let a100 = geometry("A100-80");
    for (name, expected) in [("3g.40gb", 4), ("2g.20gb", 4), ("1g.20gb", 6), ("1g.10gb", 6)] {
        let profile = a100.profile(name).unwrap();
        let start = Slots::default().best_start(a100, profile, None);
        assert_eq!(start, Some(expected), "{name}");
    }
}

/// A greedy choice keeps room for `7g` and `4g` always, on a GPU in use also for `3g` and `2g`, and on an A30 for
/// every profile. See [`Slots::best_start`] for the exceptions.
#[test]
fn equal_slices_block_as_few_profiles_as_possible() {
    for geometry in &GEOMETRIES {
        let states: BTreeSet<_> =
            arrangements(geometry).iter().map(|list| Slots::of(geometry, list)).collect();
        for before in states.into_iter().flatten() {
            let small = match geometry.compute_slices {
                7 if before.is_free() => 4,
                7 => 2,
                _ => 0,
            };
            let large = |slots: Slots| slots.room(geometry) >> (4 * small);
            for profile in ids(geometry) {
                let mut chosen = before;
                let mut others = BTreeSet::from([before]);
                while let Some(start) = chosen.best_start(geometry, profile, None) {
                    chosen.take(geometry, profile, start);
                    others = others.iter().flat_map(|s| next(geometry, *s, profile)).collect();
                    let best = others.iter().map(|other| large(*other)).max();
                    assert_eq!(Some(large(chosen)), best, "{before:?} {profile:?}");
                }
                let more = others.iter().any(|other| other.fits(geometry, profile));
                assert!(!more, "{before:?} {profile:?}");
            }
        }
    }
}

#[test]
fn a_fixed_layout_offers_only_its_instances() {
    let a100 = geometry("A100-40");
    let [one, two, three] =
        ["1g.5gb", "2g.10gb", "3g.20gb"].map(|name| a100.profile(name).unwrap());
    let layout = [(one, 0), (one, 1), (two, 2), (three, 4)]
        .map(|(profile, start)| Instance { profile, start });
    let mut slots = Slots::default();
    assert_eq!(slots.best_start(a100, three, Some(&layout)), Some(4));
    assert_eq!(slots.best_start(a100, one, Some(&[])), None);
    for expected in [Some(0), Some(1), None] {
        let start = slots.best_start(a100, one, Some(&layout));
        assert_eq!(start, expected);
        if let Some(start) = start {
            slots.take(a100, one, start);
        }
    }
    assert!(slots.fits(a100, one), "there is room beside the layout");
}

#[test]
fn tables_are_ordered_and_start_slots_do_not_overlap() {
    for geometry in &GEOMETRIES {
        assert!(geometry.profiles.is_sorted_by_key(|p| (p.slots, p.compute, p.media)));
        for profile in geometry.profiles {
            assert_eq!(profile.media, profile.name.ends_with("+me"));
            assert!(profile.name.starts_with(&format!("{}g.", profile.compute)));
            assert!(profile.starts.windows(2).all(|pair| pair[1] - pair[0] >= profile.slots));
            assert!(profile.starts.iter().all(|at| at + profile.slots <= geometry.memory_slots));
            assert!(profile.memory_mib < geometry.device_mib);
        }
    }
}

fn geometry(name: &str) -> &'static Geometry {
    GEOMETRIES.iter().find(|geometry| geometry.name == name).unwrap()
}

fn ids(geometry: &Geometry) -> impl Iterator<Item = ProfileId> + use<> {
    (0..geometry.profiles.len() as u8).map(ProfileId)
}

/// Places one profile until no more fits.
fn fill(geometry: &Geometry, profile: ProfileId) -> Vec<u8> {
    let mut slots = Slots::default();
    let mut starts = Vec::new();
    while let Some(start) = slots.best_start(geometry, profile, None) {
        slots.take(geometry, profile, start);
        starts.push(start);
    }
    starts
}

/// Every state that one more instance of a profile can lead to.
fn next(geometry: &Geometry, slots: Slots, profile: ProfileId) -> Vec<Slots> {
    let shape = geometry.get(profile).unwrap();
    slots.free_starts(shape).map(|start| slots.with(shape, start)).collect()
}

fn can_place_all(geometry: &Geometry, slots: Slots, wanted: &[ProfileId]) -> bool {
    let Some((first, rest)) = wanted.split_first() else {
        return true;
    };
    next(geometry, slots, *first).into_iter().any(|after| can_place_all(geometry, after, rest))
}

/// Every set of instances that can exist together on one GPU.
fn arrangements(geometry: &Geometry) -> BTreeSet<Vec<Instance>> {
    let mut found = BTreeSet::from([Vec::new()]);
    let mut open = vec![Vec::new()];
    while let Some(instances) = open.pop() {
        let slots = Slots::of(geometry, &instances).unwrap();
        for profile in ids(geometry) {
            for start in slots.free_starts(geometry.get(profile).unwrap()) {
                let mut more = instances.clone();
                more.push(Instance { profile, start });
                more.sort();
                if found.insert(more.clone()) {
                    open.push(more);
                }
            }
        }
    }
    found
}
