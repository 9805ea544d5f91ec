//! Job to engine workload.

use std::sync::Arc;

use agentaflow_api::ids::JobId;
use agentaflow_api::job::{JobSpec, OnNodeLost, Runtime};
use agentaflow_api::job_runtime::AgentSupport;
use agentaflow_engine::{
    GpuModel, GpuRequest, InvalidInput, MiB, MigProfile, MilliCpu, MilliGpu, OnFault, Priority,
    QueueId, Request, Span, Workload, WorkloadId,
};

use crate::api_error::ApiError;
use crate::store::JobRow;

/// Default seconds between SIGTERM and SIGKILL.
pub(crate) const DEFAULT_GRACE: u32 = 10;
/// Run time of a job that names neither an estimate nor a timeout.
const UNKNOWN_DURATION_MS: u64 = 3_600_000;

/// Engine name of a job.
pub(crate) fn workload_id(job: JobId) -> WorkloadId {
    WorkloadId::from(format!("job-{job}"))
}

/// Job of an engine name.
pub(crate) fn job_of(workload: &WorkloadId) -> Option<JobId> {
    workload.as_str().strip_prefix("job-")?.parse().ok()
}

/// Expected run time: the job's estimate, else its timeout, else one hour.
pub(crate) fn expected_ms(job: &JobRow) -> u64 {
    let seconds = job.spec.estimated_duration_seconds.or(job.spec.timeout_seconds);
    seconds.map_or(UNKNOWN_DURATION_MS, |seconds| seconds.saturating_mul(1000))
}

/// Milliseconds between SIGTERM and SIGKILL.
pub(crate) fn grace_ms(spec: &JobSpec) -> u64 {
    u64::from(spec.stop_grace_seconds.unwrap_or(DEFAULT_GRACE)) * 1000
}

/// Engine workload of a job.
pub(crate) fn workload(row: &JobRow) -> Result<Workload, ApiError> {
    let spec = &row.spec;
    let mut workload = Workload::new(workload_id(row.id), Arc::new(request(row)?));
    workload.queue = QueueId::from(row.queue.as_str());
    workload.tasks = spec.replicas.unwrap_or(1);
    workload.priority = Priority(spec.priority.map_or(5, |priority| priority.min(10)));
    workload.estimate =
        spec.estimated_duration_seconds.map(|seconds| Span(seconds.saturating_mul(1000)));
    workload.grace = Span(grace_ms(spec));
    workload.preemptible = spec.preemptible;
    workload.submitted = u64::try_from(row.created_at.0).ok().map(agentaflow_engine::Time);
    workload.on_fault = match spec.on_node_lost.unwrap_or_default() {
        OnNodeLost::Requeue => OnFault::Requeue,
        OnNodeLost::Wait => OnFault::Keep,
    };
    Ok(workload)
}

fn request(row: &JobRow) -> Result<Request, ApiError> {
    let spec = &row.spec;
    let bad =
        |field: &'static str| move |bad: InvalidInput| ApiError::invalid(field, bad.to_string());
    let memory = MiB(spec.gpu_memory_required.unwrap_or(0));
    let mut request = Request {
        exclusive: spec.exclusive.unwrap_or(false),
        cpu: MilliCpu(spec.cpu_cores_required.unwrap_or_default().0),
        memory: MiB(spec.memory_required.unwrap_or(0)),
        storage: MiB(spec.storage_required.unwrap_or(0).saturating_mul(1024)),
        node: row.pinned.as_deref().map(agentaflow_engine::NodeId::from),
        models: spec.gpu_type.as_deref().map(GpuModel::from).into_iter().collect(),
        ..Request::default()
    };
    request.gpu = if let Some(profile) = &spec.mig_profile {
        let profile = MigProfile::new(profile).map_err(bad("mig_profile"))?;
        GpuRequest::Mig { profile, count: spec.gpu_count.unwrap_or(1) }
    } else if let Some(share) = spec.gpu_fraction {
        let milli = (share * 1000.0).round().clamp(0.0, 1000.0) as u32;
        GpuRequest::Fraction(MilliGpu::new(milli).map_err(bad("gpu_fraction"))?)
    } else if let Some(count) = spec.gpu_count {
        request.min_gpu_memory = memory;
        if count == 0 { GpuRequest::None } else { GpuRequest::Whole(count) }
    } else if memory.0 > 0 {
        GpuRequest::Memory(memory)
    } else if spec.gpu_type.is_some() || request.exclusive {
        GpuRequest::Whole(1)
    } else {
        GpuRequest::None
    };
    if matches!(request.gpu, GpuRequest::None) {
        request.exclusive = false;
        request.min_gpu_memory = MiB(0);
        request.models.clear();
    }
    request.resources.insert(needed_runtime(row).into(), 1);
    Ok(request)
}

/// Runtime resource that a node must offer.
fn needed_runtime(row: &JobRow) -> &'static str {
    if row.spec.effective_runtime() == Runtime::Process {
        return "runtime/process";
    }
    // Secrets arrive as environment variables or as the password of a registry.
    let secrets = row.state.sealed.as_ref().map(|_| AgentSupport::Portable);
    let needs = row.spec.field_needs().map(|need| need.support);
    match needs.chain(secrets).max().unwrap_or(AgentSupport::Push) {
        AgentSupport::Push => "runtime/plain-docker",
        AgentSupport::Portable => "runtime/container",
        AgentSupport::Docker => "runtime/docker",
    }
}
