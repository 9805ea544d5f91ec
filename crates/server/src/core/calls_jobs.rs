//! What people ask and tell about jobs.

use agentaflow_api::explain::Explanation;
use agentaflow_api::job::{Job, JobCreate};
use agentaflow_api::units::Stamp;

use super::committer::KEY_LIFE;
use super::handle::{Caller, Core, Idempotency, NodeRef, unreadable};
use super::jobs::{other_body, runtime, workload};
use super::show::explain_over;
use crate::api_error::ApiError;
use crate::store::{JobRow, JobState};

impl Core {
    /// Takes a job. The flag says whether it is new (201) or was handed in before with the same key (200).
    pub async fn submit(
        &self,
        by: &Caller,
        job: JobCreate,
        pin: Option<NodeRef>,
        idempotency: Option<Idempotency>,
    ) -> Result<(Job, bool), ApiError> {
        if let Some(known) = self.answered_before(by, idempotency.as_ref()).await? {
            return Ok((known, false));
        }
        let (row, is_new) = self
            .act(|state| {
                let (id, is_new) = state.submit(by, job, pin.as_ref(), idempotency.as_ref())?;
                Ok((state.row(id).cloned().ok_or(id), is_new))
            })
            .await?;
        let row = match row {
            Ok(row) => row,
            Err(id) => self.stored(id).await?,
        };
        // Why it waits is for those who look at it: many are handed in, and few of them are looked at.
        Ok((self.inner.lock().show_job(row, None), is_new))
    }

    /// The job that was made with this key in the last 24 hours, if the body was the same.
    async fn answered_before(
        &self,
        by: &Caller,
        key: Option<&Idempotency>,
    ) -> Result<Option<Job>, ApiError> {
        let Some(key) = key else { return Ok(None) };
        let known = self
            .inner
            .store
            .idempotency(by.user.id, &key.key)
            .await
            .map_err(|error| unreadable(&error))?;
        let alive = |at: Stamp| Stamp::now().0.saturating_sub(at.0) < KEY_LIFE.as_millis() as i64;
        let Some(known) = known.filter(|known| alive(known.at)) else { return Ok(None) };
        if known.body != key.body {
            return Err(other_body());
        }
        Ok(Some(self.show_job(self.stored(known.job_id).await?)))
    }

    pub(super) async fn stored(&self, id: i64) -> Result<JobRow, ApiError> {
        let row = self.inner.store.job(id).await.map_err(|error| unreadable(&error))?;
        row.ok_or_else(|| ApiError::not_found(format!("there is no job {id}")))
    }

    /// Stops a job. Who may is the caller's business.
    pub async fn cancel(&self, by: &Caller, job: i64) -> Result<Job, ApiError> {
        self.stop_job(by, job, false).await
    }

    /// Ends a job as if it were done.
    pub async fn complete(&self, by: &Caller, job: i64) -> Result<Job, ApiError> {
        self.stop_job(by, job, true).await
    }

    async fn stop_job(&self, by: &Caller, job: i64, complete: bool) -> Result<Job, ApiError> {
        let name = by.user.username.clone();
        let row = self
            .act(|state| {
                state.cancel(&name, job, complete)?;
                Ok(state.row(job).cloned())
            })
            .await?;
        match row {
            Some(row) => Ok(self.show_job(row)),
            None => Ok(self.show_job(self.stored(job).await?)),
        }
    }

    /// Why a job waits, and when it will start.
    pub async fn explain(&self, job: i64) -> Result<Explanation, ApiError> {
        let live = self.inner.lock().explain(job);
        match live {
            Some(explanation) => Ok(explanation),
            None => Ok(explain_over(&self.show_job(self.stored(job).await?))),
        }
    }

    /// What would happen to a job. Nothing is written.
    #[allow(clippy::unused_async, reason = "asking is a call like the others")]
    pub async fn what_if(&self, by: &Caller, job: JobCreate) -> Result<Explanation, ApiError> {
        let state = self.inner.lock();
        let mut spec = job.spec;
        let queue = state.queue_for(by, spec.queue.as_deref())?;
        spec.runtime = Some(runtime(&spec));
        let sealed =
            (job.docker_password.is_some() || !job.secret_env.is_empty()).then(String::new);
        let now = Stamp::now();
        let row = JobRow {
            user_id: by.user.id,
            queue,
            spec,
            created_at: now,
            state: JobState { sealed, updated_at: now, ..JobState::default() },
            ..JobRow::default()
        };
        let asked = workload(&row)?;
        let (request, tasks) = (asked.request.clone(), asked.tasks);
        let seen = state
            .engine
            .what_if(state.clock.now(), asked)
            .map_err(|rejected| ApiError::invalid("job", rejected.to_string()))?;
        Ok(state.foresee(&row, &request, tasks, &seen))
    }
}
