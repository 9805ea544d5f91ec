//! The free resources of a node: the only node state that placements change.
//!
//! Scoring reads nothing else, and planning works on copies, so the struct is small. Amounts are signed:
//! foreign use may exceed capacity.

use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::mig::{Geometry, Instance, ProfileId, Slots};
use crate::model::name::TokenName;
use crate::model::request::TokenAccess;
use crate::state::cluster::fit;

/// Dense index of a GPU model.
pub(crate) type ModelIdx = u16;
/// Dense index of a named resource.
pub(crate) type ResIdx = u32;

/// Amounts of a node or a task besides GPUs: thousandths of cores, MiB of memory, MiB of storage, tasks.
pub(crate) type NodeAmounts = [i64; 4];

/// Indexes into [`NodeAmounts`].
pub(crate) const CPU: usize = 0;
pub(crate) const MEMORY: usize = 1;
pub(crate) const STORAGE: usize = 2;
pub(crate) const TASKS: usize = 3;

pub(crate) const NO_LINK: u16 = u16::MAX;

/// Thousandths of a GPU.
pub(crate) const WHOLE: i32 = 1000;

/// One GPU and its free share.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) milli: i32,
    pub(crate) mib: i32,
    pub(crate) total: i32,
    pub(crate) model: ModelIdx,
    pub(crate) users: u16,
    pub(crate) link: u16,
    /// In steps of five percent.
    pub(crate) utilization: u8,
    /// Healthy, not cordoned.
    pub(crate) open: bool,
    pub(crate) exclusive: u16,
    /// A request for a share takes the whole device.
    pub(crate) whole_only: bool,
    pub(crate) slots: Slots,
    /// Set in MIG mode.
    pub(crate) geometry: Option<&'static Geometry>,
    /// Fixed MIG layout.
    pub(crate) layout: Option<Arc<[Instance]>>,
}

impl Device {
    /// Unused, available and outside MIG mode.
    pub(crate) fn is_free(&self) -> bool {
        self.open && self.users == 0 && self.milli >= WHOLE && self.geometry.is_none()
    }

    /// Best start slot for a slice of this profile.
    pub(crate) fn place_for(&self, profile: ProfileId, slots: Slots) -> Option<u8> {
        slots.best_start(self.geometry?, profile, self.layout.as_deref())
    }

    /// Thousandths and memory of a slice, rounded down so that all slices together fit the device, which may
    /// report slightly less memory than the sum of its profiles.
    pub(crate) fn slice(&self, profile: ProfileId) -> Option<(i32, i32)> {
        let geometry = self.geometry?;
        let shape = geometry.get(profile)?;
        let part =
            i64::from(self.total) * i64::from(shape.slots) / i64::from(geometry.memory_slots);
        let milli = i32::from(shape.compute) * WHOLE / i32::from(geometry.compute_slices);
        Some((milli, part.min(shape.memory_mib as i64) as i32))
    }

    pub(crate) fn is_shareable(&self) -> bool {
        self.open && self.exclusive == 0 && self.geometry.is_none()
    }
}

/// Share of one device in a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceClaim {
    pub(crate) device: u16,
    pub(crate) exclusive: bool,
    pub(crate) model: ModelIdx,
    pub(crate) milli: i32,
    pub(crate) mib: i32,
    pub(crate) slice: Option<(ProfileId, u8)>,
}

impl DeviceClaim {
    /// Thousandths charged to the quota: an exclusive share counts as a whole GPU.
    pub(crate) fn charge(&self) -> i64 {
        if self.exclusive { i64::from(WHOLE) } else { i64::from(self.milli) }
    }
}

/// Resources of a task besides GPUs; equal for all tasks of a shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) amounts: NodeAmounts,
    pub(crate) named: Vec<(ResIdx, i64)>,
    pub(crate) tokens: Vec<(TokenName, TokenAccess)>,
}

/// Resources of a task on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) need: Arc<Need>,
    pub(crate) devices: SmallVec<[DeviceClaim; 1]>,
}

/// Number of holders of a token on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenHolders {
    pub(crate) exclusive: u32,
    pub(crate) shared: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    pub(crate) free: NodeAmounts,
    pub(crate) total: NodeAmounts,
    /// Number of unused devices.
    pub(crate) whole: u16,
    /// The node takes new tasks.
    pub(crate) open: bool,
    /// All devices have the same model, memory and MIG mode.
    pub(crate) uniform: bool,
    /// Largest free share and memory of a shareable device.
    pub(crate) most_milli: i32,
    pub(crate) most_mib: i32,
    /// Sums over available devices.
    pub(crate) free_milli: i32,
    pub(crate) total_milli: i32,
    /// Used thousandths of the node's GPUs (or cores, without GPUs), and of its cores.
    pub(crate) used_permille: i32,
    pub(crate) cpu_permille: i32,
    /// Hourly prices of a GPU, a core and a GiB, in micro-dollars.
    pub(crate) price: [i64; 3],
    pub(crate) named: Vec<(ResIdx, i64)>,
    pub(crate) devices: SmallVec<[Device; 8]>,
    pub(crate) tokens: BTreeMap<TokenName, TokenHolders>,
}

impl Room {
    /// Does not check capacity.
    pub(crate) fn book(&mut self, claim: &Claim) {
        self.change(&claim.need, -1);
        for part in &claim.devices {
            let device = &mut self.devices[usize::from(part.device)];
            device.milli -= part.milli;
            device.mib -= part.mib;
            device.users += 1;
            device.exclusive += u16::from(part.exclusive);
            if let (Some(geometry), Some((profile, start))) = (device.geometry, part.slice) {
                device.slots.take(geometry, profile, start);
            }
        }
        self.summarise();
    }

    /// Undoes [`Room::book`].
    pub(crate) fn release(&mut self, claim: &Claim) {
        self.change(&claim.need, 1);
        for part in &claim.devices {
            let device = &mut self.devices[usize::from(part.device)];
            device.milli += part.milli;
            device.mib += part.mib;
            device.users -= 1;
            device.exclusive -= u16::from(part.exclusive);
            if let (Some(geometry), Some((profile, start))) = (device.geometry, part.slice) {
                device.slots.release(geometry, profile, start);
            }
        }
        self.summarise();
    }

    /// Some devices are unavailable.
    pub(crate) fn has_closed(&self) -> bool {
        self.total_milli < WHOLE * self.devices.len() as i32
    }

    /// Free amount of a named resource; zero when the node does not have it.
    pub(crate) fn named(&self, resource: ResIdx) -> i64 {
        match self.named.binary_search_by_key(&resource, |entry| entry.0) {
            Ok(at) => self.named[at].1,
            Err(_) => 0,
        }
    }

    /// The slots of the claim's slices are free.
    pub(crate) fn has_slices(&self, claim: &Claim) -> bool {
        claim.devices.iter().all(|part| {
            let device = &self.devices[usize::from(part.device)];
            part.slice.is_none_or(|(profile, start)| {
                device
                    .geometry
                    .is_some_and(|geometry| device.slots.fits_at(geometry, profile, start))
            })
        })
    }

    /// The room covers the claim. Resources that the claim does not use may be overcommitted.
    pub(crate) fn has(&self, claim: &Claim) -> bool {
        let need = &claim.need;
        let plain = need.amounts.iter().zip(self.free);
        let mut room = self.clone();
        plain.into_iter().all(|(need, free)| *need == 0 || *need <= free)
            && need.named.iter().all(|(at, amount)| *amount == 0 || *amount <= self.named(*at))
            && self.has_slices(claim)
            && claim.devices.iter().all(|part| {
                let device = &mut room.devices[usize::from(part.device)];
                let alone = device.exclusive == 0 && !(part.exclusive && device.users > 0);
                // Slices of one claim may share a device, so subtract each in turn.
                device.milli -= part.milli;
                device.mib -= part.mib;
                alone && device.milli >= 0 && device.mib >= 0
            })
    }

    pub(crate) fn overcommitted(&self) -> bool {
        self.free.iter().any(|left| *left < 0)
            || self.named.iter().any(|entry| entry.1 < 0)
            || self.devices.iter().any(|device| {
                device.milli < 0 || device.mib < 0 || (device.exclusive > 0 && device.users > 1)
            })
    }

    /// Recomputes the summary fields.
    pub(crate) fn summarise(&mut self) {
        let (mut whole, mut milli, mut mib, mut free, mut total) = (0, 0, 0, 0, 0);
        for device in &self.devices {
            if !device.open {
                continue;
            }
            total += WHOLE;
            free += device.milli;
            whole += u16::from(device.is_free());
            if device.is_shareable() {
                milli = milli.max(device.milli);
                mib = mib.max(device.mib);
            }
        }
        self.whole = whole;
        self.most_milli = milli;
        self.most_mib = mib;
        self.free_milli = free;
        self.total_milli = total;
        let cores = (self.total[CPU] - self.free[CPU]).clamp(0, self.total[CPU]);
        self.cpu_permille = (cores * 1000 / self.total[CPU].max(1)) as i32;
        self.used_permille = if total > 0 {
            (total - free).clamp(0, total) * WHOLE / total
        } else {
            self.cpu_permille
        };
    }

    fn change(&mut self, need: &Need, sign: i64) {
        for (left, amount) in self.free.iter_mut().zip(need.amounts) {
            *left += sign * amount;
        }
        for (resource, amount) in &need.named {
            match self.named.binary_search_by_key(resource, |entry| entry.0) {
                Ok(at) => self.named[at].1 += sign * amount,
                Err(at) => self.named.insert(at, (*resource, sign * amount)),
            }
        }
        for (token, usage) in &need.tokens {
            self.change_token(token, *usage, sign);
        }
    }

    fn change_token(&mut self, token: &TokenName, usage: TokenAccess, sign: i64) {
        let holders = self.tokens.entry(token.clone()).or_default();
        let count = match usage {
            TokenAccess::Exclusive => &mut holders.exclusive,
            TokenAccess::Shared | TokenAccess::OneNode | TokenAccess::OneTask => {
                &mut holders.shared
            }
        };
        *count = count.wrapping_add_signed(sign as i32);
        if *holders == TokenHolders::default() {
            self.tokens.remove(token);
        }
    }
}

impl Claim {
    /// The part of the claim that fits now; a hold books it before the rest is freed.
    pub(crate) fn clipped(&self, room: &Room) -> Self {
        let mut need = Need::default();
        for (at, amount) in self.need.amounts.iter().enumerate() {
            need.amounts[at] = (*amount).min(room.free[at]).max(0);
        }
        for (resource, amount) in &self.need.named {
            need.named.push((*resource, (*amount).min(room.named(*resource)).max(0)));
        }
        let tokens = self.need.tokens.iter().filter(|token| fit::token_free(room, token));
        need.tokens = tokens.cloned().collect();
        let devices = self.devices.iter().filter_map(|part| part.clipped(room)).collect();
        Self { need: Arc::new(need), devices }
    }
}

impl DeviceClaim {
    fn clipped(&self, room: &Room) -> Option<Self> {
        let device =
            room.devices.get(usize::from(self.device)).filter(|device| device.exclusive == 0)?;
        let exclusive = self.exclusive && device.users == 0;
        if let Some((profile, start)) = self.slice {
            let open = device.geometry.is_some_and(|g| device.slots.fits_at(g, profile, start));
            let open = open && device.milli >= self.milli && device.mib >= self.mib;
            return open.then_some(Self { exclusive, ..*self });
        }
        // An exclusive claim on a shared device reserves all that is left of it.
        let all = self.exclusive && !exclusive;
        let milli = if all { device.milli } else { self.milli.min(device.milli) };
        let mib = if all { device.mib } else { self.mib.min(device.mib) };
        let any = milli > 0 && mib > 0;
        any.then_some(Self { exclusive, milli, mib, ..*self })
    }
}
