//! Converts shortfall codes into shortfalls with amounts.

use crate::model::name::GpuModel;
use crate::model::request::MigProfile;
use crate::model::units::{MiB, MilliCpu};
use crate::model::wait::Shortfall;
use crate::state::cluster::capacity;
use crate::state::cluster::fit::{self, ShortfallCode};
use crate::state::cluster::room::{CPU, MEMORY, ModelIdx, Room, STORAGE};
use crate::state::cluster::shape::{GpuNeed, Shape};

pub(crate) const CODES: usize = ShortfallCode::ALL.len();

/// The obstacle has a name.
pub(crate) fn has_text(code: ShortfallCode) -> bool {
    matches!(
        code,
        ShortfallCode::Taint
            | ShortfallCode::GpuModelQuota
            | ShortfallCode::Resource
            | ShortfallCode::Token
    )
}

pub(crate) fn named_shortfall(
    code: ShortfallCode,
    text: &str,
    shape: &Shape,
    most: i64,
) -> Shortfall {
    match code {
        ShortfallCode::Taint => Shortfall::Taint(text.to_owned()),
        ShortfallCode::GpuModelQuota => Shortfall::GpuModelQuota(text.into()),
        ShortfallCode::Resource => {
            let request = &shape.key.request;
            let need = request
                .resources
                .iter()
                .find(|(name, _)| name.as_str() == text)
                .map_or(0, |(_, n)| *n);
            Shortfall::Resource { name: text.into(), need, most: most.max(0) as u64 }
        }
        ShortfallCode::Token => Shortfall::Token(text.into()),
        code => plain(code, shape, most),
    }
}

/// Adds the models of the node's GPUs without duplicates.
pub(crate) fn collect_models(models: &mut Vec<ModelIdx>, room: &Room) {
    for device in &room.devices {
        if !models.contains(&device.model) {
            models.push(device.model);
        }
    }
}

pub(crate) fn other_model(shape: &Shape, models: &[ModelIdx], names: &[GpuModel]) -> Shortfall {
    let mut has: Vec<_> = models.iter().map(|model| names[usize::from(*model)].clone()).collect();
    // Model indexes depend on the order of discovery; sort by name.
    has.sort_unstable();
    Shortfall::GpuModel { has, asked: shape.key.request.models.clone() }
}

/// Available amount of the lacking resource on this node.
pub(crate) fn amount(code: ShortfallCode, shape: &Shape, room: &Room) -> Option<i64> {
    let serving = || room.devices.iter().filter(|d| fit::is_suitable(shape, d));
    let shareable = || serving().filter(|d| d.is_shareable() && !(shape.exclusive && d.users > 0));
    Some(match code {
        ShortfallCode::GpuSize => room
            .devices
            .iter()
            .filter(|d| shape.accepts(d.model))
            .map(|d| d.total)
            .max()
            .unwrap_or(0)
            .into(),
        ShortfallCode::GpuCount => serving().filter(|d| d.geometry.is_none()).count() as i64,
        ShortfallCode::FreeGpus if room.uniform => room.whole.into(),
        ShortfallCode::FreeGpus => fit::whole_devices(shape, room).count() as i64,
        ShortfallCode::GpuShare => shareable().map(|d| d.milli).max().unwrap_or(0).into(),
        ShortfallCode::GpuMemory => shareable().map(|d| d.mib).max().unwrap_or(0).into(),
        ShortfallCode::MigSlice => capacity::fitting_slices(shape, room, u32::MAX).into(),
        ShortfallCode::NvLink => capacity::largest_link(shape, room) as i64,
        ShortfallCode::Cpu => room.free[CPU],
        ShortfallCode::Memory => room.free[MEMORY],
        ShortfallCode::Storage => room.free[STORAGE],
        _ => return None,
    })
}

/// Shortfall of a code without a name.
pub(crate) fn plain(code: ShortfallCode, shape: &Shape, most: i64) -> Shortfall {
    let most = most.max(0) as u64;
    let amounts = shape.need.amounts.map(|amount| amount as u64);
    let count = |need: u16| (u32::from(need), most as u32);
    match (code, shape.gpu_need) {
        (ShortfallCode::NotReady, _) => Shortfall::NotReady,
        (ShortfallCode::OtherNode, _) => Shortfall::OtherNode,
        (ShortfallCode::NodeSelector, _) => Shortfall::NodeSelector,
        (ShortfallCode::NodeAffinity, _) => Shortfall::NodeAffinity,
        (ShortfallCode::NoGpu, _) => Shortfall::NoGpu,
        (ShortfallCode::GpuSize, GpuNeed::Memory(mib)) => {
            let need = mib.max(shape.min_memory);
            Shortfall::GpuSize { need: MiB(need as u64), largest: MiB(most) }
        }
        (ShortfallCode::GpuSize, _) => {
            Shortfall::GpuSize { need: MiB(shape.min_memory as u64), largest: MiB(most) }
        }
        (ShortfallCode::GpuCount, ask) => {
            let need = if let GpuNeed::Whole(need) = ask { need.into() } else { 1 };
            Shortfall::GpuCount { need, most: most as u32 }
        }
        (ShortfallCode::NoMigProfile, GpuNeed::Mig(profile, _)) => Shortfall::NoMigProfile(profile),
        (ShortfallCode::FreeGpus, GpuNeed::Whole(need)) => {
            Shortfall::FreeGpus { need: count(need).0, most: count(need).1 }
        }
        (ShortfallCode::GpuShare, GpuNeed::Share(milli)) => {
            Shortfall::GpuShare { need: milli as u32, most: most as u32 }
        }
        (ShortfallCode::GpuMemory, GpuNeed::Memory(mib)) => {
            Shortfall::GpuMemory { need: MiB(mib as u64), most: MiB(most) }
        }
        (ShortfallCode::MigSlice, GpuNeed::Mig(profile, need)) => {
            mig_shortfall(profile, need, most)
        }
        (ShortfallCode::NvLink, GpuNeed::Whole(need)) => {
            Shortfall::NvLink { need: need.into(), most: most as u32 }
        }
        (ShortfallCode::Cpu, _) => {
            Shortfall::Cpu { need: MilliCpu(amounts[CPU]), most: MilliCpu(most) }
        }
        (ShortfallCode::Memory, _) => {
            Shortfall::Memory { need: MiB(amounts[MEMORY]), most: MiB(most) }
        }
        (ShortfallCode::Storage, _) => {
            Shortfall::Storage { need: MiB(amounts[STORAGE]), most: MiB(most) }
        }
        (ShortfallCode::WholeGpusOnly, _) => Shortfall::WholeGpusOnly,
        (ShortfallCode::TaskLimit, _) => Shortfall::TaskLimit,
        (ShortfallCode::TaskAffinity, _) => Shortfall::TaskAffinity,
        (ShortfallCode::TaskAntiAffinity, _) => Shortfall::TaskAntiAffinity,
        (ShortfallCode::TopologySpread, _) => Shortfall::TopologySpread,
        // Codes that need a name (see `named_shortfall`) or another GPU request do not occur here.
        (
            ShortfallCode::Unschedulable
            | ShortfallCode::Taint
            | ShortfallCode::GpuModel
            | ShortfallCode::GpuModelQuota
            | ShortfallCode::NoMigProfile
            | ShortfallCode::FreeGpus
            | ShortfallCode::GpuShare
            | ShortfallCode::GpuMemory
            | ShortfallCode::MigSlice
            | ShortfallCode::NvLink
            | ShortfallCode::UnavailableGpus
            | ShortfallCode::Resource
            | ShortfallCode::Token,
            _,
        ) => Shortfall::Unschedulable,
    }
}

fn mig_shortfall(profile: MigProfile, need: u16, most: u64) -> Shortfall {
    Shortfall::MigSlice { profile, need: need.into(), most: most as u32 }
}
