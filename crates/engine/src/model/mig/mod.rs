//! MIG geometry: NVIDIA's placement rules as tables, and a choice of start slot that fragments the GPU least.
//!
//! A GPU in MIG mode is a row of memory slots. A profile covers a run of slots and may start only at the slots
//! that `nvidia-smi mig -lgipp` prints as `{starts}:size`. Instances fit together when their runs do not overlap;
//! a test proves for every arrangement of every table that the sum of their compute slices then fits the GPU.

use std::cmp::Reverse;

/// GPUs with known MIG rules. The engine never partitions other GPUs: a guessed table would allocate slices
/// that the driver rejects.
#[rustfmt::skip] // One row per list.
pub static GEOMETRIES: [Geometry; 7] = [
    Geometry {
        name: "A30-24",
        models: &["a30"],
        device_mib: 24 << 10,
        compute_slices: 4,
        memory_slots: 4,
        profiles: &four(
            ["1g.6gb", "1g.6gb+me", "2g.12gb", "2g.12gb+me", "4g.24gb"],
            [5952, 11968, 24000],
        ),
    },
    Geometry {
        name: "A100-40",
        models: &["a100"],
        device_mib: 40 << 10,
        compute_slices: 7,
        memory_slots: 8,
        profiles: &seven(
            ["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"],
            [4864, 9856, 19968, 40192],
        ),
    },
    Geometry {
        name: "A100-80",
        models: &["a100"],
        device_mib: 80 << 10,
        compute_slices: 7,
        memory_slots: 8,
        profiles: &seven(
            ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"],
            [9728, 19968, 40192, 80896],
        ),
    },
    Geometry {
        name: "H100-80",
        models: &["h100"],
        device_mib: 80 << 10,
        compute_slices: 7,
        memory_slots: 8,
        profiles: &seven(
            ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"],
            [9984, 20096, 40320, 81024],
        ),
    },
    Geometry {
        name: "H100-94",
        models: &["h100"],
        device_mib: 94 << 10,
        compute_slices: 7,
        memory_slots: 8,
        profiles: &seven(
            ["1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"],
            [11008, 22144, 47488, 95360],
        ),
    },
    Geometry {
        name: "H100-96",
        models: &["h100", "gh200"],
        device_mib: 96 << 10,
        compute_slices: 7,
        memory_slots: 8,
        profiles: &seven(
            ["1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"],
            [11264, 23552, 47616, 95232],
        ),
    },
    Geometry {
        name: "H200-141",
        models: &["h200"],
        device_mib: 141 << 10,
        compute_slices: 7,
        memory_slots: 8,
        profiles: &seven(
            ["1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"],
            [16384, 33280, 71424, 143_360],
        ),
    },
];

/// MIG rules of one GPU model and memory size.
#[derive(Debug)]
pub struct Geometry {
    /// Display name, such as `A100-40`.
    pub name: &'static str,
    pub compute_slices: u8,
    pub memory_slots: u8,
    /// From small to large; a [`ProfileId`] is an index into this list.
    pub profiles: &'static [Profile],
    /// Words of a model name that identify this GPU.
    models: &'static [&'static str],
    /// Nominal memory; distinguishes variants of a model.
    device_mib: u64,
}

/// A slice size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// NVIDIA's name, such as `1g.5gb`.
    pub name: &'static str,
    /// Compute slices.
    pub compute: u8,
    /// Memory slots.
    pub slots: u8,
    /// Valid start slots.
    pub starts: &'static [u8],
    /// Memory of an instance: the smallest value that `nvidia-smi mig -lgip` prints on known driver
    /// versions, which differ by up to half a GiB.
    pub memory_mib: u64,
    /// Includes the media extensions (`+me`), which only one instance per GPU can have.
    pub media: bool,
}

/// Index of a profile in one [`Geometry`]; invalid for other geometries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileId(pub u8);

/// Position of one slice. A list of instances is a fixed layout made by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    pub profile: ProfileId,
    /// First memory slot.
    pub start: u8,
}

/// Occupied memory slots and media extensions of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slots {
    mask: u8,
    media_used: bool,
}

/// Canonical name of a profile of any geometry; see [`Geometry::profile`] for accepted spellings.
pub fn known_profile(name: &str) -> Option<&'static str> {
    GEOMETRIES
        .iter()
        .find_map(|geometry| geometry.get(geometry.profile(name)?))
        .map(|profile| profile.name)
}

/// GPU share of a number of compute slices in thousandths, rounded up so that no slice is free of charge. Seven
/// single slices of seven therefore sum to 1001.
pub fn milli(compute: u8, geometry: &Geometry) -> u32 {
    (u32::from(compute) * 1000).div_ceil(u32::from(geometry.compute_slices))
}

impl Geometry {
    /// Geometry of a GPU by model, in the spelling of NVML, a cloud or a user (`NVIDIA A100-SXM4-40GB`,
    /// `nvidia-tesla-a100`, `h100`), and by memory.
    ///
    /// The memory selects the variant, never a number in the name: a `GH200 480GB` reports 97871 MiB.
    /// Devices report slightly less than their nominal size, and users write 40000 for 40 GB, so the
    /// nearest variant within one twentieth is used.
    pub fn for_gpu(model: &str, memory_mib: u64) -> Option<&'static Self> {
        GEOMETRIES
            .iter()
            .filter(|geometry| geometry.is_model(model))
            .map(|geometry| (geometry.device_mib.abs_diff(memory_mib), geometry))
            .filter(|(off, geometry)| *off <= geometry.device_mib / 20)
            .min_by_key(|(off, _)| *off)
            .map(|(_, geometry)| geometry)
    }

    /// Finds a profile by its name or its resource forms `mig-1g.5gb` and `nvidia.com/mig-1g.5gb`. Resource
    /// names cannot contain `+`, so the device plugin writes `1g.5gb.me` for `1g.5gb+me`; both are accepted.
    pub fn profile(&self, name: &str) -> Option<ProfileId> {
        let name = name.strip_prefix("nvidia.com/").unwrap_or(name);
        let name = name.strip_prefix("mig-").unwrap_or(name);
        let index = self.profiles.iter().position(|profile| profile.is_called(name))?;
        Some(ProfileId(index as u8))
    }

    pub fn get(&self, id: ProfileId) -> Option<&'static Profile> {
        self.profiles.get(usize::from(id.0))
    }

    fn is_model(&self, model: &str) -> bool {
        let is_known = |word: &str| self.models.iter().any(|m| m.eq_ignore_ascii_case(word));
        model.split(|c: char| !c.is_ascii_alphanumeric()).any(is_known)
    }
}

impl Slots {
    /// Occupancy of a list of instances; `None` when they cannot coexist on one GPU.
    pub fn of(geometry: &Geometry, instances: &[Instance]) -> Option<Self> {
        let mut slots = Self::default();
        for Instance { profile, start } in instances.iter().copied() {
            if !slots.fits_at(geometry, profile, start) {
                return None;
            }
            slots.take(geometry, profile, start);
        }
        Some(slots)
    }

    pub fn is_free(self) -> bool {
        self.mask == 0
    }

    /// One more instance of this profile fits.
    pub fn fits(self, geometry: &Geometry, profile: ProfileId) -> bool {
        geometry.get(profile).is_some_and(|shape| self.free_starts(shape).next().is_some())
    }

    /// An instance of this profile may start at this slot now.
    pub fn fits_at(self, geometry: &Geometry, profile: ProfileId, start: u8) -> bool {
        geometry.get(profile).is_some_and(|shape| self.allows(shape, start))
    }

    /// The start slot that leaves the most [`room`](Self::room); the lowest among equals. With a fixed layout,
    /// only the layout's instances of this profile qualify.
    ///
    /// The choice never blocks a larger profile where it could block a smaller one. On an empty A100 a `1g`
    /// starts at slot 6, which keeps the `4g` at 0 and all three `2g` positions free. Sequences of `1g` and
    /// `2g` get the positions of NVIDIA's MIG user guide (seven `1g`: 6, 4, 5, 0, 1, 2, 3). Unlike some
    /// drivers, a first `3g` starts at 4 and a first `1g` with double memory at 6, again to keep the `4g` and
    /// the `2g` free.
    ///
    /// The choice is greedy. To keep the `4g` free, two `2g` start at 4 and 0 (and four `1g` at 6, 4, 5 and
    /// 0), which leaves no half for a `3g`; 0 and 2 would. The NVIDIA driver has the same limitation. A caller
    /// that knows all sizes requests the largest first.
    pub fn best_start(
        self,
        geometry: &Geometry,
        profile: ProfileId,
        allowed: Option<&[Instance]>,
    ) -> Option<u8> {
        let shape = geometry.get(profile)?;
        self.free_starts(shape)
            .filter(|&start| {
                allowed.is_none_or(|places| places.contains(&Instance { profile, start }))
            })
            .max_by_key(|&start| (self.with(shape, start).room(geometry), Reverse(start)))
    }

    /// Free start slots per profile, from the largest profile to the smallest, packed into one comparable
    /// number. One more position for a large profile outweighs any number of positions for smaller ones,
    /// because fragmentation destroys large holes. Compare only numbers of the same geometry.
    ///
    /// Positions of one profile never overlap, so their number is also the number of instances that still
    /// fit. Profiles with media extensions do not count: they share the positions of the plain profiles.
    pub fn room(self, geometry: &Geometry) -> u64 {
        geometry
            .profiles
            .iter()
            .rev()
            .filter(|profile| !profile.media)
            .fold(0, |room, profile| (room << 4) | self.free_starts(profile).count() as u64)
    }

    /// Occupies a position that must be free.
    pub fn take(&mut self, geometry: &Geometry, profile: ProfileId, start: u8) {
        debug_assert!(self.fits_at(geometry, profile, start), "{profile:?} at {start} is not free");
        if let Some(shape) = geometry.get(profile) {
            *self = self.with(shape, start);
        }
    }

    /// Frees an occupied position.
    pub fn release(&mut self, geometry: &Geometry, profile: ProfileId, start: u8) {
        if let Some(shape) = geometry.get(profile) {
            let run = shape.run(start);
            debug_assert_eq!(self.mask & run, run, "{profile:?} at {start} was not taken");
            self.mask &= !run;
            self.media_used &= !shape.media;
        }
    }

    fn free_starts(self, shape: &Profile) -> impl Iterator<Item = u8> {
        shape.starts.iter().copied().filter(move |&start| self.allows(shape, start))
    }

    fn allows(self, shape: &Profile, start: u8) -> bool {
        let overlaps = self.mask & shape.run(start) != 0;
        let lacks_media = shape.media && self.media_used;
        shape.starts.contains(&start) && !overlaps && !lacks_media
    }

    fn with(self, shape: &Profile, start: u8) -> Self {
        Self { mask: self.mask | shape.run(start), media_used: self.media_used | shape.media }
    }
}

impl Profile {
    /// Slots of an instance that starts at `start`, as a bit mask.
    fn run(&self, start: u8) -> u8 {
        let run = (1_u16 << self.slots) - 1;
        run.checked_shl(start.into()).unwrap_or(0) as u8
    }

    fn is_called(&self, name: &str) -> bool {
        let stem = self.name.strip_suffix("+me");
        name == self.name || (stem.is_some() && stem == name.strip_suffix(".me"))
    }
}

/// Profiles of a GPU with seven compute slices; `mib` is the memory of one, two, four and all eight slots.
const fn seven(names: [&'static str; 7], mib: [u64; 4]) -> [Profile; 7] {
    const ANY: &[u8] = &[0, 1, 2, 3, 4, 5, 6];
    [
        profile(names[0], [1, 1], ANY, mib[0]),
        media(profile(names[1], [1, 1], ANY, mib[0])),
        profile(names[2], [1, 2], &[0, 2, 4, 6], mib[1]),
        profile(names[3], [2, 2], &[0, 2, 4], mib[1]),
        profile(names[4], [3, 4], &[0, 4], mib[2]),
        profile(names[5], [4, 4], &[0], mib[2]),
        profile(names[6], [7, 8], &[0], mib[3]),
    ]
}

/// Profiles of a GPU with four compute slices; `mib` is the memory of one, two and all four slots.
const fn four(names: [&'static str; 5], mib: [u64; 3]) -> [Profile; 5] {
    [
        profile(names[0], [1, 1], &[0, 1, 2, 3], mib[0]),
        media(profile(names[1], [1, 1], &[0, 1, 2, 3], mib[0])),
        profile(names[2], [2, 2], &[0, 2], mib[1]),
        media(profile(names[3], [2, 2], &[0, 2], mib[1])),
        profile(names[4], [4, 4], &[0], mib[2]),
    ]
}

const fn profile(
    name: &'static str,
    [compute, slots]: [u8; 2],
    starts: &'static [u8],
    memory_mib: u64,
) -> Profile {
    Profile { name, compute, slots, starts, memory_mib, media: false }
}

const fn media(profile: Profile) -> Profile {
    Profile { media: true, ..profile }
}

#[cfg(test)]
mod tests;
