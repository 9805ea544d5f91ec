//! Calls about jobs.

use agentaflow_api::error::ResourceKind;
use agentaflow_api::explain::Explanation;
use agentaflow_api::ids::JobId;
use agentaflow_api::job::{Job, JobCreate, JobStatus};
use agentaflow_api::pending::PendingReason;
use agentaflow_api::units::Stamp;
use agentaflow_engine::Scheduler;

use super::committer::KEY_LIFE;
use super::explain::{EngineAnswer, Explainer, explain_ended};
use super::handle::{Caller, Core, Idempotency, NodeRef, unreadable};
use super::job::workload::workload;
use super::job_view::show_job;
use super::stop::RequestedEnd;
use super::submit::{key_reused, resolve_queue};
use crate::api_error::ApiError;
use crate::store::{JobRow, JobState};

impl Core {
    /// Submits a job. The flag is false if the same key created the job before.
    pub async fn submit(
        &self,
        by: &Caller,
        job: JobCreate,
        pin: Option<NodeRef>,
        idempotency: Option<Idempotency>,
    ) -> Result<(Job, bool), ApiError> {
        if let Some(known) = self.job_of_stored_key(by, idempotency.as_ref()).await? {
            return Ok((known, false));
        }
        let (submitted, row) = self
            .change(|state| {
                let submitted = state.submit_job(by, job, pin.as_ref(), idempotency.as_ref())?;
                Ok((submitted, state.jobs.get_unsaved(submitted.job).cloned()))
            })
            .await?;
        let row = self.row_or_stored(submitted.job, row).await?;
        // The pending reason costs a question to the engine, and few callers read it here.
        Ok((self.show(row, None), submitted.is_new))
    }

    /// Job that was created with this key in the last 24 hours, if the body was the same.
    async fn job_of_stored_key(
        &self,
        by: &Caller,
        key: Option<&Idempotency>,
    ) -> Result<Option<Job>, ApiError> {
        let Some(key) = key else { return Ok(None) };
        let stored = self.inner.store.idempotency(by.user.id, &key.key).await;
        let stored = stored.map_err(|error| unreadable(&error))?;
        let now = self.now();
        let alive = |at: Stamp| now.0.saturating_sub(at.0) < KEY_LIFE.as_millis() as i64;
        let Some(stored) = stored.filter(|stored| alive(stored.at)) else { return Ok(None) };
        if stored.body != key.body {
            return Err(key_reused());
        }
        Ok(Some(self.show_job(self.stored_job(stored.job_id).await?)))
    }

    pub(super) async fn stored_job(&self, id: JobId) -> Result<JobRow, ApiError> {
        let row = self.inner.store.job(id).await.map_err(|error| unreadable(&error))?;
        row.ok_or_else(|| ApiError::not_found(ResourceKind::Job, id))
    }

    /// A row from memory, or the stored one of a job that has ended.
    pub(super) async fn row_or_stored(
        &self,
        id: JobId,
        row: Option<JobRow>,
    ) -> Result<JobRow, ApiError> {
        match row {
            Some(row) => Ok(row),
            None => self.stored_job(id).await,
        }
    }

    /// A job as the API shows it.
    pub fn show_job(&self, row: JobRow) -> Job {
        let pending = self.pending_reasons(std::slice::from_ref(&row)).pop().flatten();
        self.show(row, pending)
    }

    /// A few jobs of a list as the API shows them.
    pub fn show_jobs(&self, rows: Vec<JobRow>) -> impl Iterator<Item = Job> {
        let pending = self.pending_reasons(&rows);
        rows.into_iter().zip(pending).map(|(row, pending)| self.show(row, pending))
    }

    fn show(&self, row: JobRow, pending: Option<PendingReason>) -> Job {
        let owner = row.user_id;
        let username = self
            .directory(|directory| directory.users.get(&owner).map(|user| user.username.clone()));
        show_job(row, username, pending, &self.inner.published, self.now())
    }

    /// Cancels a job. The caller checks the permission.
    pub async fn cancel(&self, by: &Caller, job: JobId) -> Result<Job, ApiError> {
        self.end_job(by, job, RequestedEnd::Cancel).await
    }

    /// Stops a job and marks it as completed.
    pub async fn complete(&self, by: &Caller, job: JobId) -> Result<Job, ApiError> {
        self.end_job(by, job, RequestedEnd::Complete).await
    }

    async fn end_job(&self, by: &Caller, job: JobId, end: RequestedEnd) -> Result<Job, ApiError> {
        let row = self
            .change(|state| {
                state.end_job(&by.user.username, job, end)?;
                Ok(state.jobs.get_unsaved(job).cloned())
            })
            .await?;
        Ok(self.show_job(self.row_or_stored(job, row).await?))
    }

    /// Pending reason and expected start of a job, for `by`.
    pub async fn explain(&self, by: &Caller, row: JobRow) -> Result<Explanation, ApiError> {
        let job = row.id;
        let ask = move |engine: &Scheduler, now| EngineAnswer::of_job(engine, now, job);
        let answer = if row.state.status.is_final() {
            None
        } else {
            self.inner.plan(by.user.id, ask).await?
        };
        let Some(answer) = answer else {
            return Ok(explain_ended(&self.show_job(self.stored_job(job).await?)));
        };
        let explanation = self.explainer().live_job(&row, &answer);
        if let (JobStatus::Pending, Some(eta)) = (explanation.status, explanation.eta) {
            self.inner.activity.record_eta(job, eta);
        }
        Ok(explanation)
    }

    /// Explanation of a job that is not submitted. Nothing changes.
    pub async fn what_if(&self, by: &Caller, job: JobCreate) -> Result<Explanation, ApiError> {
        let mut spec = job.spec;
        let queues = self.inner.published.queue_views();
        let queue = resolve_queue(by, spec.queue.as_deref(), |name| {
            queues.iter().find(|queue| queue.name == name)?.row.as_ref()
        })?;
        spec.runtime = Some(spec.effective_runtime());
        let sealed =
            (job.docker_password.is_some() || !job.secret_env.is_empty()).then(String::new);
        let now = self.now();
        let row = JobRow {
            user_id: by.user.id,
            queue,
            spec,
            created_at: now,
            state: JobState { sealed, updated_at: now, ..JobState::default() },
            ..JobRow::default()
        };
        let workload = workload(&row)?;
        let (request, tasks) = (workload.request.clone(), workload.tasks);
        let ask = move |engine: &Scheduler, now| {
            engine.what_if(now, workload).map(|answer| (answer, engine.pending_count()))
        };
        let (answer, pending) = self
            .inner
            .plan(by.user.id, ask)
            .await?
            .map_err(|rejected| ApiError::invalid("job", rejected.to_string()))?;
        Ok(self.explainer().what_if(&row, (&request, tasks), &answer, pending))
    }

    fn explainer(&self) -> Explainer<'_> {
        Explainer {
            published: &self.inner.published,
            default_price: self.inner.settings.default_price,
            now: self.inner.clock.now(),
        }
    }
}
