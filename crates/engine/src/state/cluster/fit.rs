//! Fit of a task on a node, and the first shortfall.
//!
//! Eligibility depends on the node's description only (labels, taints, models) and is cached until that
//! changes. The shortfall depends on bookings and is computed after every change.

use crate::model::labels;
use crate::model::name::TokenName;
use crate::model::node::{DeviceSelection, Node};
use crate::model::request::TokenAccess;
use crate::state::cluster::RoomSummary;
use crate::state::cluster::capacity::{fitting_slices, largest_link};
use crate::state::cluster::room::{CPU, Device, MEMORY, Room, STORAGE, TASKS};
use crate::state::cluster::shape::{GpuNeed, ModelVerdict, Shape};

/// Declares [`ShortfallCode`] and the list of its values.
macro_rules! shortfall_codes {
    ($($code:ident,)+) => {
        /// A shortfall without its amounts, which `explain` adds on demand.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub(crate) enum ShortfallCode {
            $($code,)+
        }

        impl ShortfallCode {
            /// In the order of declaration.
            pub(crate) const ALL: &[Self] = &[$(Self::$code,)+];
        }
    };
}

shortfall_codes! {
    NotReady,
    Unschedulable,
    OtherNode,
    NodeSelector,
    NodeAffinity,
    Taint,
    NoGpu,
    GpuModel,
    GpuModelQuota,
    GpuSize,
    GpuCount,
    WholeGpusOnly,
    NoMigProfile,
    FreeGpus,
    GpuShare,
    GpuMemory,
    MigSlice,
    NvLink,
    UnavailableGpus,
    Cpu,
    Memory,
    Storage,
    TaskLimit,
    Resource,
    Token,
    TaskAffinity,
    TaskAntiAffinity,
    TopologySpread,
}

impl ShortfallCode {
    /// The node has GPUs, but not suitable ones.
    pub(crate) fn is_about_gpus(self) -> bool {
        use ShortfallCode::{
            GpuCount, GpuModel, GpuModelQuota, GpuSize, NoMigProfile, WholeGpusOnly,
        };
        matches!(self, GpuModel | GpuModelQuota | GpuSize | GpuCount | WholeGpusOnly | NoMigProfile)
    }

    /// The node has suitable GPUs, but too few are free.
    pub(crate) fn is_short_of_gpus(self) -> bool {
        use ShortfallCode::{FreeGpus, GpuMemory, GpuShare, MigSlice, NvLink};
        matches!(self, FreeGpus | GpuShare | GpuMemory | MigSlice | NvLink)
    }
}

/// Verdict of a node's description on a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eligibility {
    Excluded(ShortfallCode),
    /// With the preference added to the strategy's score.
    Eligible(i32),
}

/// Weight of the preferred GPU model, equal to the strongest node preference.
const PREFERRED_MODEL: i32 = 100;
/// Penalty of a `PreferNoSchedule` taint.
const SOFT_TAINT: i32 = 10;

/// Checks everything that does not depend on bookings.
pub(crate) fn eligibility(shape: &Shape, node: &Node, room: &Room) -> Eligibility {
    if let Some(code) = node_term_shortfall(shape, node) {
        // GPU requirements may be repeated as node affinity for node autoscalers; report the GPU shortfall
        // then.
        return Eligibility::Excluded(match device_eligibility(shape, room) {
            Err(gpu @ (ShortfallCode::GpuSize | ShortfallCode::GpuModel))
                if code == ShortfallCode::NodeAffinity =>
            {
                gpu
            }
            _ => code,
        });
    }
    let request = &shape.key.request;
    if labels::first_untolerated(&node.taints, &request.tolerations).is_some() {
        return Eligibility::Excluded(ShortfallCode::Taint);
    }
    let mut preference = 0;
    for preferred in &request.preferred_nodes {
        if preferred.term.matches(node.id.as_str(), &node.labels) {
            preference += preferred.weight as i32;
        }
    }
    preference -=
        SOFT_TAINT * labels::untolerated_preferences(&node.taints, &request.tolerations) as i32;
    // The node would count two shares of one device as two devices.
    let counted = node.device_selection == DeviceSelection::Node
        && matches!(shape.gpu_need, GpuNeed::Share(_) | GpuNeed::Memory(_));
    match device_eligibility(shape, room) {
        Ok(_) if counted => Eligibility::Excluded(ShortfallCode::WholeGpusOnly),
        Ok(true) => Eligibility::Eligible(preference + PREFERRED_MODEL),
        Ok(false) => Eligibility::Eligible(preference),
        Err(code) => Eligibility::Excluded(code),
    }
}

fn node_term_shortfall(shape: &Shape, node: &Node) -> Option<ShortfallCode> {
    if !shape.has_node_terms {
        return None;
    }
    let request = &shape.key.request;
    if request.node.as_ref().is_some_and(|wanted| *wanted != node.id) {
        return Some(ShortfallCode::OtherNode);
    }
    if !labels::contains_all(&node.labels, &request.node_selector) {
        return Some(ShortfallCode::NodeSelector);
    }
    let matches = labels::node_matches(&request.required_nodes, node.id.as_str(), &node.labels);
    (!matches).then_some(ShortfallCode::NodeAffinity)
}

/// The node's devices, all free, satisfy the request; true when one is of the preferred model.
fn device_eligibility(shape: &Shape, room: &Room) -> Result<bool, ShortfallCode> {
    if shape.gpu_need == GpuNeed::None {
        return Ok(false);
    }
    if room.devices.is_empty() {
        return Err(ShortfallCode::NoGpu);
    }
    let any = |test: &dyn Fn(&Device) -> bool| room.devices.iter().any(test);
    if !any(&|d| shape.accepts(d.model)) {
        let closed = any(&|d| shape.model(d.model) == ModelVerdict::Closed);
        return Err(if closed { ShortfallCode::GpuModelQuota } else { ShortfallCode::GpuModel });
    }
    if !any(&|d| shape.accepts(d.model) && d.total >= shape.min_memory) {
        return Err(ShortfallCode::GpuSize);
    }
    let suitable = room.devices.iter().filter(|d| is_suitable(shape, d));
    match shape.gpu_need {
        GpuNeed::Mig(profile, _) => {
            if !suitable
                .clone()
                .any(|d| d.geometry.is_some_and(|g| g.profile(profile.as_str()).is_some()))
            {
                return Err(ShortfallCode::NoMigProfile);
            }
        }
        GpuNeed::Whole(count)
            if suitable.clone().filter(|d| d.geometry.is_none()).count() < count.into() =>
        {
            return Err(ShortfallCode::GpuCount);
        }
        GpuNeed::Memory(mib)
            if !suitable.clone().any(|d| d.geometry.is_none() && d.total >= mib) =>
        {
            return Err(ShortfallCode::GpuSize);
        }
        _ => {
            if !suitable.clone().any(|d| d.geometry.is_none()) {
                return Err(ShortfallCode::GpuCount);
            }
        }
    }
    Ok(any(&|d| is_suitable(shape, d) && shape.model(d.model) == ModelVerdict::Preferred))
}

/// Model and memory size satisfy the request.
pub(crate) fn is_suitable(shape: &Shape, device: &Device) -> bool {
    shape.accepts(device.model) && device.total >= shape.min_memory
}

/// Cheap check on the summary that rejects most unfit nodes.
#[inline]
pub(crate) fn summary_shortfall(shape: &Shape, brief: &RoomSummary) -> Option<ShortfallCode> {
    if !brief.open {
        return Some(ShortfallCode::Unschedulable);
    }
    match shape.gpu_need {
        GpuNeed::Whole(count) if brief.whole < count => return Some(ShortfallCode::FreeGpus),
        GpuNeed::Share(milli) if brief.most_milli < milli => return Some(ShortfallCode::GpuShare),
        GpuNeed::Memory(mib) if brief.most_mib < mib => return Some(ShortfallCode::GpuMemory),
        _ => {}
    }
    // Overcommitted resources matter only when requested.
    let (need, free) = (&shape.need.amounts, &brief.free);
    let codes = [
        (CPU, ShortfallCode::Cpu),
        (MEMORY, ShortfallCode::Memory),
        (STORAGE, ShortfallCode::Storage),
        (TASKS, ShortfallCode::TaskLimit),
    ];
    codes.into_iter().find(|(at, _)| need[*at] > free[*at] && need[*at] > 0).map(|(_, code)| code)
}

/// Available amount of the lacking resource, when the summary contains it.
pub(crate) fn summary_amount(code: ShortfallCode, brief: &RoomSummary) -> Option<i64> {
    match code {
        ShortfallCode::FreeGpus => Some(brief.whole.into()),
        ShortfallCode::GpuShare => Some(brief.most_milli.into()),
        ShortfallCode::GpuMemory => Some(brief.most_mib.into()),
        ShortfallCode::Cpu => Some(brief.free[CPU]),
        ShortfallCode::Memory => Some(brief.free[MEMORY]),
        ShortfallCode::Storage => Some(brief.free[STORAGE]),
        _ => None,
    }
}

/// Checks bookings; `None` means that an eligible task fits.
pub(crate) fn shortfall(shape: &Shape, room: &Room) -> Option<ShortfallCode> {
    if let Some(code) =
        summary_shortfall(shape, &RoomSummary::of(room, 0)).or_else(|| gpu_shortfall(shape, room))
    {
        return Some(code);
    }
    let need = &shape.need;
    if need.named.iter().any(|(resource, amount)| *amount > 0 && *amount > room.named(*resource)) {
        return Some(ShortfallCode::Resource);
    }
    (!need.tokens.is_empty() && !tokens_free(shape, room)).then_some(ShortfallCode::Token)
}

pub(crate) fn gpu_shortfall(shape: &Shape, room: &Room) -> Option<ShortfallCode> {
    match shape.gpu_need {
        GpuNeed::None => None,
        GpuNeed::Whole(count) => {
            if room.whole < count {
                return Some(ShortfallCode::FreeGpus);
            }
            if !room.uniform && whole_devices(shape, room).count() < count.into() {
                return Some(ShortfallCode::FreeGpus);
            }
            (shape.nvlink && count > 1 && largest_link(shape, room) < count.into())
                .then_some(ShortfallCode::NvLink)
        }
        GpuNeed::Share(milli) => {
            let fits = room.most_milli >= milli && share_devices(shape, room).next().is_some();
            (!fits).then_some(ShortfallCode::GpuShare)
        }
        GpuNeed::Memory(mib) => {
            let fits = room.most_mib >= mib && share_devices(shape, room).next().is_some();
            (!fits).then_some(ShortfallCode::GpuMemory)
        }
        GpuNeed::Mig(_, count) => (fitting_slices(shape, room, count.into()) < count.into())
            .then_some(ShortfallCode::MigSlice),
    }
}

/// Devices for whole-GPU requests of this shape.
pub(crate) fn whole_devices<'a>(
    shape: &'a Shape,
    room: &'a Room,
) -> impl Iterator<Item = (usize, &'a Device)> {
    let each = room.devices.iter().enumerate();
    each.filter(move |(_, d)| d.is_free() && is_suitable(shape, d))
}

/// Devices with room for a share of this shape, with the thousandths and memory of the share.
pub(crate) fn share_devices<'a>(
    shape: &'a Shape,
    room: &'a Room,
) -> impl Iterator<Item = (usize, &'a Device, (i32, i32))> {
    // Most nodes have equal devices: compute the share once.
    let alike = room.devices.first().filter(|_| room.uniform);
    let unsuitable = alike.is_some_and(|first| !is_suitable(shape, first));
    let portion = alike.map(|first| share_of(shape, first));
    let devices = if unsuitable { &[] } else { &room.devices[..] };
    devices.iter().enumerate().filter_map(move |(index, device)| {
        let (milli, mib) = portion.unwrap_or_else(|| share_of(shape, device));
        let fits = device.is_shareable()
            && device.milli >= milli
            && device.mib >= mib
            && !is_too_small(shape, device)
            && !(shape.exclusive && device.users > 0)
            && (portion.is_some() || is_suitable(shape, device));
        fits.then_some((index, device, (milli, mib)))
    })
}

/// Thousandths and memory of a share on this device. Both are rounded down, so three thirds fit on a GPU.
pub(crate) fn share_of(shape: &Shape, device: &Device) -> (i32, i32) {
    match shape.gpu_need {
        _ if device.whole_only => (1000, device.total),
        GpuNeed::Share(milli) => (milli, scaled(device.total, milli, 1000)),
        GpuNeed::Memory(mib) => (scaled(1000, mib, device.total), mib),
        GpuNeed::None | GpuNeed::Whole(_) | GpuNeed::Mig(..) => (1000, device.total),
    }
}

/// The whole device has less memory than the request.
fn is_too_small(shape: &Shape, device: &Device) -> bool {
    device.whole_only && matches!(shape.gpu_need, GpuNeed::Memory(mib) if mib > device.total)
}

fn scaled(whole: i32, part: i32, of: i32) -> i32 {
    (i64::from(whole) * i64::from(part) / i64::from(of.max(1))) as i32
}

/// MIG slices of this shape may be placed on the device.
pub(crate) fn accepts_slices(shape: &Shape, device: &Device) -> bool {
    device.open
        && device.exclusive == 0
        && is_suitable(shape, device)
        && !(shape.exclusive && device.users > 0)
}

fn tokens_free(shape: &Shape, room: &Room) -> bool {
    shape.need.tokens.iter().all(|token| token_free(room, token))
}

pub(crate) fn token_free(room: &Room, (token, usage): &(TokenName, TokenAccess)) -> bool {
    let Some(holders) = room.tokens.get(token) else { return true };
    match usage {
        TokenAccess::Exclusive => holders.exclusive == 0 && holders.shared == 0,
        TokenAccess::Shared => holders.exclusive == 0,
        // Cluster-wide tokens are checked by the terms.
        TokenAccess::OneNode | TokenAccess::OneTask => true,
    }
}
