//! What is in the way of a shape on a node, put into numbers that people can be told.

use crate::model::name::GpuModel;
use crate::model::request::MigProfile;
use crate::model::units::{MiB, MilliCpu};
use crate::model::wait::Shortfall;
use crate::state::cluster::fit::{self, Code};
use crate::state::cluster::room::{CPU, MEMORY, ModelIdx, Room, STORAGE};
use crate::state::cluster::shape::{Ask, Shape};

/// How many codes there are.
pub(crate) const CODES: usize = Code::Spread as usize + 1;

/// All of them, in their order.
pub(crate) const ALL_CODES: [Code; CODES] = [
    Code::Down,
    Code::Closed,
    Code::OtherNode,
    Code::Selector,
    Code::NodeAffinity,
    Code::Taint,
    Code::NoGpu,
    Code::Model,
    Code::ModelQuota,
    Code::GpuSize,
    Code::GpuCount,
    Code::Unshared,
    Code::NoMig,
    Code::FreeGpus,
    Code::GpuShare,
    Code::GpuMemory,
    Code::MigSlice,
    Code::NvLink,
    Code::ClosedGpus,
    Code::Cpu,
    Code::Memory,
    Code::Storage,
    Code::Jobs,
    Code::Named,
    Code::Token,
    Code::Near,
    Code::Away,
    Code::Spread,
];

/// Whether what is in the way has a name.
pub(crate) fn has_text(code: Code) -> bool {
    matches!(code, Code::Taint | Code::ModelQuota | Code::Named | Code::Token)
}

/// The lack of something that has a name.
pub(crate) fn worded(code: Code, text: &str, shape: &Shape, most: i64) -> Shortfall {
    match code {
        Code::Taint => Shortfall::Taint(text.to_owned()),
        Code::ModelQuota => Shortfall::GpuModelQuota(text.into()),
        Code::Named => {
            let request = &shape.key.request;
            let need = request
                .resources
                .iter()
                .find(|(name, _)| name.as_str() == text)
                .map_or(0, |(_, n)| *n);
            Shortfall::Resource { name: text.into(), need, most: most.max(0) as u64 }
        }
        _ => Shortfall::Token(text.into()),
    }
}

/// Adds the models of this node's GPUs, each once. They are names only when somebody is told of them.
pub(crate) fn note_models(models: &mut Vec<ModelIdx>, room: &Room) {
    for device in &room.devices {
        if !models.contains(&device.model) {
            models.push(device.model);
        }
    }
}

/// GPUs of other models than those asked for.
pub(crate) fn other_model(shape: &Shape, models: &[ModelIdx], names: &[GpuModel]) -> Shortfall {
    let mut has: Vec<_> = models.iter().map(|model| names[usize::from(*model)].clone()).collect();
    // Their numbers are given in the order in which they were first seen: that is nobody's business.
    has.sort_unstable();
    Shortfall::GpuModel { has, asked: shape.key.request.models.clone() }
}

/// How much this node has of what it lacks.
pub(crate) fn amount(code: Code, shape: &Shape, room: &Room) -> Option<i64> {
    let serving = || room.devices.iter().filter(|d| fit::serves(shape, d));
    let shareable = || serving().filter(|d| d.is_shareable() && !(shape.exclusive && d.users > 0));
    Some(match code {
        Code::GpuSize => room
            .devices
            .iter()
            .filter(|d| shape.accepts(d.model))
            .map(|d| d.total)
            .max()
            .unwrap_or(0)
            .into(),
        Code::GpuCount => serving().filter(|d| d.geometry.is_none()).count() as i64,
        Code::FreeGpus if room.uniform => room.whole.into(),
        Code::FreeGpus => fit::whole_devices(shape, room).count() as i64,
        Code::GpuShare => shareable().map(|d| d.milli).max().unwrap_or(0).into(),
        Code::GpuMemory => shareable().map(|d| d.mib).max().unwrap_or(0).into(),
        Code::MigSlice => fit::mig_copies(shape, room, u32::MAX).into(),
        Code::NvLink => fit::largest_link(shape, room) as i64,
        Code::Cpu => room.free[CPU],
        Code::Memory => room.free[MEMORY],
        Code::Storage => room.free[STORAGE],
        _ => return None,
    })
}

/// The lack in words that need no look at other nodes.
pub(crate) fn plain(code: Code, shape: &Shape, most: i64) -> Shortfall {
    let most = most.max(0) as u64;
    let amounts = shape.need.amounts.map(|amount| amount as u64);
    let count = |need: u16| (u32::from(need), most as u32);
    match (code, shape.ask) {
        (Code::Down, _) => Shortfall::NotReady,
        (Code::OtherNode, _) => Shortfall::OtherNode,
        (Code::Selector, _) => Shortfall::NodeSelector,
        (Code::NodeAffinity, _) => Shortfall::NodeAffinity,
        (Code::NoGpu, _) => Shortfall::NoGpu,
        (Code::GpuSize, Ask::Memory(mib)) => {
            let need = mib.max(shape.min_memory);
            Shortfall::GpuSize { need: MiB(need as u64), largest: MiB(most) }
        }
        (Code::GpuSize, _) => {
            Shortfall::GpuSize { need: MiB(shape.min_memory as u64), largest: MiB(most) }
        }
        (Code::GpuCount, ask) => {
            let need = if let Ask::Whole(need) = ask { need.into() } else { 1 };
            Shortfall::GpuCount { need, most: most as u32 }
        }
        (Code::NoMig, Ask::Mig(profile, _)) => Shortfall::NoMigProfile(profile),
        (Code::FreeGpus, Ask::Whole(need)) => {
            Shortfall::FreeGpus { need: count(need).0, most: count(need).1 }
        }
        (Code::GpuShare, Ask::Share(milli)) => {
            Shortfall::GpuShare { need: milli as u32, most: most as u32 }
        }
        (Code::GpuMemory, Ask::Memory(mib)) => {
            Shortfall::GpuMemory { need: MiB(mib as u64), most: MiB(most) }
        }
        (Code::MigSlice, Ask::Mig(profile, need)) => mig_lack(profile, need, most),
        (Code::NvLink, Ask::Whole(need)) => {
            Shortfall::NvLink { need: need.into(), most: most as u32 }
        }
        (Code::Cpu, _) => Shortfall::Cpu { need: MilliCpu(amounts[CPU]), most: MilliCpu(most) },
        (Code::Memory, _) => Shortfall::Memory { need: MiB(amounts[MEMORY]), most: MiB(most) },
        (Code::Storage, _) => Shortfall::Storage { need: MiB(amounts[STORAGE]), most: MiB(most) },
        (Code::Unshared, _) => Shortfall::WholeGpusOnly,
        (Code::Jobs, _) => Shortfall::TaskLimit,
        (Code::Near, _) => Shortfall::TaskAffinity,
        (Code::Away, _) => Shortfall::TaskAntiAffinity,
        (Code::Spread, _) => Shortfall::TopologySpread,
        _ => Shortfall::Unschedulable,
    }
}

fn mig_lack(profile: MigProfile, need: u16, most: u64) -> Shortfall {
    Shortfall::MigSlice { profile, need: need.into(), most: most as u32 }
}
