//! GPUs, shares and slices, checked against the ledger.

use std::collections::BTreeSet;

use agentaflow_engine::mig::Geometry;
use agentaflow_engine::{
    DeviceSelection, ForeignGpu, GpuAllocation, GpuAssignment, GpuHealth, GpuRequest, GpuShare,
    MigMode, Workload,
};

use crate::ledger::{Host, Ledger};

impl Ledger {
    /// The devices exist, match the request and are not overbooked.
    pub fn check_devices(&self, workload: &Workload, host: &Host, gpus: &GpuAssignment) {
        let request = &workload.request;
        match gpus {
            GpuAssignment::Count(count) => {
                assert_eq!(*count, request.gpu_count(), "the number of GPUs is wrong");
                assert_eq!(
                    host.spec.device_selection,
                    DeviceSelection::Node,
                    "only a node that chooses gets a count"
                );
                if matches!(request.gpu, GpuRequest::Whole(_)) {
                    self.check_count(host);
                }
            }
            GpuAssignment::Devices(parts) => {
                assert_eq!(
                    parts.len(),
                    request.gpu_count() as usize,
                    "the number of GPUs is wrong"
                );
                let named: BTreeSet<_> = parts.iter().map(|part| &part.gpu).collect();
                let whole = parts.iter().all(|part| part.share == GpuShare::Whole);
                assert!(!whole || named.len() == parts.len(), "a whole GPU is named twice");
                for part in parts {
                    self.check_device(workload, host, part);
                }
                let link = |part: &GpuAllocation| {
                    host.spec.gpus.iter().find(|gpu| gpu.id == part.gpu).and_then(|g| g.nvlink)
                };
                if request.nvlink && parts.len() > 1 && whole {
                    let links: BTreeSet<_> = parts.iter().map(link).collect();
                    assert!(links.len() == 1 && !links.contains(&None), "the GPUs are not joined");
                }
            }
        }
    }

    /// On a node that chooses devices itself, only the number of used GPUs counts.
    fn check_count(&self, host: &Host) {
        let ours: u32 =
            self.on(&host.spec.id).map(|(workload, _)| workload.request.gpu_count()).sum();
        let shares = self.on(&host.spec.id).any(|(workload, _)| {
            !matches!(workload.request.gpu, GpuRequest::Whole(_) | GpuRequest::None)
        });
        let unnamed: u32 = host.foreign.values().map(|uses| uses.gpu_count).sum();
        let named: BTreeSet<_> = host.foreign.values().flat_map(|uses| uses.gpus.keys()).collect();
        // Shares are on one GPU, and a foreign GPU may be one of ours.
        if !shares && named.is_empty() {
            let taken = ours + unnamed.min(host.spec.gpus.len() as u32);
            assert!(
                taken as usize <= host.spec.gpus.len(),
                "{taken} GPUs of {} are taken",
                host.spec.id
            );
        }
    }

    fn check_device(&self, workload: &Workload, host: &Host, chosen: &GpuAllocation) {
        let node = &host.spec;
        let gpu = node.gpus.iter().find(|gpu| gpu.id == chosen.gpu).expect("the GPU exists");
        let request = &workload.request;
        assert_eq!(
            host.health.get(&gpu.id).copied().unwrap_or_default(),
            GpuHealth::Healthy,
            "the GPU is not well"
        );
        assert!(gpu.memory >= request.min_gpu_memory, "the GPU is too small");
        let wanted =
            request.models.is_empty() || request.models.iter().any(|model| gpu.model.serves(model));
        assert!(wanted, "another model was asked for");
        let (mut milli, mut mib, mut users, mut alone) = (0_u64, 0_u64, 0, 0);
        let mut slots = BTreeSet::new();
        for (other, allocation) in self.on(&node.id) {
            let GpuAssignment::Devices(parts) = &allocation.gpus else { continue };
            for part in parts.iter().filter(|part| part.gpu == gpu.id) {
                let (share, memory) = amounts(part.share, gpu.model.as_str(), gpu.memory.0);
                milli += share;
                mib += memory;
                users += 1;
                alone += u32::from(other.request.exclusive || part.share == GpuShare::Whole);
                if let GpuShare::MigSlice { profile, start } = part.share {
                    let geometry = Geometry::for_gpu(gpu.model.as_str(), gpu.memory.0)
                        .expect("slices have rules");
                    let found = geometry
                        .get(geometry.profile(profile.as_str()).expect("known"))
                        .expect("known");
                    assert!(found.starts.contains(&start), "no slice begins there");
                    for slot in start..start + found.slots {
                        assert!(
                            slots.insert(slot),
                            "two slices share slot {slot} of {} on {}",
                            gpu.id,
                            node.id
                        );
                    }
                }
            }
        }
        for uses in host.foreign.values().filter_map(|uses| uses.gpus.get(&gpu.id)) {
            let (share, memory) = match uses {
                ForeignGpu::Whole => (1000, gpu.memory.0),
                ForeignGpu::Share(share) => {
                    (share.get().into(), gpu.memory.0 * u64::from(share.get()) / 1000)
                }
                ForeignGpu::Memory(mib) => (mib.0 * 1000 / gpu.memory.0, mib.0),
            };
            milli += share;
            mib += memory;
            users += 1;
            alone += u32::from(*uses == ForeignGpu::Whole);
        }
        assert!(milli <= 1000, "{milli} thousandths of {} on {} are booked", gpu.id, node.id);
        assert!(mib <= gpu.memory.0, "{mib} MiB of {} on {} are booked", gpu.id, node.id);
        let mine = workload.request.gpu_count();
        assert!(
            alone == 0 || users == 1 || (alone == mine && users == mine),
            "{} on {} is not exclusive",
            gpu.id,
            node.id
        );
        match request.gpu {
            GpuRequest::Fraction(_) if node.whole_gpus_only => {
                assert_eq!(chosen.share, GpuShare::Whole);
            }
            GpuRequest::Memory(wanted) if node.whole_gpus_only => {
                assert!(wanted <= gpu.memory, "the GPU is too small");
                assert_eq!(chosen.share, GpuShare::Whole);
            }
            _ => check_kind(request.gpu, chosen.share, gpu),
        }
    }
}

/// Thousandths and memory of a share.
pub fn amounts(part: GpuShare, model: &str, memory: u64) -> (u64, u64) {
    match part {
        GpuShare::Whole => (1000, memory),
        GpuShare::Fraction { milli, mib } => (milli.into(), mib.0),
        GpuShare::MigSlice { profile, .. } => {
            let geometry = Geometry::for_gpu(model, memory).expect("slices have rules");
            let found =
                geometry.get(geometry.profile(profile.as_str()).expect("known")).expect("known");
            (u64::from(found.compute) * 1000 / u64::from(geometry.compute_slices), found.memory_mib)
        }
    }
}

/// The share matches the request.
fn check_kind(asked: GpuRequest, part: GpuShare, gpu: &agentaflow_engine::Gpu) {
    let right = match (asked, part) {
        (GpuRequest::Whole(_), GpuShare::Whole) => gpu.mig == MigMode::Off,
        (GpuRequest::Fraction(share), GpuShare::Whole) => {
            share.get() == 1000 && gpu.mig == MigMode::Off
        }
        (GpuRequest::Fraction(share), GpuShare::Fraction { milli, .. }) => {
            share.get() == milli && gpu.mig == MigMode::Off
        }
        (GpuRequest::Memory(asked), GpuShare::Fraction { mib, .. }) => {
            asked == mib && gpu.mig == MigMode::Off
        }
        (GpuRequest::Memory(asked), GpuShare::Whole) => {
            asked >= gpu.memory && gpu.mig == MigMode::Off
        }
        (GpuRequest::Mig { profile, .. }, GpuShare::MigSlice { profile: given, start }) => {
            let made = match &gpu.mig {
                MigMode::Off => false,
                MigMode::Free => true,
                MigMode::Fixed(layout) => layout.contains(&(profile, start)),
            };
            profile == given && made
        }
        _ => false,
    };
    assert!(right, "{asked:?} got {part:?} of {gpu:?}");
}
