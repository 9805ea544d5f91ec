//! Jobs: how they are taken, what the engine is asked for them, and how they are stopped.

use std::sync::Arc;

use agentaflow_api::end::EndReason;
use agentaflow_api::error::ErrorCode;
use agentaflow_api::event::EventKind;
use agentaflow_api::job::{JobCreate, JobSpec, JobStatus, OnNodeLost, Runtime};
use agentaflow_api::link::{Message, Stop, StopCause, TaskKey};
use agentaflow_api::units::Stamp;
use agentaflow_engine::{
    Event, GpuModel, GpuRequest, MiB, MigProfile, MilliCpu, MilliGpu, NodeId, OnFault, QueueId,
    Request, Span, Workload,
};

use super::handle::{Caller, Idempotency, NodeRef};
use super::state::{DEFAULT_GRACE, State, workload_id};
use crate::api_error::ApiError;
use crate::store::{Change, IdempotencyRow, JobRow, JobState, SeatState};

/// Jobs of one account that are not over.
const MOST_LIVE_JOBS: u32 = 100_000;
/// And what they may hold together, in bytes of JSON.
const MOST_LIVE_BYTES: usize = 256 << 20;
/// Losses of nodes that a job survives when it does not say.
pub(crate) const DEFAULT_LOSSES: u32 = 3;

impl State {
    /// Takes a job; everything about its form was checked before. Returns its number and whether it is new.
    pub(crate) fn submit(
        &mut self,
        by: &Caller,
        job: JobCreate,
        pin: Option<&NodeRef>,
        idempotency: Option<&Idempotency>,
    ) -> Result<(i64, bool), ApiError> {
        if let Some(known) = self.known_key(by.user.id, idempotency)? {
            return Ok((known, false));
        }
        let weight = weight(&job.spec);
        self.check_room_for(by.user.id, weight)?;
        let (row, workload) = self.new_job(by, job, pin)?;
        let now = self.clock.now();
        self.engine.apply(now, Event::Submitted(Box::new(workload))).map_err(|rejected| {
            self.ids.0.job -= 1;
            let about_queue = matches!(rejected, agentaflow_engine::Rejected::Queue { .. });
            ApiError::invalid(if about_queue { "priority" } else { "job" }, rejected.to_string())
        })?;
        let held = self.held.entry(by.user.id).or_default();
        (held.0, held.1) = (held.0 + 1, held.1 + weight);
        let id = row.id;
        let name = row.spec.job_name.clone().unwrap_or_else(|| format!("job {id}"));
        self.batch.new_jobs.insert(id);
        self.jobs.insert(id, row);
        self.job_event(
            id,
            EventKind::Submitted,
            format!("`{name}` was handed in by {}", by.user.username),
        );
        if let Some(key) = idempotency {
            self.remember_key(by.user.id, key, id);
        }
        (self.dirty, self.money_moved) = (true, true);
        Ok((id, true))
    }

    /// The record and the engine's workload of a new job. Uses up a number.
    fn new_job(
        &mut self,
        by: &Caller,
        job: JobCreate,
        pin: Option<&NodeRef>,
    ) -> Result<(JobRow, Workload), ApiError> {
        let pinned = match pin {
            Some(node) => {
                let id = self.find_node(node)?;
                self.nodes.get(&id).map(|node| node.row.node_id.clone())
            }
            None => None,
        };
        let JobCreate { mut spec, docker_password, secret_env } = job;
        let queue = self.queue_for(by, spec.queue.as_deref())?;
        spec.runtime = Some(runtime(&spec));
        spec.docker_tag =
            spec.docker_image.is_some().then(|| spec.docker_tag.unwrap_or("latest".into()));
        spec.job_type = Some(spec.job_type.unwrap_or_else(|| "gpu_inference".to_owned()));
        let id = self.next_job();
        let secret_names = secret_env.keys().cloned().collect();
        let sealed = if docker_password.is_some() || !secret_env.is_empty() {
            let plain =
                serde_json::json!({ "password": docker_password, "env": secret_env }).to_string();
            let sealed = self.secrets.seal(&format!("job:{id}"), plain.as_bytes());
            Some(sealed.map_err(|_| ApiError::unavailable("secrets cannot be sealed now"))?)
        } else {
            None
        };
        let now = Stamp::now();
        let row = JobRow {
            id,
            user_id: by.user.id,
            queue,
            spec,
            pinned,
            secret_names,
            created_at: now,
            state: JobState { sealed, updated_at: now, ..JobState::default() },
        };
        match workload(&row) {
            Ok(workload) => Ok((row, workload)),
            Err(refusal) => {
                self.ids.0.job -= 1;
                Err(refusal)
            }
        }
    }

    /// Nobody may fill the server's memory with jobs that are not over.
    fn check_room_for(&self, user: i64, more: usize) -> Result<(), ApiError> {
        let (jobs, bytes) = self.held.get(&user).copied().unwrap_or_default();
        if jobs < MOST_LIVE_JOBS && bytes + more <= MOST_LIVE_BYTES {
            return Ok(());
        }
        Err(ApiError::too_many(
            format!(
                "you have {jobs} jobs that are not over, which is as much as one account may have"
            ),
            10,
        ))
    }

    /// The queue that pays, if this user may use it.
    pub(crate) fn queue_for(&self, by: &Caller, asked: Option<&str>) -> Result<String, ApiError> {
        let name = asked.unwrap_or(&by.user.default_queue);
        let name = if name.is_empty() { "root" } else { name };
        let admin = by.user.role == agentaflow_api::account::Role::Admin;
        if name == "root" {
            let own = matches!(by.user.default_queue.as_str(), "" | "root");
            if own || admin {
                return Ok(name.to_owned());
            }
            let words = "queue `root` is not open to you; leave `queue` out for your own";
            return Err(ApiError::forbidden(words));
        }
        let queue = self.queues.get(name).ok_or_else(|| {
            ApiError::invalid(
                "queue",
                format!("there is no queue `{name}`; GET /queues lists them"),
            )
        })?;
        let open = queue.spec.users.is_empty() || queue.spec.users.contains(&by.user.username);
        if !open && !admin {
            return Err(ApiError::forbidden(format!("queue `{name}` is not open to you")));
        }
        Ok(name.to_owned())
    }

    fn known_key(&self, user: i64, key: Option<&Idempotency>) -> Result<Option<i64>, ApiError> {
        let Some(key) = key else { return Ok(None) };
        let Some((body, job, _)) = self.recent_keys.get(&(user, key.key.clone())) else {
            return Ok(None);
        };
        if *body != key.body {
            return Err(other_body());
        }
        Ok(Some(*job))
    }

    fn remember_key(&mut self, user: i64, key: &Idempotency, job: i64) {
        let now = std::time::Instant::now();
        self.recent_keys.insert((user, key.key.clone()), (key.body.clone(), job, now));
        self.batch.changes.push(Change::Idempotency(Box::new(IdempotencyRow {
            user_id: user,
            key: key.key.clone(),
            body: key.body.clone(),
            job_id: job,
            at: Stamp::now(),
        })));
    }

    /// Stops a job: at once if it waits, through its agents otherwise. With `complete` it counts as done.
    pub(crate) fn cancel(&mut self, by: &str, id: i64, complete: bool) -> Result<(), ApiError> {
        let Some(job) = self.jobs.get_mut(&id) else {
            return Err(ApiError::conflict(ErrorCode::AlreadyOver, "the job is over already"));
        };
        if job.state.cancel_requested {
            return Ok(());
        }
        (job.state.cancel_requested, job.state.complete_requested) = (true, complete);
        let waits = job.state.seats.iter().all(|seat| seat.state == SeatState::Ended);
        self.touch(id);
        let (kind, wish) = if complete {
            (EventKind::CompleteRequested, "marked as complete")
        } else {
            (EventKind::CancelRequested, "cancelled")
        };
        self.job_event(id, kind, format!("{by} asked for it to be {wish}"));
        if waits && complete {
            self.finish(id, JobStatus::Completed, EndReason::Completed, None);
        } else if waits {
            let words = Some("cancelled before it started".into());
            self.finish(id, JobStatus::Cancelled, EndReason::Cancelled, words);
        } else {
            self.stop_tasks(id, StopCause::Cancelled, None);
            self.give_up_lost_tasks(id);
        }
        Ok(())
    }

    /// Sends a stop to every live task of a job.
    pub(crate) fn stop_tasks(&mut self, id: i64, cause: StopCause, grace: Option<u64>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        // A user's wish or a failure outweighs what only moves the job.
        if job.state.stopping.is_none_or(moves) {
            job.state.stopping = Some(cause);
        }
        let stops = stops(job, grace);
        let tasks: Vec<u32> = stops.iter().map(|(_, stop)| stop.key.task).collect();
        for (node, stop) in stops {
            self.batch.outgoing.push((node, Message::Stop(stop)));
        }
        self.touch(id);
        for task in tasks {
            self.tell(Event::TaskTerminating { workload: workload_id(id), task });
        }
    }
}

/// The stops that stand for a job that is being stopped.
pub(crate) fn stops(job: &JobRow, grace: Option<u64>) -> Vec<(i64, Stop)> {
    let Some(cause) = job.state.stopping else { return Vec::new() };
    let grace_ms = grace.unwrap_or_else(|| grace_ms(&job.spec));
    let live = job.state.seats.iter().filter(|seat| seat.state != SeatState::Ended);
    live.map(|seat| {
        let key = TaskKey { job: job.id, epoch: job.state.epoch, task: seat.task };
        (seat.node, Stop { key, cause, grace_ms })
    })
    .collect()
}

/// Stopped only to run again.
pub(crate) fn moves(cause: StopCause) -> bool {
    matches!(
        cause,
        StopCause::Drained
            | StopCause::Preempted
            | StopCause::Shutdown
            | StopCause::GpuSick
            | StopCause::GangBroken
            | StopCause::Replaced
            | StopCause::LeaseLost
    )
}

/// Milliseconds between TERM and KILL.
pub(crate) fn grace_ms(spec: &JobSpec) -> u64 {
    u64::from(spec.stop_grace_seconds.unwrap_or(DEFAULT_GRACE)) * 1000
}

/// How a job runs, if it does not say: in a container when it names an image.
pub(crate) fn runtime(spec: &JobSpec) -> Runtime {
    spec.runtime.unwrap_or(if spec.docker_image.is_some() {
        Runtime::Docker
    } else {
        Runtime::Process
    })
}

/// What a job holds in memory, about.
pub(crate) fn weight(spec: &JobSpec) -> usize {
    serde_json::to_vec(spec).map_or(0, |json| json.len())
}

/// The same key with another body.
pub(crate) fn other_body() -> ApiError {
    ApiError::conflict(
        ErrorCode::IdempotencyKeyReused,
        "this Idempotency-Key was used with another body in the last 24 hours; use a new key for a new job",
    )
}

/// What the engine is asked for a job.
pub(crate) fn workload(row: &JobRow) -> Result<Workload, ApiError> {
    let spec = &row.spec;
    let mut workload = Workload::new(workload_id(row.id), Arc::new(request(row)?));
    workload.queue = QueueId::from(row.queue.as_str());
    workload.tasks = spec.replicas.unwrap_or(1);
    workload.priority = spec.priority.map_or(5, |priority| priority.min(10) as u8);
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
    let bad = |field: &'static str| {
        move |bad: agentaflow_engine::InvalidInput| ApiError::invalid(field, bad.to_string())
    };
    let memory = MiB(spec.gpu_memory_required.unwrap_or(0));
    let mut request = Request {
        exclusive: spec.exclusive.unwrap_or(false),
        cpu: MilliCpu(spec.cpu_cores_required.unwrap_or_default().0),
        memory: MiB(spec.memory_required.unwrap_or(0)),
        storage: MiB(spec.storage_required.unwrap_or(0).saturating_mul(1024)),
        node: row.pinned.as_deref().map(NodeId::from),
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
        (request.exclusive, request.min_gpu_memory) = (false, MiB(0));
        request.models.clear();
    }
    request.resources.insert(needed_runtime(row, &request).into(), 1);
    Ok(request)
}

/// What a node must offer to run the job. An agent of the documents knows nothing but an image, its input and
/// whole GPUs.
fn needed_runtime(row: &JobRow, request: &Request) -> &'static str {
    let spec = &row.spec;
    if runtime(spec) == Runtime::Process {
        return "runtime/process";
    }
    let plain = spec.command.is_none()
        && spec.env.is_empty()
        && row.state.sealed.is_none()
        && spec.docker_username.is_none()
        && spec.volumes.is_empty()
        && spec.working_dir.is_none()
        && spec.shm_size.is_none()
        && !spec.read_only
        && spec.replicas.unwrap_or(1) == 1
        && !matches!(request.gpu, GpuRequest::Fraction(_) | GpuRequest::Mig { .. });
    let lone = spec.volumes.is_empty() && spec.replicas.unwrap_or(1) == 1;
    match (plain, lone) {
        (true, _) => "runtime/plain-docker",
        (false, true) => "runtime/container",
        (false, false) => "runtime/docker",
    }
}
