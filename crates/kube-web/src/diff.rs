//! Events from the difference of two lists of jobs.

use agentaflow_api::Stamp;
use agentaflow_api::event::{Event, EventKind};
use agentaflow_api::job::{Job, JobStatus};

use super::rows::{Origin, Row, Rows};

/// An event with the object that it is about.
#[derive(Clone, Debug)]
pub(crate) struct RowEvent {
    pub(crate) origin: Origin,
    pub(crate) event: Event,
}

/// Changes from one list to the next, in the order of their time.
pub(crate) fn news(old: &Rows, new: &Rows, now: Stamp) -> Vec<RowEvent> {
    let mut news = Vec::new();
    for (id, row) in &new.jobs {
        for (kind, at, message) in changes(old.jobs.get(id), &row.job, now) {
            news.push(row_event(row, kind, at, message));
        }
    }
    for (id, row) in &old.jobs {
        if !new.jobs.contains_key(id) && !row.job.status.is_final() {
            news.push(row_event(row, EventKind::Cancelled, now, "deleted".to_owned()));
        }
    }
    news.sort_by_key(|news| news.event.at);
    news
}

fn changes(old: Option<&Row>, job: &Job, now: Stamp) -> Vec<(EventKind, Stamp, String)> {
    let mut changes = Vec::new();
    if old.is_none() {
        changes.push((EventKind::Submitted, job.created_at, "submitted".to_owned()));
    }
    let old = old.map(|row| &row.job);
    if old.is_some_and(|old| !old.cancel_requested && job.cancel_requested) {
        changes.push((EventKind::CancelRequested, now, "is being deleted".to_owned()));
    }
    let was = old.map_or(JobStatus::Pending, |old| old.status);
    let waits = old.and_then(|old| old.wait_reason.as_ref()) != job.wait_reason.as_ref();
    if was != job.status {
        changes.push(status(job, now));
    } else if waits && let Some(reason) = &job.wait_reason {
        changes.push((EventKind::Waiting, now, reason.clone()));
    }
    changes
}

fn status(job: &Job, now: Stamp) -> (EventKind, Stamp, String) {
    let nodes = || {
        let mut nodes: Vec<&str> = job.tasks.iter().map(|task| task.node_name.as_str()).collect();
        nodes.dedup();
        nodes.join(", ")
    };
    let ended = job.completed_at.unwrap_or(now);
    match job.status {
        JobStatus::Scheduled => (EventKind::Scheduled, now, format!("placed on {}", nodes())),
        JobStatus::Running => {
            (EventKind::Started, job.started_at.unwrap_or(now), format!("runs on {}", nodes()))
        }
        JobStatus::Completed => (EventKind::Completed, ended, "completed".to_owned()),
        JobStatus::Failed => {
            let cause = job.error_message.clone().unwrap_or_else(|| "failed".to_owned());
            (EventKind::Failed, ended, cause)
        }
        JobStatus::Cancelled => (EventKind::Cancelled, ended, "cancelled".to_owned()),
        JobStatus::Pending => (EventKind::Requeued, now, "pending again".to_owned()),
    }
}

fn row_event(row: &Row, kind: EventKind, at: Stamp, message: String) -> RowEvent {
    let name = row.job.k8s_job_name.clone().unwrap_or_default();
    let event =
        Event { at, kind, message, job_id: Some(row.job.id), job: Some(name), ..Event::default() };
    RowEvent { origin: row.origin.clone(), event }
}

#[cfg(test)]
mod tests {
    use agentaflow_api::ids::JobId;

    use super::*;

    fn rows(jobs: &[(i64, JobStatus, Option<&str>)]) -> Rows {
        let row = |(id, status, waits): &(i64, JobStatus, Option<&str>)| {
            let job = Job {
                id: JobId(*id),
                status: *status,
                wait_reason: waits.map(str::to_owned),
                ..Job::default()
            };
            (JobId(*id), Row { origin: Origin::Workload("ml".to_owned()), job })
        };
        Rows { jobs: jobs.iter().map(row).collect(), ..Rows::default() }
    }

    fn kinds(old: &Rows, new: &Rows) -> Vec<(i64, EventKind)> {
        let told = news(old, new, Stamp::default()).into_iter();
        told.map(|news| (news.event.job_id.unwrap().0, news.event.kind)).collect()
    }

    #[test]
    fn each_change_of_a_job_is_one_event() {
        use JobStatus::{Completed, Pending, Running};
        let before = rows(&[
            (1, Pending, Some("full")),
            (2, Running, None),
            (3, Completed, None),
            (4, Pending, None),
        ]);
        let after = rows(&[(1, Pending, Some("quota")), (2, Completed, None), (5, Running, None)]);
        let expected = [
            (1, EventKind::Waiting),
            (2, EventKind::Completed),
            (5, EventKind::Submitted),
            (5, EventKind::Started),
            (4, EventKind::Cancelled),
        ];
        assert_eq!(kinds(&before, &after), expected);
        assert_eq!(kinds(&after, &after), []);
    }
}
