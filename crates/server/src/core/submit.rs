//! Submission of jobs.

use std::sync::Arc;

use agentaflow_api::account::Role;
use agentaflow_api::error::{ErrorCode, ResourceKind};
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{JobId, UserId};
use agentaflow_api::job::JobCreate;
use agentaflow_api::trace::{TraceContext, TraceId};
use agentaflow_engine::{Event, Rejected, Workload};

use super::handle::{Caller, Idempotency, NodeRef};
use super::job::workload::workload;
use super::job::{LiveJobs, job_bytes};
use super::queue_table::ROOT;
use super::state::State;
use crate::api_error::ApiError;
use crate::store::{Change, IdempotencyRow, JobRow, JobState, QueueRow};

/// Live jobs of one account.
const MAX_LIVE_JOBS: usize = 100_000;
/// Different requests of the live jobs of one account: a pass of the engine may try one job of each, and heartbeats wait for
/// the pass.
const MAX_REQUESTS: usize = 5_000;
/// Size of the specs and sealed secrets of all live jobs of one account.
const MAX_LIVE_BYTES: usize = 256 << 20;

/// Usual size of the state of a job in the store: placement, times, reason.
const STATE_BYTES: u64 = 1024;

/// Job of a submission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Submitted {
    pub(super) job: JobId,
    /// False if the same idempotency key created the job before.
    pub(super) is_new: bool,
}

impl State {
    /// Accepts a job whose form the caller has checked.
    pub(super) fn submit_job(
        &mut self,
        by: &Caller,
        job: JobCreate,
        pin: Option<&NodeRef>,
        idempotency: Option<&Idempotency>,
    ) -> Result<Submitted, ApiError> {
        if let Some(job) = self.job_of_key(by.user.id, idempotency)? {
            return Ok(Submitted { job, is_new: false });
        }
        let row = self.new_job(by, job, pin)?;
        let bytes = job_bytes(&row);
        self.check_live_limits(by.user.id, &row, bytes)?;
        self.submit_to_engine(workload(&row)?)?;
        let id = row.id;
        let name = row.spec.job_name.clone().unwrap_or_else(|| format!("job {id}"));
        self.storage.account(row.user_id).add(bytes as u64 + STATE_BYTES);
        let trace_id = row.trace.map(|trace| tracing::field::display(trace.trace_id));
        tracing::debug!(job = %id, trace_id, "job submitted");
        self.jobs.insert(row, bytes);
        self.job_event(
            id,
            EventKind::Submitted,
            format!("`{name}` was submitted by {}", by.user.username),
        );
        if let Some(key) = idempotency {
            self.remember_key(by.user.id, key, id);
        }
        Ok(Submitted { job: id, is_new: true })
    }

    fn submit_to_engine(&mut self, workload: Workload) -> Result<(), ApiError> {
        self.engine.try_apply(Event::Submitted(Box::new(workload))).map_err(|rejected| {
            let field = match rejected {
                Rejected::Queue { .. } => "priority",
                _ => "job",
            };
            ApiError::invalid(field, rejected.to_string())
        })
    }

    fn new_job(
        &self,
        by: &Caller,
        job: JobCreate,
        pin: Option<&NodeRef>,
    ) -> Result<JobRow, ApiError> {
        let pinned = match pin {
            Some(node) => {
                let id = self.nodes.find(node)?;
                self.nodes.get(id).map(|node| node.row().node_id.clone())
            }
            None => None,
        };
        let JobCreate { mut spec, docker_password, secret_env, trace } = job;
        let queue = self.resolve_queue(by, spec.queue.as_deref())?;
        spec.runtime = Some(spec.effective_runtime());
        spec.docker_tag =
            spec.docker_image.is_some().then(|| spec.docker_tag.unwrap_or("latest".into()));
        if spec.input_data.is_null() {
            spec.input_data = serde_json::json!({});
        }
        spec.job_type = Some(spec.job_type.unwrap_or_else(|| "gpu_inference".to_owned()));
        let id = self.jobs.next_id();
        let secret_names = secret_env.keys().cloned().collect();
        let sealed = if docker_password.is_some() || !secret_env.is_empty() {
            let plain =
                serde_json::json!({ "password": docker_password, "env": secret_env }).to_string();
            let sealed = self.secrets.seal(&format!("job:{id}"), plain.as_bytes());
            Some(sealed.map_err(|_| ApiError::unavailable("secrets cannot be sealed now"))?)
        } else {
            None
        };
        let now = self.now();
        Ok(JobRow {
            id,
            user_id: by.user.id,
            queue,
            spec,
            pinned,
            secret_names,
            trace: trace.or_else(new_trace),
            created_at: now,
            state: JobState { sealed, updated_at: now, ..JobState::default() },
        })
    }

    /// Bounds the memory that the live jobs of one account use.
    fn check_live_limits(&self, user: UserId, row: &JobRow, bytes: usize) -> Result<(), ApiError> {
        if self.storage.account(user).is_full() {
            let limit = self.settings.retention.account_bytes.unwrap_or_default() >> 20;
            let message = format!(
                "jobs, events and logs of the account exceed its storage of {limit} MiB; wait until old jobs are \
                 deleted, or ask an admin for a larger `--account-storage`"
            );
            return Err(ApiError::too_many(message, 300));
        }
        let is_known = self.jobs.has_request_of(row);
        match exceeded_limit(self.jobs.live_jobs(user), bytes, is_known) {
            None => Ok(()),
            Some(limit) => {
                let message = format!("the account {limit}; wait for some to end");
                Err(ApiError::too_many(message, 10))
            }
        }
    }

    fn resolve_queue(&self, by: &Caller, requested: Option<&str>) -> Result<String, ApiError> {
        resolve_queue(by, requested, |name| self.queues.get(name))
    }

    /// Job that was created with the same key, if the body was the same.
    fn job_of_key(
        &self,
        user: UserId,
        key: Option<&Idempotency>,
    ) -> Result<Option<JobId>, ApiError> {
        let Some(key) = key else { return Ok(None) };
        match self.jobs.keys().get(user, &key.key) {
            None => Ok(None),
            Some(submission) if submission.body == key.body => Ok(Some(submission.job)),
            Some(_) => Err(key_reused()),
        }
    }

    fn remember_key(&mut self, user: UserId, key: &Idempotency, job: JobId) {
        self.jobs.keys_mut().insert(user, &key.key, &key.body, job);
        self.journal.write(Change::Idempotency(Box::new(IdempotencyRow {
            user_id: user,
            key: key.key.clone(),
            body: key.body.clone(),
            job_id: job,
            at: self.now(),
        })));
    }
}

/// Queue of a job, if the caller may use it; the caller's default queue if the job names none.
pub(super) fn resolve_queue<'a>(
    by: &Caller,
    requested: Option<&str>,
    find: impl FnOnce(&str) -> Option<&'a Arc<QueueRow>>,
) -> Result<String, ApiError> {
    let name = requested.unwrap_or(&by.user.default_queue);
    let name = if name.is_empty() { ROOT } else { name };
    let admin = by.user.role == Role::Admin;
    if name == ROOT {
        let default = matches!(by.user.default_queue.as_str(), "" | ROOT);
        if default || admin {
            return Ok(name.to_owned());
        }
        let message = "queue `root` is not open to you; omit `queue` to use your own";
        return Err(ApiError::forbidden(message));
    }
    let queue =
        find(name).ok_or_else(|| ApiError::unknown_object("queue", ResourceKind::Queue, name))?;
    if !queue.is_open_to(&by.user) && !admin {
        return Err(ApiError::forbidden(format!("queue `{name}` is not open to you")));
    }
    Ok(name.to_owned())
}

/// Limit of an account that a further job of this size exceeds.
fn exceeded_limit(live: LiveJobs, bytes: usize, is_known_request: bool) -> Option<String> {
    if live.requests >= MAX_REQUESTS && !is_known_request {
        let requests = live.requests;
        return Some(format!("has live jobs with {requests} different requests, the maximum"));
    }
    if live.count >= MAX_LIVE_JOBS {
        return Some(format!("has {} live jobs, the maximum for one account", live.count));
    }
    let limit = MAX_LIVE_BYTES >> 20;
    (live.bytes + bytes > MAX_LIVE_BYTES)
        .then(|| format!("would exceed {limit} MiB of specs and secrets of live jobs"))
}

/// A trace that begins with the submission; none without randomness.
fn new_trace() -> Option<TraceContext> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(TraceContext { trace_id: TraceId::new(bytes)?, parent: None })
}

/// Error for a key that was used with another body.
pub(super) fn key_reused() -> ApiError {
    ApiError::conflict(
        ErrorCode::IdempotencyKeyReused,
        "this Idempotency-Key was used with another body in the last 24 hours; use a new key for a new job",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_jobs_of_an_account_have_a_limited_number_of_different_requests() {
        let most = LiveJobs { count: MAX_REQUESTS, bytes: 0, requests: MAX_REQUESTS };
        assert_eq!(exceeded_limit(most, 0, true), None);
        assert!(exceeded_limit(most, 0, false).is_some());
    }

    #[test]
    fn secrets_count_into_the_size_of_the_live_jobs_of_an_account() {
        let mut row = JobRow::default();
        let spec = job_bytes(&row);
        let full = LiveJobs { count: 1, bytes: MAX_LIVE_BYTES - spec - 1000, requests: 1 };
        row.state.sealed = Some("x".repeat(1000));
        assert_eq!(exceeded_limit(full, job_bytes(&row), true), None);
        row.state.sealed = Some("x".repeat(1001));
        assert!(exceeded_limit(full, job_bytes(&row), true).is_some());
        let most = LiveJobs { count: MAX_LIVE_JOBS, ..LiveJobs::default() };
        assert!(exceeded_limit(most, 0, true).is_some());
    }
}
