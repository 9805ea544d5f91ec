//! What is left on a node: the part of a node's state that placements change.
//!
//! Kept small and apart from everything else, because scoring reads nothing but this, and because
//! planning ahead works on copies of it. Amounts are signed: foreign use may exceed capacity.

use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::mig::{Geometry, Instance, ProfileId, Slots};
use crate::model::name::TokenName;
use crate::model::request::TokenAccess;
use crate::state::cluster::fit;

/// Dense number of a GPU model.
pub(crate) type ModelIdx = u16;
/// Dense number of a named resource.
pub(crate) type ResIdx = u32;

/// Positions in [`Room::free`].
pub(crate) const CPU: usize = 0;
pub(crate) const MEMORY: usize = 1;
pub(crate) const STORAGE: usize = 2;
pub(crate) const TASKS: usize = 3;

/// No `NVLink` group.
pub(crate) const NO_LINK: u16 = u16::MAX;

/// A whole GPU.
pub(crate) const WHOLE: i32 = 1000;

/// One GPU and what is left of it.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) milli: i32,
    pub(crate) mib: i32,
    pub(crate) total: i32,
    pub(crate) model: ModelIdx,
    pub(crate) users: u16,
    pub(crate) link: u16,
    /// Live utilisation in steps of five percent.
    pub(crate) utilization: u8,
    /// Healthy and not cordoned.
    pub(crate) open: bool,
    pub(crate) exclusive: u16,
    /// Whoever gets a part of it gets all of it.
    pub(crate) whole_only: bool,
    pub(crate) slots: Slots,
    /// Set in MIG mode.
    pub(crate) geometry: Option<&'static Geometry>,
    /// The only places for slices, when an operator has made them.
    pub(crate) layout: Option<Arc<[Instance]>>,
}

impl Device {
    /// Nobody is on it and anybody may be.
    pub(crate) fn is_free(&self) -> bool {
        self.open && self.users == 0 && self.milli >= WHOLE && self.geometry.is_none()
    }

    /// Where a slice of this profile goes best, given what is taken.
    pub(crate) fn place_for(&self, profile: ProfileId, slots: Slots) -> Option<u8> {
        slots.best_start(self.geometry?, profile, self.layout.as_deref())
    }

    /// Thousandths and memory of a slice, rounded down so that all slices together are not more than
    /// the device; which may report a little less memory than its slices nominally have.
    pub(crate) fn slice(&self, profile: ProfileId) -> Option<(i32, i32)> {
        let geometry = self.geometry?;
        let shape = geometry.get(profile)?;
        let part =
            i64::from(self.total) * i64::from(shape.slots) / i64::from(geometry.memory_slots);
        let milli = i32::from(shape.compute) * WHOLE / i32::from(geometry.compute_slices);
        Some((milli, part.min(shape.memory_mib as i64) as i32))
    }

    /// Takes shares at all.
    pub(crate) fn is_shareable(&self) -> bool {
        self.open && self.exclusive == 0 && self.geometry.is_none()
    }
}

/// What a claim takes of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceClaim {
    pub(crate) device: u8,
    pub(crate) exclusive: bool,
    pub(crate) model: ModelIdx,
    pub(crate) milli: i32,
    pub(crate) mib: i32,
    pub(crate) slice: Option<(ProfileId, u8)>,
}

impl DeviceClaim {
    /// What it counts for in quotas and shares: an exclusive part is a whole GPU.
    pub(crate) fn charge(&self) -> i64 {
        if self.exclusive { i64::from(WHOLE) } else { i64::from(self.milli) }
    }
}

/// What a task takes of a node besides GPUs; the same for all tasks of a shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) amounts: [i64; 4],
    pub(crate) named: Vec<(ResIdx, i64)>,
    pub(crate) tokens: Vec<(TokenName, TokenAccess)>,
}

/// What a task takes of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) need: Arc<Need>,
    pub(crate) devices: SmallVec<[DeviceClaim; 1]>,
}

/// How many hold a token on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenHolders {
    pub(crate) exclusive: u32,
    pub(crate) shared: u32,
}

/// What is left on a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    pub(crate) free: [i64; 4],
    pub(crate) total: [i64; 4],
    /// Devices that are free as a whole.
    pub(crate) whole: u16,
    /// Whether new work may come at all.
    pub(crate) open: bool,
    /// All devices have the same model and memory.
    pub(crate) uniform: bool,
    /// Largest share and memory left on a shareable device.
    pub(crate) most_milli: i32,
    pub(crate) most_mib: i32,
    /// Sums over usable devices.
    pub(crate) free_milli: i32,
    pub(crate) total_milli: i32,
    /// Thousandths of the node's GPUs (or cores, when it has none), and of its cores, that are taken.
    pub(crate) used_permille: i32,
    pub(crate) cpu_permille: i32,
    /// Price of a GPU, a core and a GiB for an hour, in micro-dollars.
    pub(crate) price: [i64; 3],
    pub(crate) named: Vec<(ResIdx, i64)>,
    pub(crate) devices: SmallVec<[Device; 8]>,
    pub(crate) tokens: BTreeMap<TokenName, TokenHolders>,
}

impl Room {
    /// Takes what the claim names, whether or not it is there.
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

    /// Gives back what [`Room::book`] took.
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

    /// Whether some of its devices are closed.
    pub(crate) fn has_closed(&self) -> bool {
        self.total_milli < WHOLE * self.devices.len() as i32
    }

    /// The amount left of a named resource; a node that does not know it has none.
    pub(crate) fn named(&self, resource: ResIdx) -> i64 {
        match self.named.binary_search_by_key(&resource, |entry| entry.0) {
            Ok(at) => self.named[at].1,
            Err(_) => 0,
        }
    }

    /// Whether the places of a claim's slices are free.
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

    /// Whether all that a claim names is left. What it does not name does not matter, even where it is
    /// over-committed.
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
                // Slices of one claim may share a device, and so count one after the other.
                (device.milli, device.mib) = (device.milli - part.milli, device.mib - part.mib);
                alone && device.milli >= 0 && device.mib >= 0
            })
    }

    /// Whether something is used beyond what there is.
    pub(crate) fn overcommitted(&self) -> bool {
        self.free.iter().any(|left| *left < 0)
            || self.named.iter().any(|entry| entry.1 < 0)
            || self.devices.iter().any(|device| {
                device.milli < 0 || device.mib < 0 || (device.exclusive > 0 && device.users > 1)
            })
    }

    /// Brings the summary up to date after devices changed.
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
        let hold_owners = self.tokens.entry(token.clone()).or_default();
        let count = match usage {
            TokenAccess::Exclusive => &mut hold_owners.exclusive,
            TokenAccess::Shared | TokenAccess::OneNode | TokenAccess::OneTask => {
                &mut hold_owners.shared
            }
        };
        *count = count.wrapping_add_signed(sign as i32);
        if *hold_owners == TokenHolders::default() {
            self.tokens.remove(token);
        }
    }
}

impl Claim {
    /// As much of this claim as the room has now: what a hold can take before the rest is freed.
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
        // Who wants to be alone needs the others to go: all that is left is kept until they have.
        let all = self.exclusive && !exclusive;
        let milli = if all { device.milli } else { self.milli.min(device.milli) };
        let mib = if all { device.mib } else { self.mib.min(device.mib) };
        let any = milli > 0 && mib > 0;
        any.then_some(Self { exclusive, milli, mib, ..*self })
    }
}
