//! Copies the logs of a job to stdout until the job finishes, across lost connections and server restarts.

use std::time::Duration;

use agentaflow_api::client::user::LogQuery;
use agentaflow_api::client::{Bytes, Client, ClientError};
use agentaflow_api::end::EndReason;
use agentaflow_api::ids::JobId;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_kube_client::{Cluster, Failure};
use anyhow::Result;
use futures_util::TryStreamExt as _;
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep};

use super::status_line::StatusLine;
use crate::backend::Backend;
use crate::output;

const RETRY_TIMEOUT: Duration = Duration::from_mins(2);

const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Prints the logs of all tasks and returns the finished job. Lines of a gang have the task number as prefix.
pub(super) async fn follow_job(backend: &Backend, job: &Job, line: &StatusLine) -> Result<Job> {
    let tasks = job.spec.replicas.unwrap_or(1).max(1);
    let name = job.handle();
    match backend {
        Backend::Server(client) => {
            let all = (0..tasks).map(|task| follow_task(client, job.id, task, tasks > 1, line));
            try_join_all(all).await?;
        }
        Backend::Cluster(cluster) => {
            let print = |text: &[u8]| print_logs(line, text);
            let all =
                (0..tasks).map(|task| follow_pods(cluster, &name, task, tasks > 1, None, print));
            try_join_all(all).await?;
        }
    }
    // The last log line may arrive before the final status.
    loop {
        let Some(job) = find_job(backend, &name).await? else { return Ok(deleted(job)) };
        if job.status.is_final() {
            return Ok(job);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// The job, or `None` if it was deleted, as cancelling does in a cluster.
async fn find_job(backend: &Backend, name: &str) -> Result<Option<Job>> {
    match retry(|| backend.job(name), is_transient).await {
        Err(error) if matches!(error.downcast_ref(), Some(Failure::NotFound(_))) => Ok(None),
        result => result.map(Some),
    }
}

/// A job deleted before it finished.
pub(super) fn deleted(job: &Job) -> Job {
    Job {
        status: JobStatus::Cancelled,
        end_reason: Some(EndReason::Cancelled),
        error_message: Some("deleted".to_owned()),
        ..job.clone()
    }
}

/// Prints the logs of all pods of a task in turn, including replacements. The logs of pod `shown` were printed before.
pub(in crate::commands) async fn follow_pods(
    cluster: &Cluster,
    name: &str,
    task: u32,
    gang: bool,
    mut shown: Option<String>,
    print: impl Fn(&[u8]) -> Result<()>,
) -> Result<()> {
    let backend = &Backend::Cluster(cluster.clone());
    let query = LogQuery { follow: true, task: Some(task), ..LogQuery::default() };
    let mut lines = PrefixedLines::new(task);
    loop {
        let Some(job) = find_job(backend, name).await? else { return Ok(()) };
        let finished = job.status.is_final();
        let started = finished || job.status == JobStatus::Running;
        let pod = if started { cluster.pod_uid(name, task).await.ok() } else { None };
        // Each attempt has its own pod; the logs of a pod are printed once.
        if pod.is_some() && pod != shown {
            // An unstarted pod has no logs, and a pod may be deleted before this request.
            if let Ok(mut pieces) = backend.logs(name, &query).await {
                // The pod may have been replaced while the request waited for its start.
                shown = cluster.pod_uid(name, task).await.ok().or(pod);
                while let Ok(Some(piece)) = pieces.try_next().await {
                    let text = if gang { lines.take(&piece) } else { piece.to_vec() };
                    print(&text)?;
                }
                print(&lines.rest())?;
            }
        }
        if finished {
            return Ok(());
        }
        sleep(RETRY_DELAY).await;
    }
}

async fn follow_task(
    client: &Client,
    id: JobId,
    task: u32,
    gang: bool,
    line: &StatusLine,
) -> Result<()> {
    let query = LogQuery { follow: true, task: Some(task), ..LogQuery::default() };
    let stream = retry(|| client.logs(id, &query), ClientError::is_passing).await?;
    if !gang {
        return follow_stream(client, id, Some(task), stream, |piece| print_logs(line, piece))
            .await;
    }
    let mut lines = PrefixedLines::new(task);
    let each = |piece: &[u8]| print_logs(line, &lines.take(piece));
    follow_stream(client, id, Some(task), stream, each).await?;
    print_logs(line, &lines.rest())
}

/// Prints log bytes after removing the status line.
fn print_logs(line: &StatusLine, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    line.retire();
    output::print_bytes(bytes)
}

/// Prints a log stream until the job finishes, and reconnects when the stream ends early: a server may restart, and
/// limits the duration of a stream.
pub(in crate::commands) async fn follow_stream(
    client: &Client,
    id: JobId,
    task: Option<u32>,
    mut bytes: Bytes,
    mut print: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut shown = bytes.header("x-log-offset").and_then(|at| at.parse().ok()).unwrap_or(0);
    let mut finished = false;
    loop {
        let broken = loop {
            match bytes.next().await {
                Ok(Some(piece)) => {
                    shown += piece.len() as u64;
                    print(&piece)?;
                }
                Ok(None) => break false,
                Err(error) if error.is_passing() => break true,
                Err(error) => return Err(error.into()),
            }
        };
        if finished && !broken {
            return Ok(());
        }
        // Only a stream that started after the job finished is complete.
        finished = finished
            || (!broken
                && retry(|| client.job(id), ClientError::is_passing).await?.status.is_final());
        if !finished {
            sleep(RETRY_DELAY / 5).await;
        }
        let query = LogQuery { follow: !finished, task, offset: Some(shown), tail: None };
        bytes = retry(|| client.logs(id, &query), ClientError::is_passing).await?;
    }
}

/// Retries a request while the backend is unreachable, such as during a restart.
pub(super) async fn retry<T, E, F>(
    request: impl Fn() -> F,
    is_transient: impl Fn(&E) -> bool,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let start = Instant::now();
    loop {
        match request().await {
            Err(error) if is_transient(&error) && start.elapsed() < RETRY_TIMEOUT => {
                sleep(RETRY_DELAY).await;
            }
            result => return result,
        }
    }
}

pub(super) fn is_transient(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<ClientError>().is_some_and(ClientError::is_passing)
            || matches!(cause.downcast_ref(), Some(Failure::Unreachable(_)))
    })
}

/// Splits logs into whole lines with the task number as prefix.
struct PrefixedLines {
    prefix: String,
    partial: Vec<u8>,
}

impl PrefixedLines {
    fn new(task: u32) -> Self {
        Self { prefix: format!("[{task}] "), partial: Vec::new() }
    }

    fn take(&mut self, piece: &[u8]) -> Vec<u8> {
        self.partial.extend_from_slice(piece);
        let mut out = Vec::new();
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            out.extend_from_slice(self.prefix.as_bytes());
            out.extend(self.partial.drain(..=end));
        }
        out
    }

    /// Completes the last line.
    fn rest(&mut self) -> Vec<u8> {
        if self.partial.is_empty() {
            return Vec::new();
        }
        self.take(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// Sends the given responses in turn and returns the requested paths.
    fn server(
        responses: Vec<(&'static str, String)>,
    ) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serve = move || {
            let respond = |(header, body): &(&str, String)| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
                let request = head.next().unwrap().unwrap();
                while !head.next().unwrap().unwrap().is_empty() {}
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\n{header}content-length: {length}\r\n\r\n"
                );
                stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
                request.split_whitespace().nth(1).unwrap().rsplit('/').next().unwrap().to_owned()
            };
            responses.iter().map(respond).collect()
        };
        (url, std::thread::spawn(serve))
    }

    #[tokio::test]
    async fn a_stream_that_ends_early_resumes_at_its_offset() {
        let job = |status| {
            let job = Job { id: JobId(7), status, ..Job::default() };
            ("", serde_json::to_string(&job).unwrap())
        };
        let (url, requests) = server(vec![
            ("x-log-offset: 5\r\n", "one\n".to_owned()),
            job(JobStatus::Running),
            ("x-log-offset: 9\r\n", "two\n".to_owned()),
            job(JobStatus::Completed),
            ("x-log-offset: 13\r\n", "three\n".to_owned()),
        ]);
        let client = Client::new(&url, None).unwrap();
        let query = LogQuery { follow: true, tail: Some(1), ..LogQuery::default() };
        let stream = client.logs(JobId(7), &query).await.unwrap();
        let mut text = Vec::new();
        let print = |piece: &[u8]| {
            text.extend_from_slice(piece);
            Ok(())
        };
        follow_stream(&client, JobId(7), None, stream, print).await.unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "one\ntwo\nthree\n");
        let expected =
            ["logs?follow=true&tail=1", "7", "logs?follow=true&offset=9", "7", "logs?offset=13"];
        assert_eq!(requests.join().unwrap(), expected);
    }

    #[test]
    fn lines_of_a_gang_stay_whole_and_have_a_prefix() {
        let mut lines = PrefixedLines::new(1);
        assert_eq!(lines.take(b"a\nb"), b"[1] a\n");
        assert_eq!(lines.take(b"c\n"), b"[1] bc\n");
        assert_eq!(lines.take(b"end"), b"");
        assert_eq!(lines.rest(), b"[1] end\n");
    }
}
