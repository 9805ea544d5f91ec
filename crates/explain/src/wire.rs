//! Engine types as types of the API.

use agentaflow_api::pending::{
    Alternative, BudgetShortfall, FitSummary, NodesShort, PendingReason, QuotaResource,
    RuntimeNeed, Shortfall,
};
use agentaflow_api::units::Stamp;
use agentaflow_engine::{self as engine, Gate, Time, WaitReason, WorkloadId};

/// Wall-clock time of a moment of the engine's clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Moment of the engine's clock.
    pub now: Time,
    /// The same moment in wall-clock time.
    pub wall: Stamp,
}

impl Clock {
    fn stamp(&self, at: Time) -> Stamp {
        let offset = i128::from(at.0) - i128::from(self.now.0);
        let wall = i128::from(self.wall.0).saturating_add(offset);
        Stamp(wall.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
    }
}

/// Resource that a node offers while no pod shares its GPUs.
const EXCLUSIVE: &str = "agentaflow.gpu/exclusive";

/// Drivers offer the runtimes of a node as resources with this prefix.
const RUNTIME: &str = "runtime/";

/// Taint of a cordoned Kubernetes node.
const CORDONED: &str = "node.kubernetes.io/unschedulable";

/// A pending reason, with other workloads named by `name`.
pub fn pending_reason(
    reason: &WaitReason,
    clock: &Clock,
    name: &dyn Fn(&WorkloadId) -> String,
) -> PendingReason {
    match reason {
        WaitReason::NoNodes => PendingReason::NoNodes { unreachable: 0 },
        WaitReason::NoRoom(fit) => PendingReason::NoRoom(fit_summary(fit)),
        WaitReason::NeverFits(fit) => PendingReason::NeverFits(fit_summary(fit)),
        WaitReason::Gang { needs, fits, fits_when_empty, summary } => {
            PendingReason::GangIncomplete {
                needs: *needs,
                fits: *fits,
                fits_when_empty: *fits_when_empty,
                summary: fit_summary(summary),
            }
        }
        WaitReason::Quota { queue, resource, limit, used, reserved, requested } => {
            PendingReason::QuotaExceeded {
                queue: queue.to_string(),
                resource: quota_resource(resource),
                limit: *limit,
                used: *used,
                reserved: *reserved,
                requested: *requested,
            }
        }
        WaitReason::Reserved { workload, until } => PendingReason::Reserved {
            by: name(workload),
            until: until.map(|until| clock.stamp(until)),
        },
        WaitReason::Preempting { victims, until } => PendingReason::Preempting {
            victims: victims.iter().map(name).collect(),
            until: clock.stamp(*until),
        },
        WaitReason::BackingOff { until, refusals } => {
            PendingReason::BackingOff { until: clock.stamp(*until), refusals: *refusals }
        }
        WaitReason::Gated(Gate::Budget(owner)) => PendingReason::BudgetExceeded(BudgetShortfall {
            owner: owner.clone(),
            ..BudgetShortfall::default()
        }),
        WaitReason::Gated(Gate::PodsMissing { have, need }) => {
            PendingReason::Gated { have: Some(*have), need: Some(*need), note: None }
        }
        WaitReason::Gated(Gate::SecretsSealed(key_file)) => {
            PendingReason::SecretsUnavailable { key_file: key_file.clone() }
        }
        WaitReason::Gated(Gate::Paused(note)) => {
            PendingReason::Gated { have: None, need: None, note: Some(note.clone()) }
        }
    }
}

fn fit_summary(fit: &engine::FitSummary) -> FitSummary {
    let short = |(short, count): &(engine::Shortfall, u32)| NodesShort {
        count: *count,
        shortfall: shortfall(short),
    };
    FitSummary { nodes: fit.nodes, shortfalls: fit.shortfalls.iter().map(short).collect() }
}

fn quota_resource(resource: &engine::QuotaResource) -> QuotaResource {
    match resource {
        engine::QuotaResource::Cpu => QuotaResource::Cpu,
        engine::QuotaResource::Memory => QuotaResource::Memory,
        engine::QuotaResource::Storage => QuotaResource::Storage,
        engine::QuotaResource::Gpu => QuotaResource::Gpu,
        engine::QuotaResource::GpuModel(model) => QuotaResource::GpuModel(model.to_string()),
        engine::QuotaResource::Named(name) => QuotaResource::Named(name.to_string()),
    }
}

/// A shortfall of a node.
pub fn shortfall(short: &engine::Shortfall) -> Shortfall {
    use engine::Shortfall as Short;
    match short {
        Short::NotReady => Shortfall::NotReady,
        Short::Unschedulable => Shortfall::Unschedulable,
        Short::OtherNode => Shortfall::OtherNode,
        Short::NodeSelector => Shortfall::NodeSelector,
        Short::NodeAffinity => Shortfall::NodeAffinity,
        Short::Taint(taint) if taint.starts_with(CORDONED) => Shortfall::Unschedulable,
        Short::Taint(taint) => Shortfall::Taint { taint: taint.clone() },
        Short::NoGpu => Shortfall::NoGpu,
        Short::GpuModel { has, asked } => Shortfall::GpuModel {
            has: has.iter().map(ToString::to_string).collect(),
            requested: asked.iter().map(ToString::to_string).collect(),
        },
        Short::GpuModelQuota(model) => Shortfall::GpuModelQuota { model: model.to_string() },
        Short::GpuSize { need, largest } => {
            Shortfall::GpuSize { requested: need.0, available: largest.0 }
        }
        Short::GpuCount { need, most } => {
            Shortfall::GpuCount { requested: *need, available: *most }
        }
        Short::WholeGpusOnly => Shortfall::WholeGpusOnly,
        Short::FreeGpus { need, most } => {
            Shortfall::FreeGpus { requested: *need, available: *most }
        }
        Short::GpuShare { need, most } => {
            Shortfall::GpuShare { requested: *need, available: *most }
        }
        Short::GpuMemory { need, most } => {
            Shortfall::GpuMemory { requested: need.0, available: most.0 }
        }
        Short::NoMigProfile(profile) => {
            Shortfall::NoMigProfile { profile: profile.as_str().to_owned() }
        }
        Short::MigSlice { profile, need, most } => Shortfall::MigSlices {
            profile: profile.as_str().to_owned(),
            requested: *need,
            available: *most,
        },
        Short::NvLink { need, most } => Shortfall::NvLink { requested: *need, available: *most },
        Short::UnavailableGpus(closed) => Shortfall::UnavailableGpus {
            cordoned: closed.cordoned,
            draining: closed.draining,
            unhealthy: closed.failed,
            gpus: devices(&closed.gpus),
        },
        Short::Cpu { need, most } => Shortfall::Cpu { requested: need.0, available: most.0 },
        Short::Memory { need, most } => Shortfall::Memory { requested: need.0, available: most.0 },
        Short::Storage { need, most } => {
            Shortfall::Storage { requested: need.0, available: most.0 }
        }
        Short::TaskLimit => Shortfall::TaskLimit,
        Short::Resource { name, .. } if name.as_str() == EXCLUSIVE => Shortfall::SharedGpus,
        Short::Resource { name, need, most } => match name.as_str().strip_prefix(RUNTIME) {
            Some(runtime) => Shortfall::Runtime { runtime: runtime_need(runtime) },
            None => {
                Shortfall::Resource { name: name.to_string(), requested: *need, available: *most }
            }
        },
        Short::Token(token) => Shortfall::Token { token: token.to_string() },
        Short::TaskAffinity => Shortfall::TaskAffinity,
        Short::TaskAntiAffinity => Shortfall::TaskAntiAffinity,
        Short::TopologySpread => Shortfall::TopologySpread,
    }
}

fn runtime_need(runtime: &str) -> RuntimeNeed {
    match runtime {
        "docker" | "plain-docker" | "container" => RuntimeNeed::Docker,
        "process" => RuntimeNeed::Process,
        _ => RuntimeNeed::Unknown,
    }
}

/// Devices of these GPUs. Slices of one device are cordoned together.
fn devices(gpus: &[engine::GpuId]) -> Vec<String> {
    let device =
        |gpu: &engine::GpuId| gpu.as_str().split("::").next().unwrap_or_default().to_owned();
    let mut devices: Vec<String> = gpus.iter().map(device).collect();
    devices.dedup();
    devices
}

/// A change with which a request would start now.
pub fn alternative(alternative: &engine::Alternative) -> Alternative {
    use engine::Alternative as Change;
    match alternative {
        Change::GpuCount(gpus) => Alternative::Gpus(*gpus),
        Change::GpuFraction(share) => Alternative::GpuShare(share.get()),
        Change::GpuMemory(memory) => Alternative::GpuMemory(memory.0),
        Change::MinGpuMemory(memory) => Alternative::MinGpuMemory(memory.0),
        Change::Models(models) => {
            Alternative::GpuModels(models.iter().map(ToString::to_string).collect())
        }
        Change::Tasks(tasks) => Alternative::Tasks(*tasks),
        Change::Cpu(cpu) => Alternative::Cpu(cpu.0),
        Change::Memory(memory) => Alternative::Memory(memory.0),
        Change::WithoutNvlink => Alternative::WithoutNvlink,
        Change::Shared => Alternative::Shared,
    }
}
