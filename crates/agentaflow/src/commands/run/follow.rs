//! A job's output on stdout until the job is over, across broken connections and restarted servers.

use std::time::Duration;

use agentaflow_api::client::user::LogQuery;
use agentaflow_api::client::{Client, ClientError};
use agentaflow_api::job::Job;
use anyhow::Result;
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep};

use crate::output;

/// How long a server may be away before we give up on it.
const PATIENCE: Duration = Duration::from_mins(2);

/// Between two tries to reach it.
const PAUSE: Duration = Duration::from_millis(500);

/// Shows everything that the job writes; returns the job when it is over. The output of a gang is told apart by
/// the task's number.
pub(super) async fn to_the_end(client: &Client, job: &Job) -> Result<Job> {
    let tasks = job.spec.replicas.unwrap_or(1).max(1);
    try_join_all((0..tasks).map(|task| show(client, job.id, task, tasks > 1))).await?;
    // The last bytes may come a moment before the news that it is over.
    loop {
        let job = patient(|| client.job(job.id)).await?;
        if job.status.is_final() {
            return Ok(job);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn show(client: &Client, id: i64, task: u32, gang: bool) -> Result<()> {
    let mut shown = 0;
    let mut lines = gang.then(|| Prefixed::new(task));
    loop {
        let query =
            LogQuery { follow: true, task: Some(task), offset: Some(shown), ..LogQuery::default() };
        let mut bytes = patient(|| client.logs(id, &query)).await?;
        let broken = loop {
            match bytes.next().await {
                Ok(Some(piece)) => {
                    shown += piece.len() as u64;
                    match &mut lines {
                        Some(lines) => output::print_bytes(&lines.take(&piece))?,
                        None => output::print_bytes(&piece)?,
                    }
                }
                Ok(None) => break false,
                Err(error) if error.is_passing() => break true,
                Err(error) => return Err(error.into()),
            }
        };
        // A server that is being stopped ends the stream in good order, too: only a job that is over ends it.
        if !broken && patient(|| client.job(id)).await?.status.is_final() {
            return lines.map_or(Ok(()), |mut lines| output::print_bytes(&lines.rest()));
        }
        sleep(PAUSE / 5).await;
    }
}

/// Tries again while the server is away, as it is when it is restarted.
pub(super) async fn patient<T, F>(call: impl Fn() -> F) -> Result<T, ClientError>
where
    F: Future<Output = Result<T, ClientError>>,
{
    let since = Instant::now();
    loop {
        match call().await {
            Err(error) if error.is_passing() && since.elapsed() < PATIENCE => sleep(PAUSE).await,
            answer => return answer,
        }
    }
}

/// Output cut into whole lines that say whose they are.
struct Prefixed {
    prefix: String,
    begun: Vec<u8>,
}

impl Prefixed {
    fn new(task: u32) -> Self {
        Self { prefix: format!("[{task}] "), begun: Vec::new() }
    }

    fn take(&mut self, piece: &[u8]) -> Vec<u8> {
        self.begun.extend_from_slice(piece);
        let mut out = Vec::new();
        while let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
            out.extend_from_slice(self.prefix.as_bytes());
            out.extend(self.begun.drain(..=end));
        }
        out
    }

    /// What has no end of line, with one.
    fn rest(&mut self) -> Vec<u8> {
        if self.begun.is_empty() {
            return Vec::new();
        }
        self.take(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_gang_stay_whole_and_say_whose_they_are() {
        let mut lines = Prefixed::new(1);
        assert_eq!(lines.take(b"a\nb"), b"[1] a\n");
        assert_eq!(lines.take(b"c\n"), b"[1] bc\n");
        assert_eq!(lines.take(b"end"), b"");
        assert_eq!(lines.rest(), b"[1] end\n");
    }
}
