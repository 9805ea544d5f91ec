//! Says on stderr where a job would go, why it waits, when its turn comes, and where it runs.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

use agentaflow_api::explain::Explanation;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_backoff::BackoffPolicy;
use agentaflow_console::format::{money, one_line};
use agentaflow_console::labels;
use tokio::time::{Instant, timeout};

use super::line::Line;
use crate::backend::{Backend, Work};

/// Delays between requests for the state of a job; starts again at each change.
const POLLS: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(150), Duration::from_secs(3)).with_factor(1.5);

/// Shortest time between two forecasts, which the scheduler computes by simulation, and the limit of one.
const FORECAST_INTERVAL: Duration = Duration::from_secs(3);

/// Nobody waits longer to hear where a job would go.
const FORETELL: Duration = Duration::from_millis(1500);

/// Says where work would go and what it would cost, if that can be told at once.
pub(super) async fn foretell(backend: &Backend, work: &Work) {
    let Ok(Ok(said)) = timeout(FORETELL, backend.try_out(work)).await else { return };
    let mut nodes: Vec<_> = said.placement.iter().map(|task| one_line(&task.node_name)).collect();
    nodes.sort();
    nodes.dedup();
    let price = said.price_per_hour.filter(|price| price.0 > 0);
    let price = price.map(|price| format!(", {} an hour", money(price))).unwrap_or_default();
    let all = said.estimated_cost.map(|cost| format!(", {} in all", money(cost)));
    let all = all.filter(|_| !price.is_empty()).unwrap_or_default();
    match nodes.is_empty() {
        false => eprintln!("would run on {}{price}{all}", nodes.join(", ")),
        true if !price.is_empty() => eprintln!("would wait{price}{all}"),
        true => {}
    }
}

/// Says to a person of work that was handed in and is not watched that it cannot start as things are. A script is not
/// kept waiting: it asks `what-if` when it wants to know.
pub(in crate::commands) async fn warn_if_never(backend: &Backend, work: &Work) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let Ok(Ok(said)) = timeout(FORETELL, backend.try_out(work)).await else { return };
    if matches!(said.reason.as_deref(), Some("NeverFits" | "NoNodes")) {
        let why = said.detail.as_deref().unwrap_or(&said.summary);
        eprintln!("warning: it cannot start as things are: {}", one_line(why));
    }
}

/// Tells of every change; never ends.
pub(super) async fn tell(backend: &Backend, name: &str, line: &Line) {
    let mut outlook = Outlook::default();
    let mut backoff = POLLS.start();
    loop {
        backoff.sleep().await;
        // A server that is away is the business of the one who shows the output.
        let Ok(job) = backend.job(name).await else { continue };
        let news = if job.status == JobStatus::Pending {
            outlook.refresh(backend, name).await;
            let Some(words) = waits(&job, outlook.said.as_ref()) else { continue };
            line.passing(&kind(&job, outlook.said.as_ref()), &format!("job {name} {words}"))
        } else {
            let words = words(&job);
            !words.is_empty() && line.lasting(&words, &format!("job {name} {words}"))
        };
        if news {
            backoff.reset();
        }
    }
}

/// What is known about a wait. To find it out, whoever schedules looks into the future: that is not asked for often.
#[derive(Default)]
struct Outlook {
    asked: Option<Instant>,
    said: Option<Explanation>,
}

impl Outlook {
    async fn refresh(&mut self, backend: &Backend, name: &str) {
        if self.asked.is_some_and(|at| at.elapsed() < FORECAST_INTERVAL) {
            return;
        }
        self.asked = Some(Instant::now());
        self.said =
            timeout(FORECAST_INTERVAL, backend.explain(name)).await.ok().and_then(Result::ok);
    }
}

/// What a waiting job is told: its place and its time first, which are short; then the reason.
fn waits(job: &Job, said: Option<&Explanation>) -> Option<String> {
    let mut text = "waits".to_owned();
    if let Some(said) = said {
        if let Some(position) = said.position {
            let _ = write!(text, ", place {position} of {}", said.waiting);
        }
        if !said.eta_text.is_empty() {
            let _ = write!(text, ", {}", one_line(&said.eta_text));
        }
    }
    match reason(job, said) {
        Some(reason) => Some(format!("{text}: {}", one_line(reason))),
        // Nobody has looked at it: that is worth a word only if it stays so.
        None => said.map(|_| format!("{text}; nobody has said why yet")),
    }
}

/// The job itself is told later than whoever asks the scheduler, and sometimes not again while the kind stays.
fn reason<'a>(job: &'a Job, said: Option<&'a Explanation>) -> Option<&'a str> {
    said.and_then(|said| said.detail.as_deref()).or(job.wait_reason.as_deref())
}

/// Waits of one kind differ in numbers only.
fn kind(job: &Job, said: Option<&Explanation>) -> String {
    let word = said.and_then(|said| said.reason.clone());
    let opening = || reason(job, said)?.split(':').next().map(numberless);
    format!("waits {}", word.or_else(opening).unwrap_or_default())
}

fn numberless(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn words(job: &Job) -> String {
    let nodes = labels::job_nodes(job);
    let simulated = job.simulated && job.tasks.iter().any(|task| !task.gpus.is_empty());
    match (job.status, &job.error_message) {
        (JobStatus::Scheduled, Some(trouble)) => {
            format!("cannot start on {nodes} yet: {}", one_line(trouble))
        }
        (JobStatus::Scheduled, None) => format!("starts on {nodes}"),
        (JobStatus::Running, _) if simulated => {
            format!("runs on {nodes} with SIMULATED GPUs: it gets no device")
        }
        (JobStatus::Running, _) => format!("runs on {nodes}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(reason: Option<&str>) -> Job {
        Job { wait_reason: reason.map(str::to_owned), ..Job::default() }
    }

    #[test]
    fn a_waiting_job_hears_its_place_its_time_and_the_reason() {
        let said = Explanation {
            position: Some(2),
            waiting: 7,
            eta_text: "starts in about 5m".to_owned(),
            reason: Some("NoRoom".to_owned()),
            ..Explanation::default()
        };
        let fresh = Explanation { detail: Some("no GPU is free".to_owned()), ..said.clone() };
        let bare = Explanation::default();
        let table = [
            (Some("no\nroom"), Some(&said), "waits, place 2 of 7, starts in about 5m: no room"),
            (
                Some("nobody has looked"),
                Some(&fresh),
                "waits, place 2 of 7, starts in about 5m: no GPU is free",
            ),
            (Some("no room"), Some(&bare), "waits: no room"),
            (Some("no room"), None, "waits: no room"),
            (None, Some(&bare), "waits; nobody has said why yet"),
        ];
        for (reason, said, expected) in table {
            assert_eq!(waits(&job(reason), said).as_deref(), Some(expected));
        }
        assert_eq!(waits(&job(None), None), None);
    }

    #[test]
    fn waits_are_of_one_kind_while_only_numbers_change() {
        let said = |word: Option<&str>| Explanation {
            reason: word.map(str::to_owned),
            ..Explanation::default()
        };
        let (room, quota, outside) = (said(Some("NoRoom")), said(Some("Quota")), said(None));
        let (two, three) = (job(Some("0/2 fit: 2 lack")), job(Some("0/3 fit: 1 lacks")));
        assert_eq!(kind(&two, Some(&room)), kind(&three, Some(&room)));
        assert_eq!(kind(&two, Some(&outside)), kind(&three, None));
        assert_ne!(kind(&two, Some(&room)), kind(&two, Some(&quota)));
        assert_ne!(kind(&two, None), kind(&job(Some("queue is full")), None));
    }
}
