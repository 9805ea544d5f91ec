//! Explanations of pending and ended jobs, and forecasts for new ones.

use agentaflow_api::explain::{Explanation, PlannedTask};
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::pending::{PendingCode, PendingReason};
use agentaflow_explain::End;
use serde_json::{Value, json};

use super::named::{Kind, Named, is_name};
use super::scheduler::Port;
use super::{Cluster, Failure, ending, show, units};

impl Cluster {
    /// Explains a pending reason or an end. The scheduler answers if it is reachable; otherwise the explanation is derived
    /// from conditions, pods and events, and names that limitation.
    pub async fn explain(&self, name: &str) -> Result<Explanation, Failure> {
        if let Some((namespace, name)) = units::parse(name, &self.namespace) {
            return self.explain_unit(namespace, name).await;
        }
        let named = self.named(name)?;
        let job = self.job_of(&named).await?;
        if job.status.is_final() {
            return Ok(over(&job, &self.tail_of(&named, &job).await));
        }
        if let Some(failure) = self.start_failure(&named, &job).await? {
            return Ok(failure);
        }
        let path = format!("/explain/{}/{}", named.namespace, named.name);
        let message = self.ask_scheduler("GET", Port::Http, &path, None).await;
        match message.and_then(|text| answer(&text)) {
            Ok(explanation) => Ok(completed(explanation, &job)),
            Err(Failure::NotFound(_)) => {
                self.explain_without_scheduler(&named, &job, "the scheduler does not know it (yet)")
                    .await
            }
            Err(why) => {
                let why = format!("the scheduler could not be asked ({why})");
                self.explain_without_scheduler(&named, &job, &why).await
            }
        }
    }

    /// Evaluates an object that is not submitted.
    pub async fn what_if(&self, object: &Value) -> Result<Explanation, Failure> {
        if !is_name(&self.namespace) {
            return Err(Failure::refused(format!("`{}` is not a namespace", self.namespace)));
        }
        let path = format!("/what-if?namespace={}", self.namespace);
        let text = self.ask_scheduler("POST", Port::Http, &path, Some(object)).await;
        let text = text.map_err(|error| match error {
            Failure::NotFound(_) => Failure::Unsupported(
                "the scheduler of this cluster is too old to answer what-if questions".to_owned(),
            ),
            other => other,
        })?;
        serde_json::from_str(&text).map_err(|error| unreadable(&error))
    }

    /// End of the output of a failed job.
    async fn tail_of(&self, named: &Named, job: &Job) -> String {
        if job.status != JobStatus::Failed {
            return String::new();
        }
        let broken = job.tasks.iter().find(|task| task.exit_code.is_some_and(|code| code != 0));
        self.tail(named, broken.map_or(0, |task| task.task)).await
    }

    /// Obstacle to the start of a placed job, such as a failed image pull.
    async fn start_failure(
        &self,
        named: &Named,
        job: &Job,
    ) -> Result<Option<Explanation>, Failure> {
        let Some(message) = job.error_message.clone().filter(|_| named.kind == Kind::Workload)
        else {
            return Ok(None);
        };
        let pods = self.pods_of(&self.workload(named).await?).await?;
        let reason = show::current(&pods).values().find_map(|pod| ending::of(pod).reason);
        let text = agentaflow_explain::end(&End { reason, detail: &message, ..End::default() });
        Ok(Some(Explanation {
            status: job.status,
            detail: Some(format!("Remedy: {}", text.remedy)),
            summary: message,
            end_reason: reason,
            placement: places(job),
            price_per_hour: job.price_per_hour,
            ..Explanation::default()
        }))
    }

    /// Explanation from conditions, pods and events, without the scheduler.
    async fn explain_without_scheduler(
        &self,
        named: &Named,
        job: &Job,
        caveat: &str,
    ) -> Result<Explanation, Failure> {
        let events = self.events(Some(&named.handle(true))).await.unwrap_or_default();
        let warning =
            events.iter().rev().find(|event| event.data.get("type") == Some(&json!("Warning")));
        let warning = warning.map(|event| event.message.clone());
        let mut nodes: Vec<&str> = job.tasks.iter().map(|task| task.node_name.as_str()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let text = match job.status {
            JobStatus::Running => format!("Running on {}", nodes.join(", ")),
            JobStatus::Scheduled => format!("Starting on {}", nodes.join(", ")),
            _ => job
                .wait_reason
                .clone()
                .unwrap_or_else(|| agentaflow_explain::pending::NO_REASON.to_owned()),
        };
        Ok(Explanation {
            status: job.status,
            summary: format!("{}; {caveat}", text.trim_end_matches('.')),
            detail: warning.filter(|words| job.wait_reason.as_ref() != Some(words)),
            pending_reason: job.pending_reason.clone(),
            placement: places(job),
            price_per_hour: job.price_per_hour,
            ..Explanation::default()
        })
    }
}

/// Decodes the response of the scheduler.
pub(super) fn answer(text: &str) -> Result<Explanation, Failure> {
    let mut answer: Value = serde_json::from_str(text).map_err(|error| unreadable(&error))?;
    if answer["explanation"].is_object() {
        return serde_json::from_value(answer["explanation"].take())
            .map_err(|error| unreadable(&error));
    }
    // An older scheduler returns only sentences.
    let lines = answer["lines"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let summary = lines.collect::<Vec<_>>().join("; ");
    let pending_reason = answer["reason"].as_str().map(|word| PendingReason::Reported {
        reason: PendingCode::from_word(word),
        note: summary.clone(),
    });
    Ok(Explanation { summary, pending_reason, ..Explanation::default() })
}

fn unreadable(error: &serde_json::Error) -> Failure {
    Failure::Other(format!("the scheduler's answer cannot be read: {error}"))
}

/// Adds status and cost of the job, which the scheduler does not know.
fn completed(mut message: Explanation, job: &Job) -> Explanation {
    message.status = job.status;
    message.price_per_hour = message.price_per_hour.or(job.price_per_hour);
    if job.status != JobStatus::Pending {
        message.eta = job.started_at;
        if message.placement.iter().all(|task| task.gpus.is_empty()) && !job.tasks.is_empty() {
            message.placement = places(job);
        }
    }
    message
}

fn places(job: &Job) -> Vec<PlannedTask> {
    let place = |task: &agentaflow_api::job::TaskPlace| PlannedTask {
        task: task.task,
        node_id: task.node_id.clone(),
        node_name: task.node_name.clone(),
        gpus: task.gpus.clone(),
        simulated: false,
    };
    job.tasks.iter().map(place).collect()
}

/// Explanation of an ended job.
fn over(job: &Job, output: &str) -> Explanation {
    let base = Explanation {
        status: job.status,
        end_reason: job.end_reason,
        eta: job.started_at,
        placement: places(job),
        price_per_hour: job.price_per_hour,
        ..Explanation::default()
    };
    if job.status != JobStatus::Failed {
        let completed = job.status == JobStatus::Completed;
        let summary = if completed { "Completed" } else { "Cancelled" }.to_owned();
        return Explanation { summary, ..base };
    }
    let message = job.error_message.as_deref().unwrap_or_default();
    let cause = job.end_cause.or_else(|| agentaflow_explain::find_cause(output));
    let (reason, exit_code) = (job.end_reason, job.exit_code);
    let text = agentaflow_explain::end(&End { reason, cause, exit_code, detail: message });
    Explanation {
        summary: format!("Failed: {}", text.summary),
        end_reason: agentaflow_explain::end_reason(reason, cause),
        end_cause: cause,
        detail: Some(format!("Remedy: {}", text.remedy)),
        ..base
    }
}

#[cfg(test)]
mod tests {
    use agentaflow_api::end::EndReason;

    use super::*;

    #[test]
    fn the_explanation_of_a_failed_job_names_the_cause_and_the_remedy() {
        let job = |reason: EndReason, code: Option<i32>| Job {
            status: JobStatus::Failed,
            end_reason: Some(reason),
            exit_code: code,
            error_message: Some("It failed.".to_owned()),
            ..Job::default()
        };
        let table = [
            (job(EndReason::Exited, Some(3)), "", EndReason::Exited),
            (job(EndReason::Exited, Some(1)), "CUDA out of memory.", EndReason::GpuOutOfMemory),
            (job(EndReason::OutOfMemory, Some(137)), "", EndReason::OutOfMemory),
            (job(EndReason::TimedOut, None), "", EndReason::TimedOut),
            (job(EndReason::Evicted, None), "", EndReason::Evicted),
        ];
        for (job, output, reason) in table {
            let message = over(&job, output);
            assert_eq!(message.end_reason, Some(reason), "{message:?}");
            assert!(message.detail.is_some(), "{message:?}");
        }
        let well = over(&Job { status: JobStatus::Completed, ..Job::default() }, "");
        assert_eq!((well.status, well.detail), (JobStatus::Completed, None));
    }

    #[test]
    fn answers_of_older_schedulers_are_understood() {
        let message = answer(r#"{"state": "Waiting", "reason": "NoRoom", "lines": ["a", "b"]}"#);
        let message = message.unwrap();
        let code = message.pending_reason.as_ref().map(PendingReason::code);
        assert_eq!((message.summary.as_str(), code), ("a; b", Some(PendingCode::NoRoom)));
        assert!(answer("<html>").is_err());
    }
}
