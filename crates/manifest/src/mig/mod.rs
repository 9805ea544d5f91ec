//! MIG layouts: the possible layouts of a GPU, and the nearest one to an impossible layout.
//!
//! Uses the engine's geometry tables: a generated layout is one that the scheduler can place.

mod config;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::LazyLock;

use agentaflow_engine::mig::{GEOMETRIES, Geometry, ProfileId, Slots};

use crate::cloud::{Gpu, gpu_named};

pub use config::{MigParted, Sharing, SharingMode};

/// Slices per profile of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Layout(pub BTreeMap<&'static str, u32>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigError {
    /// The GPU has no MIG support, or its geometry is unknown.
    #[error("no MIG geometry is known for `{0}`: use {known}", known = known_gpus())]
    Gpu(String),
    /// No such profile on this GPU.
    #[error("an {gpu} has no profile `{profile}`: use {known}")]
    Profile { gpu: &'static str, profile: String, known: String },
    /// The slices do not fit together.
    #[error("an {gpu} cannot have the layout {asked}; the nearest possible layout is {nearest}")]
    Layout { gpu: &'static str, asked: Layout, nearest: Layout },
}

/// Geometry of a GPU by any of its names: `a100`, `a100-80`, `H100-94`, `nvidia-a30`.
pub fn geometry(name: &str) -> Result<&'static Geometry, MigError> {
    let exact = GEOMETRIES.iter().find(|geometry| geometry.name.eq_ignore_ascii_case(name));
    let by_model = || gpu_named(name).and_then(rules);
    exact.or_else(by_model).ok_or_else(|| MigError::Gpu(name.chars().take(64).collect()))
}

/// MIG request of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    /// The canonical name of the profile.
    pub profile: &'static str,
    pub count: u32,
}

impl Slices {
    /// GPUs of a model needed for the slices.
    pub fn gpus(self, gpu: &Gpu) -> Result<u32, MigError> {
        let geometry = rules(gpu).ok_or_else(|| MigError::Gpu(gpu.name.to_owned()))?;
        let id = geometry.profile(self.profile).ok_or_else(|| unknown(geometry, self.profile))?;
        // Slices of one size fit best if each starts at the lowest possible slot.
        let mut slots = Slots::default();
        let mut most = 0;
        for start in 0..geometry.memory_slots {
            if slots.fits_at(geometry, id, start) {
                slots.take(geometry, id, start);
                most += 1;
            }
        }
        Ok(self.count.div_ceil(most.max(1)))
    }

    /// True if the model has this profile.
    pub fn are_of(self, gpu: &Gpu) -> bool {
        self.gpus(gpu).is_ok()
    }
}

/// Geometry of a model; none if the model has no MIG or its geometry is unknown.
pub fn rules(gpu: &Gpu) -> Option<&'static Geometry> {
    Geometry::for_gpu(gpu.family(), u64::from(gpu.memory_gib) << 10)
}

/// All possible layouts, regardless of the placement of slices.
pub fn layouts(geometry: &'static Geometry) -> BTreeSet<Layout> {
    let mut found = BTreeSet::new();
    extend(geometry, 0, Slots::default(), &Layout::default(), &mut found);
    found
}

/// Checks a layout, given as profiles in any spelling with their counts.
pub fn check<'a>(
    geometry: &'static Geometry,
    asked: impl IntoIterator<Item = (&'a str, u32)>,
) -> Result<Layout, MigError> {
    let mut layout = Layout::default();
    for (profile, count) in asked {
        let known = geometry.profile(profile).and_then(|id| geometry.get(id));
        let name = known.map(|profile| profile.name).ok_or_else(|| unknown(geometry, profile))?;
        let sum = layout.0.entry(name).or_default();
        *sum = sum.saturating_add(count);
    }
    layout.0.retain(|_, count| *count > 0);
    let all = layouts(geometry);
    if all.contains(&layout) {
        return Ok(layout);
    }
    let nearest = nearest(geometry, &layout, all).unwrap_or_default();
    Err(MigError::Layout { gpu: geometry.name, asked: layout, nearest })
}

/// The name of the resource that counts slices of a profile: `nvidia.com/mig-1g.5gb`.
pub fn resource(profile: &str) -> String {
    format!("nvidia.com/mig-{}", profile.replace("+me", ".me"))
}

/// Profiles of GPUs with unknown geometry, which must not be reported as wrong. One row each: RTX PRO 6000, B200 and
/// GB200, GH200 with 144 GB, B300, GB300.
#[rustfmt::skip] // One row for each GPU.
const LATER: [&str; 45] = [
    "1g.24gb", "1g.24gb.gfx", "1g.24gb.me", "1g.24gb.me.all", "1g.24gb-me", "2g.48gb", "2g.48gb.gfx", "2g.48gb.me.all", "2g.48gb-me", "4g.96gb", "4g.96gb.gfx",
    "1g.23gb", "1g.23gb.me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb", "3g.95gb", "4g.95gb", "7g.189gb",
    "1g.36gb", "2g.36gb", "3g.72gb", "4g.72gb", "7g.144gb",
    "1g.34gb", "1g.34gb.me", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb",
    "1g.35gb", "1g.35gb.me", "1g.70gb", "2g.70gb", "3g.139gb", "4g.139gb", "7g.278gb",
];

/// True if a profile, in any spelling, belongs to a GPU with unknown geometry.
pub fn is_of_unknown_layout(profile: &str) -> bool {
    LATER.contains(&profile.replace('+', ".").as_str())
}

/// Every profile that some GPU has, as resources are named after it: `1g.5gb`, `1g.5gb.me`.
pub fn profiles() -> impl Iterator<Item = &'static str> {
    static KNOWN: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let all = GEOMETRIES.iter().flat_map(|geometry| geometry.profiles);
        all.map(|profile| profile.name.replace("+me", ".me")).collect()
    });
    KNOWN.iter().map(String::as_str).chain(LATER)
}

/// Description of a profile on each matching GPU: `1 of 7 compute slices and 4.8 GiB of an A100-40`.
pub fn explain(profile: &str, is_meant: impl Fn(&Geometry) -> bool) -> Option<String> {
    let mut parts = Vec::new();
    for geometry in GEOMETRIES.iter().filter(|geometry| is_meant(geometry)) {
        let Some(found) = geometry.profile(profile).and_then(|id| geometry.get(id)) else {
            continue;
        };
        let gib = found.memory_mib as f64 / 1024.0;
        let of = geometry.compute_slices;
        parts.push(format!(
            "{} of {of} compute slices and {gib:.1} GiB of an {}",
            found.compute, geometry.name
        ));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no slices");
        }
        let mut text = String::new();
        for (profile, count) in self.0.iter().rev() {
            let separator = if text.is_empty() { "" } else { " + " };
            write!(text, "{separator}{count} × {profile}")?;
        }
        f.write_str(&text)
    }
}

/// Tries every slice that may start at a slot, and no slice, then continues with the next slot.
fn extend(
    geometry: &'static Geometry,
    at: u8,
    slots: Slots,
    layout: &Layout,
    found: &mut BTreeSet<Layout>,
) {
    if at >= geometry.memory_slots {
        if !layout.0.is_empty() {
            found.insert(layout.clone());
        }
        return;
    }
    extend(geometry, at + 1, slots, layout, found);
    for (index, profile) in geometry.profiles.iter().enumerate() {
        let id = ProfileId(index as u8);
        if slots.fits_at(geometry, id, at) {
            let (mut slots, mut layout) = (slots, layout.clone());
            slots.take(geometry, id, at);
            *layout.0.entry(profile.name).or_default() += 1;
            extend(geometry, at + profile.slots, slots, &layout, found);
        }
    }
}

/// The layout that differs by the fewest memory slots; among equals the one that uses most of the GPU.
fn nearest(geometry: &'static Geometry, asked: &Layout, all: BTreeSet<Layout>) -> Option<Layout> {
    all.into_iter().min_by_key(|layout| {
        let mut off: u64 = 0;
        let mut used: u64 = 0;
        for profile in geometry.profiles {
            let count = |layout: &Layout| layout.0.get(profile.name).copied().unwrap_or(0);
            let (here, wanted) = (count(layout), count(asked));
            off += u64::from(here.abs_diff(wanted)) * u64::from(profile.slots);
            used += u64::from(here) * u64::from(profile.compute);
        }
        (off, std::cmp::Reverse(used))
    })
}

fn unknown(geometry: &'static Geometry, profile: &str) -> MigError {
    let known: Vec<_> = geometry.profiles.iter().map(|profile| profile.name).collect();
    let profile = profile.chars().take(64).collect();
    MigError::Profile { gpu: geometry.name, profile, known: known.join(", ") }
}

fn known_gpus() -> String {
    let names: Vec<_> = GEOMETRIES.iter().map(|geometry| geometry.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests;
