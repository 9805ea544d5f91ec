//! Where the slices of a GPU in MIG mode may lie: NVIDIA's rules as tables, and a choice of place
//! that breaks up as little of the GPU as possible.
//!
//! A GPU in MIG mode is a row of memory slots. A profile covers a run of them and may begin only
//! at a few of them, exactly those that `nvidia-smi mig -lgipp` prints as `{starts}:size`. Two
//! instances fit together when their runs do not overlap; that alone also keeps the sum of their
//! compute slices within the GPU, which a test proves for every arrangement of every table.

use std::cmp::Reverse;

/// Every GPU whose rules are known. A GPU that is not here is never cut into slices: a guessed
/// table would promise places that the driver refuses.
#[rustfmt::skip] // One row for each list.
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

/// How one kind of GPU can be cut.
#[derive(Debug)]
pub struct Geometry {
    /// A name for people, such as `A100-40`.
    pub name: &'static str,
    /// How many compute slices the GPU has in all.
    pub compute_slices: u8,
    /// How many memory slots the GPU has in all.
    pub memory_slots: u8,
    /// The profiles from small to large; a [`ProfileId`] is a place in this list.
    pub profiles: &'static [Profile],
    /// Words of a model name that mean this GPU.
    models: &'static [&'static str],
    /// The memory that tells the variants of a model apart.
    device_mib: u64,
}

/// One size of slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// NVIDIA's name, such as `1g.5gb`.
    pub name: &'static str,
    /// Compute slices it takes.
    pub compute: u8,
    /// Memory slots it covers.
    pub slots: u8,
    /// The slots at which it may begin.
    pub starts: &'static [u8],
    /// Memory of an instance. Drivers differ by up to half a GiB; this is the least that
    /// `nvidia-smi mig -lgip` was seen to print, so that what is promised is there.
    pub memory_mib: u64,
    /// Carries the GPU's media extensions (`+me`), which only one instance can have.
    pub media: bool,
}

/// A profile of one [`Geometry`]; an id of another geometry fits nowhere or means another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileId(pub u8);

/// A place for one slice. A list of these is a fixed layout, already carved by an operator: only
/// its places may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// Its size.
    pub profile: ProfileId,
    /// Its first memory slot.
    pub start: u8,
}

/// Which memory slots of one GPU are taken, and whether its media extensions are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slots {
    mask: u8,
    media_used: bool,
}

/// The canonical name of a profile that some GPU has; see [`Geometry::profile`] for spellings.
pub fn known_profile(name: &str) -> Option<&'static str> {
    GEOMETRIES
        .iter()
        .find_map(|geometry| geometry.get(geometry.profile(name)?))
        .map(|profile| profile.name)
}

/// Whether some GPU has this profile.
pub fn profile_known(name: &str) -> bool {
    known_profile(name).is_some()
}

/// The share of a GPU that so many compute slices are, in thousandths and rounded up: a share is
/// never free. Seven slices of a seventh each therefore sum to 1001, not 1000.
pub fn milli(compute: u8, geometry: &Geometry) -> u32 {
    (u32::from(compute) * 1000).div_ceil(u32::from(geometry.compute_slices))
}

impl Geometry {
    /// The rules of a GPU, from the model as the driver, a cloud or a person writes it
    /// (`NVIDIA A100-SXM4-40GB`, `nvidia-tesla-a100`, `h100`) and its memory.
    ///
    /// The memory decides between variants, never a number in the name: a `GH200 480GB` reports
    /// 97871 MiB. Devices report a little less than their nominal size, and people write 40000
    /// for 40 GB, so the nearest variant within one twentieth is taken.
    pub fn for_gpu(model: &str, memory_mib: u64) -> Option<&'static Self> {
        GEOMETRIES
            .iter()
            .filter(|geometry| geometry.is_model(model))
            .map(|geometry| (geometry.device_mib.abs_diff(memory_mib), geometry))
            .filter(|(off, geometry)| *off <= geometry.device_mib / 20)
            .min_by_key(|(off, _)| *off)
            .map(|(_, geometry)| geometry)
    }

    /// Finds a profile by name, also in its resource forms `mig-1g.5gb` and
    /// `nvidia.com/mig-1g.5gb`. Resource names cannot hold a `+`, so there the device plugin
    /// writes `1g.5gb.me`; that is accepted for `1g.5gb+me` too.
    pub fn profile(&self, name: &str) -> Option<ProfileId> {
        let name = name.strip_prefix("nvidia.com/").unwrap_or(name);
        let name = name.strip_prefix("mig-").unwrap_or(name);
        let index = self.profiles.iter().position(|profile| profile.is_called(name))?;
        Some(ProfileId(index as u8))
    }

    /// The profile behind an id, if this geometry has it.
    pub fn get(&self, id: ProfileId) -> Option<&'static Profile> {
        self.profiles.get(usize::from(id.0))
    }

    fn is_model(&self, model: &str) -> bool {
        let is_known = |word: &str| self.models.iter().any(|m| m.eq_ignore_ascii_case(word));
        model.split(|c: char| !c.is_ascii_alphanumeric()).any(is_known)
    }
}

impl Slots {
    /// The occupancy that a list of instances makes; `None` when they cannot all exist on one GPU.
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

    /// Whether nothing is taken.
    pub fn is_free(self) -> bool {
        self.mask == 0
    }

    /// Whether there is a place for one more of this profile.
    pub fn fits(self, geometry: &Geometry, profile: ProfileId) -> bool {
        geometry.get(profile).is_some_and(|shape| self.free_starts(shape).next().is_some())
    }

    /// Whether this profile may begin at this slot now.
    pub fn fits_at(self, geometry: &Geometry, profile: ProfileId, start: u8) -> bool {
        geometry.get(profile).is_some_and(|shape| self.allows(shape, start))
    }

    /// The place that afterwards leaves the most [`room`](Self::room), the lowest among equals.
    /// With a fixed layout only its places for this profile count.
    ///
    /// This never blocks a larger profile where it could block a smaller one. On an empty A100 a
    /// `1g` goes to slot 6: that spares the `4g` at 0 and all three places for a `2g`. Sequences
    /// of `1g` and `2g` take the places that NVIDIA's driver gives them in the examples of its MIG
    /// user guide (seven `1g`: 6, 4, 5, 0, 1, 2, 3). Unlike some drivers, it puts a first `3g` at
    /// 4 and a first `1g` with double memory at 6, again to spare the `4g` and the `2g`.
    ///
    /// Not knowing what comes next has a price. Sparing the `4g` for as long as possible puts two
    /// `2g` at 4 and 0 (and four `1g` at 6, 4, 5 and 0), which leaves no half for a `3g`; 0 and 2
    /// would have. The driver pays the same; who knows all the sizes asks for the largest first.
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

    /// How much could still be placed: the number of free places of each profile, from the largest
    /// profile to the smallest, as one number whose order is that of the list. One more place for
    /// a large profile outweighs any number of places for smaller ones, because large holes are
    /// what fragmentation destroys. Only numbers of the same geometry can be compared.
    ///
    /// Places of one profile never overlap, so their number is also how many instances of it would
    /// still fit. Profiles with media extensions do not count: they lie where their plain twins do.
    pub fn room(self, geometry: &Geometry) -> u64 {
        geometry
            .profiles
            .iter()
            .rev()
            .filter(|profile| !profile.media)
            .fold(0, |room, profile| (room << 4) | self.free_starts(profile).count() as u64)
    }

    /// Occupies a place, which must be free.
    pub fn take(&mut self, geometry: &Geometry, profile: ProfileId, start: u8) {
        debug_assert!(self.fits_at(geometry, profile, start), "{profile:?} at {start} is not free");
        if let Some(shape) = geometry.get(profile) {
            *self = self.with(shape, start);
        }
    }

    /// Frees a place that was taken.
    pub fn give(&mut self, geometry: &Geometry, profile: ProfileId, start: u8) {
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
    /// The slots that an instance beginning at `start` covers, as bits.
    fn run(&self, start: u8) -> u8 {
        let run = (1_u16 << self.slots) - 1;
        run.checked_shl(start.into()).unwrap_or(0) as u8
    }

    fn is_called(&self, name: &str) -> bool {
        let stem = self.name.strip_suffix("+me");
        name == self.name || (stem.is_some() && stem == name.strip_suffix(".me"))
    }
}

/// The profiles of a GPU with seven compute slices; memory for one, two, four and all eight slots.
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

/// The profiles of a GPU with four compute slices; memory for one, two and all four slots.
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
