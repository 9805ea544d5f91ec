//! Says on stderr why a job waits and where it runs.

use std::time::Duration;

use agentaflow_api::client::Client;
use agentaflow_api::job::{Job, JobStatus};
use tokio::time::sleep;

use crate::listing::{self, one_line};

/// How often we look: soon at first, seldom while nothing changes.
const SOONEST: Duration = Duration::from_millis(150);
const SELDOM: Duration = Duration::from_secs(3);

/// Tells of every change; never ends.
pub(super) async fn tell(client: &Client, id: i64) {
    let mut said = String::new();
    let mut pause = SOONEST;
    loop {
        sleep(pause).await;
        pause = (pause * 3 / 2).min(SELDOM);
        // A server that is away is the business of the one who shows the output.
        let Ok(job) = client.job(id).await else { continue };
        let words = words(&job);
        if !words.is_empty() && words != said {
            eprintln!("job {id} {words}");
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
