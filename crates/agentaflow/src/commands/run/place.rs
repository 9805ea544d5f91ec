//! Says on stderr why a job waits and where it runs.

use std::time::Duration;

use agentaflow_api::job::{Job, JobStatus};
use tokio::time::sleep;

use crate::backend::{Backend, Work};
use crate::listing::{self, money, one_line};

/// How often we look: soon at first, seldom while nothing changes.
const SOONEST: Duration = Duration::from_millis(150);
const SELDOM: Duration = Duration::from_secs(3);

/// Nobody waits longer to hear where a job would go.
const FORETELL: Duration = Duration::from_millis(1500);

/// Says where work would go and what it would cost, if that can be told at once.
pub(super) async fn foretell(backend: &Backend, work: &Work) {
    let Ok(Ok(said)) = tokio::time::timeout(FORETELL, backend.try_out(work)).await else { return };
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

/// Tells of every change; never ends.
pub(super) async fn tell(backend: &Backend, name: &str) {
    let mut said = String::new();
    let mut pause = SOONEST;
    loop {
        sleep(pause).await;
        pause = (pause * 3 / 2).min(SELDOM);
        // A server that is away is the business of the one who shows the output.
        let Ok(job) = backend.job(name).await else { continue };
        let words = words(&job);
        if !words.is_empty() && words != said {
            eprintln!("job {name} {words}");
            said = words;
            pause = SOONEST;
        }
    }
}

fn words(job: &Job) -> String {
    match job.status {
        JobStatus::Pending => match &job.wait_reason {
            Some(reason) => format!("waits: {}", one_line(reason)),
            None => "waits".to_owned(),
        },
        JobStatus::Scheduled => format!("starts on {}", listing::job_nodes(job)),
        JobStatus::Running
            if job.simulated && job.tasks.iter().any(|task| !task.gpus.is_empty()) =>
        {
            format!("runs on {} with SIMULATED GPUs: it gets no device", listing::job_nodes(job))
        }
        JobStatus::Running => format!("runs on {}", listing::job_nodes(job)),
        _ => String::new(),
    }
}
