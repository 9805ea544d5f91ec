//! Progress of a job on stderr: forecast, pending reason, queue position, and nodes.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

use agentaflow_api::Stamp;
use agentaflow_api::explain::Explanation;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::pending::{PendingCode, PendingReason};
use agentaflow_backoff::BackoffPolicy;
use agentaflow_console::format::{money, one_line};
use agentaflow_console::labels;
use tokio::time::{Instant, timeout};

use super::status_line::StatusLine;
use crate::backend::{Backend, Submission};

/// Delays between requests for the state of a job; starts again at each change.
const POLLS: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(150), Duration::from_secs(3)).with_factor(1.5);

/// Shortest time between two forecasts, which the scheduler computes by simulation, and the limit of one.
const FORECAST_INTERVAL: Duration = Duration::from_secs(3);

const FORECAST_TIMEOUT: Duration = Duration::from_millis(1500);

/// Prints expected nodes and cost, if the backend answers in time.
pub(super) async fn print_forecast(backend: &Backend, submission: &Submission) {
    let Ok(Ok(forecast)) = timeout(FORECAST_TIMEOUT, backend.what_if(submission)).await else {
        return;
    };
    let mut nodes: Vec<_> =
        forecast.placement.iter().map(|task| one_line(&task.node_name)).collect();
    nodes.sort();
    nodes.dedup();
    let price = forecast.price_per_hour.filter(|price| price.0 > 0);
    let price = price.map(|price| format!(", {} per hour", money(price))).unwrap_or_default();
    let all = forecast.estimated_cost.map(|cost| format!(", {} in total", money(cost)));
    let all = all.filter(|_| !price.is_empty()).unwrap_or_default();
    match nodes.is_empty() {
        false => eprintln!("Expected on {}{price}{all}", nodes.join(", ")),
        true if !price.is_empty() => eprintln!("Expected to stay pending{price}{all}"),
        true => {}
    }
}

/// Warns on a terminal if a detached job cannot start on the current nodes. A script can use `what-if` instead.
pub(in crate::commands) async fn warn_if_unschedulable(backend: &Backend, submission: &Submission) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let Ok(Ok(forecast)) = timeout(FORECAST_TIMEOUT, backend.what_if(submission)).await else {
        return;
    };
    let code = forecast.pending_reason.as_ref().map(PendingReason::code);
    if matches!(code, Some(PendingCode::NeverFits | PendingCode::NoNodes)) {
        let reason = one_line(&forecast.summary);
        eprintln!("warning: the job cannot start on the current nodes: {reason}");
    }
}

/// Prints every change; never returns.
pub(super) async fn print_progress(backend: &Backend, name: &str, line: &StatusLine) {
    let mut latest = LatestExplanation::default();
    let mut backoff = POLLS.start();
    loop {
        backoff.sleep().await;
        // The log follower reports an unreachable server.
        let Ok(job) = backend.job(name).await else { continue };
        let changed = if job.status == JobStatus::Pending {
            latest.refresh(backend, name).await;
            let explanation = latest.explanation.as_ref();
            let Some([text, short]) = pending_text(&job, explanation) else { continue };
            let topic = code(&job, explanation).map_or("pending", PendingCode::as_str);
            let [text, short] = [text, short].map(|text| format!("Job {name} {text}"));
            line.show_transient(topic, &text, &short)
        } else {
            let text = placed_text(&job);
            !text.is_empty() && line.print(&text, &format!("Job {name} {text}"))
        };
        if changed {
            backoff.reset();
        }
    }
}

/// Latest explanation of a pending job. The scheduler computes it by simulation, so requests are rate-limited.
#[derive(Default)]
struct LatestExplanation {
    requested_at: Option<Instant>,
    explanation: Option<Explanation>,
}

impl LatestExplanation {
    async fn refresh(&mut self, backend: &Backend, name: &str) {
        if self.requested_at.is_some_and(|at| at.elapsed() < FORECAST_INTERVAL) {
            return;
        }
        self.requested_at = Some(Instant::now());
        self.explanation =
            timeout(FORECAST_INTERVAL, backend.explain(name)).await.ok().and_then(Result::ok);
    }
}

/// Position and ETA, which are short, and then the reason; whole and for a narrow terminal.
fn pending_text(job: &Job, explanation: Option<&Explanation>) -> Option<[String; 2]> {
    let mut text = "pending".to_owned();
    if let Some(explanation) = explanation {
        if let Some(position) = explanation.position {
            let _ = write!(text, ", position {position} of {}", explanation.waiting);
        }
        if !explanation.eta_text.is_empty() {
            let eta = agentaflow_explain::uncapitalised(&explanation.eta_text);
            let _ = write!(text, ", {}", one_line(&eta));
        }
    }
    let now = Stamp::now();
    let reason = reason(job, explanation);
    let whole = match (reason, &job.wait_reason) {
        (Some(reason), _) => agentaflow_explain::pending::reason(reason, now),
        (None, Some(message)) => message.clone(),
        // The scheduler has not seen the job yet; reported only with the next explanation.
        (None, None) => {
            let text = explanation.map(|_| format!("{text}; no reason reported yet"))?;
            return Some([text.clone(), text]);
        }
    };
    let short = reason.map(|reason| agentaflow_explain::pending::short_reason(reason, now));
    let short = short.unwrap_or_else(|| whole.clone());
    Some([whole, short].map(|reason| format!("{text}: {}", one_line(&reason))))
}

/// The explanation is newer than the reason stored with the job.
fn reason<'a>(job: &'a Job, explanation: Option<&'a Explanation>) -> Option<&'a PendingReason> {
    explanation
        .and_then(|explanation| explanation.pending_reason.as_ref())
        .or(job.pending_reason.as_ref())
}

/// Reasons that differ only in numbers have the same code.
fn code(job: &Job, explanation: Option<&Explanation>) -> Option<PendingCode> {
    reason(job, explanation).map(PendingReason::code)
}

fn placed_text(job: &Job) -> String {
    let nodes = labels::job_nodes(job);
    let simulated = job.simulated && job.tasks.iter().any(|task| !task.gpus.is_empty());
    match (job.status, &job.error_message) {
        (JobStatus::Scheduled, Some(error)) => {
            format!("not started on {nodes}: {}", one_line(error))
        }
        (JobStatus::Scheduled, None) => format!("starting on {nodes}"),
        (JobStatus::Running, _) if simulated => {
            format!("running on {nodes} with SIMULATED GPUs: no device")
        }
        (JobStatus::Running, _) => format!("running on {nodes}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(note: Option<&str>) -> Job {
        let reported = |note: &str| PendingReason::Reported {
            reason: PendingCode::NoRoom,
            note: note.to_owned(),
        };
        Job {
            wait_reason: note.map(str::to_owned),
            pending_reason: note.map(reported),
            ..Job::default()
        }
    }

    #[test]
    fn a_pending_job_shows_position_eta_and_reason() {
        let explanation = Explanation {
            position: Some(2),
            waiting: 7,
            eta_text: "starts in about 5m".to_owned(),
            ..Explanation::default()
        };
        let fresh = Explanation {
            pending_reason: Some(PendingReason::NoNodes { unreachable: 0 }),
            ..explanation.clone()
        };
        let bare = Explanation::default();
        let head = "pending, position 2 of 7, starts in about 5m";
        let table = [
            (Some("no\nroom"), Some(&explanation), format!("{head}: no room")),
            (Some("old reason"), Some(&fresh), format!("{head}: No nodes in the cluster")),
            (Some("no room"), Some(&bare), "pending: no room".to_owned()),
            (Some("no room"), None, "pending: no room".to_owned()),
            (None, Some(&bare), "pending; no reason reported yet".to_owned()),
        ];
        for (reason, explanation, expected) in table {
            let [text, _] = pending_text(&job(reason), explanation).unwrap();
            assert_eq!(text, expected);
        }
        assert_eq!(pending_text(&job(None), None), None);
        assert_eq!(code(&job(Some("x")), Some(&explanation)), Some(PendingCode::NoRoom));
        assert_eq!(code(&job(Some("x")), Some(&fresh)), Some(PendingCode::NoNodes));
    }
}
