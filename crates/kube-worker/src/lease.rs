//! Leased tasks: each Job has a deadline that the agent extends with every renewal of the lease. Without an agent,
//! Kubernetes itself ends the Job.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;
use tracing::warn;

use crate::runtime::Jobs;
use crate::{fault, names, object};

/// Retry interval while the API server does not answer; short, so that deadlines do not pass meanwhile.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Extends deadlines after each renewal of the lease; never ends.
pub(crate) async fn extend_deadlines(jobs: Arc<Jobs>) {
    loop {
        jobs.renewal.notified().await;
        while !jobs.extend_all().await {
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

impl Jobs {
    pub(crate) fn lease_left(&self) -> Duration {
        self.lease_end().saturating_duration_since(Instant::now())
    }

    /// Extends every deadline to the end of the lease. Returns false if a request failed.
    async fn extend_all(&self) -> bool {
        let mut all = true;
        for job in self.watch.jobs().iter().filter(|job| is_leased(job)) {
            let now = match self.clock.now(&self.settings.client).await {
                Ok(now) => now,
                Err(error) => {
                    warn!(%error, "cannot read the time of the API server; deadlines are not extended");
                    return false;
                }
            };
            let Some(seconds) = deadline(job, self.lease_left(), now) else { continue };
            let name = job.metadata.name.clone().unwrap_or_default();
            let patch = Patch::Merge(json!({"spec": {"activeDeadlineSeconds": seconds}}));
            let extended = self.jobs_api().patch(&name, &PatchParams::default(), &patch).await;
            if let Err(error) = extended
                && !fault::is_missing(&error)
            {
                warn!(job = name, %error, "cannot extend the deadline of a Job");
                all = false;
            }
        }
        all
    }
}

fn is_leased(job: &Job) -> bool {
    let label = |name: &str| job.metadata.labels.as_ref()?.get(name).map(String::as_str);
    label(names::LEASED) == Some("true") && label(names::DONE).is_none()
}

/// New `activeDeadlineSeconds` of a Job, counted from its start by the cluster's clock; `None` if the Job needs no
/// extension.
fn deadline(job: &Job, left: Duration, now: jiff::Timestamp) -> Option<i64> {
    if !is_leased(job) || left.is_zero() {
        return None;
    }
    let status = job.status.as_ref()?;
    let finished = status.conditions.iter().flatten().any(|found| {
        matches!(
            found.type_.as_str(),
            "Complete" | "Failed" | "FailureTarget" | "SuccessCriteriaMet"
        )
    });
    let started = status.start_time.as_ref().filter(|_| !finished)?;
    let age = Duration::from_millis(
        u64::try_from(now.as_millisecond() - started.0.as_millisecond()).unwrap_or(0),
    );
    let seconds = object::seconds(age + left);
    let present = job.spec.as_ref()?.active_deadline_seconds?;
    (seconds > present).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn only_deadlines_of_running_leased_jobs_are_extended() {
        let now: jiff::Timestamp = "2026-11-15T10:01:40Z".parse().unwrap();
        let of = |labels: Value, status: Value| -> Option<i64> {
            let spec = json!({"activeDeadlineSeconds": 120, "template": {}});
            let job = json!({"metadata": {"labels": labels}, "spec": spec, "status": status});
            deadline(&serde_json::from_value(job).unwrap(), Duration::from_mins(1), now)
        };
        let leased = json!({names::LEASED: "true"});
        let runs = json!({"startTime": "2026-11-15T10:00:00Z"});
        assert_eq!(of(leased.clone(), runs.clone()), Some(160));
        assert_eq!(of(leased.clone(), json!({"startTime": "2026-11-15T10:00:40Z"})), None);
        assert_eq!(of(leased.clone(), json!({})), None);
        assert_eq!(of(json!({names::LEASED: "false"}), runs.clone()), None);
        assert_eq!(of(json!({names::LEASED: "true", names::DONE: "true"}), runs), None);
        let over = json!({"startTime": "2026-11-15T10:00:00Z", "conditions": [{"type": "Complete", "status": "True"}]});
        assert_eq!(of(leased, over), None);
    }
}
