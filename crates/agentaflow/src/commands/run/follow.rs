//! A job's output on stdout until the job is over, across broken connections and restarted servers.

use std::time::Duration;

use agentaflow_api::client::user::LogQuery;
use agentaflow_api::client::{Bytes, Client, ClientError};
use agentaflow_api::end::EndReason;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_kube_client::{Cluster, Failure};
use anyhow::Result;
use futures_util::TryStreamExt as _;
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep};

use super::line::Line;
use crate::backend::Backend;
use crate::output;

/// How long a server may be away before we give up on it.
const PATIENCE: Duration = Duration::from_mins(2);

/// Between two tries to reach it.
const PAUSE: Duration = Duration::from_millis(500);

/// Shows everything that the job writes; returns the job when it is over. The output of a gang is told apart by
/// the task's number.
pub(super) async fn to_the_end(backend: &Backend, job: &Job, line: &Line) -> Result<Job> {
    let tasks = job.spec.replicas.unwrap_or(1).max(1);
    let name = job.handle();
    match backend {
        Backend::Server(client) => {
            let all = (0..tasks).map(|task| task_to_the_end(client, job.id, task, tasks > 1, line));
            try_join_all(all).await?;
        }
        Backend::Cluster(cluster) => {
            let say = |text: &[u8]| show(line, text);
            let all =
                (0..tasks).map(|task| pods_to_the_end(cluster, &name, task, tasks > 1, None, say));
            try_join_all(all).await?;
        }
    }
    // The last bytes may come a moment before the news that it is over.
    loop {
        let Some(job) = if_there(backend, &name).await? else { return Ok(deleted(job)) };
        if job.status.is_final() {
            return Ok(job);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// The job, unless it is gone: in a cluster, who stops a job deletes it.
async fn if_there(backend: &Backend, name: &str) -> Result<Option<Job>> {
    match patiently(|| backend.job(name)).await {
        Err(error) if matches!(error.downcast_ref(), Some(Failure::NotFound(_))) => Ok(None),
        answer => answer.map(Some),
    }
}

/// A job that is gone before it was over.
pub(super) fn deleted(job: &Job) -> Job {
    Job {
        status: JobStatus::Cancelled,
        end_reason: Some(EndReason::Cancelled),
        error_message: Some("it was deleted".to_owned()),
        ..job.clone()
    }
}

/// The output of the pods of a task, one after the other: a pod that is replaced is followed by the next. That of the
/// pod `shown` was shown already; `show` shows more.
pub(in crate::commands) async fn pods_to_the_end(
    cluster: &Cluster,
    name: &str,
    task: u32,
    gang: bool,
    mut shown: Option<String>,
    show: impl Fn(&[u8]) -> Result<()>,
) -> Result<()> {
    let backend = &Backend::Cluster(cluster.clone());
    let query = LogQuery { follow: true, task: Some(task), ..LogQuery::default() };
    let mut lines = Prefixed::new(task);
    loop {
        let Some(job) = if_there(backend, name).await? else { return Ok(()) };
        let over = job.status.is_final();
        let begun = over || job.status == JobStatus::Running;
        let pod = if begun { cluster.pod_uid(name, task).await.ok() } else { None };
        // A pod's output is shown once: another try is another pod.
        if pod.is_some() && pod != shown {
            // What was never started has no output, and a pod may be gone before we look.
            if let Ok(mut pieces) = backend.logs(name, &query).await {
                // It may have been made again while its beginning was waited for.
                shown = cluster.pod_uid(name, task).await.ok().or(pod);
                while let Ok(Some(piece)) = pieces.try_next().await {
                    let text = if gang { lines.take(&piece) } else { piece.to_vec() };
                    show(&text)?;
                }
                show(&lines.rest())?;
            }
        }
        if over {
            return Ok(());
        }
        sleep(PAUSE).await;
    }
}

async fn task_to_the_end(
    client: &Client,
    id: i64,
    task: u32,
    gang: bool,
    line: &Line,
) -> Result<()> {
    let query = LogQuery { follow: true, task: Some(task), ..LogQuery::default() };
    let begun = patient(|| client.logs(id, &query)).await?;
    if !gang {
        return on_and_on(client, id, Some(task), begun, |piece| show(line, piece)).await;
    }
    let mut lines = Prefixed::new(task);
    let each = |piece: &[u8]| show(line, &lines.take(piece));
    on_and_on(client, id, Some(task), begun, each).await?;
    show(line, &lines.rest())
}

/// What is said about the job makes room for what the job says.
fn show(line: &Line, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    line.give_way();
    output::print_bytes(bytes)
}

/// Shows what has begun to come and all that follows until the job is over, however often the stream ends before:
/// servers are restarted, and they end every stream after a while.
pub(in crate::commands) async fn on_and_on(
    client: &Client,
    id: i64,
    task: Option<u32>,
    mut bytes: Bytes,
    mut show: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut shown = bytes.header("x-log-offset").and_then(|at| at.parse().ok()).unwrap_or(0);
    let mut over = false;
    loop {
        let broken = loop {
            match bytes.next().await {
                Ok(Some(piece)) => {
                    shown += piece.len() as u64;
                    show(&piece)?;
                }
                Ok(None) => break false,
                Err(error) if error.is_passing() => break true,
                Err(error) => return Err(error.into()),
            }
        };
        if over && !broken {
            return Ok(());
        }
        // Only a stream of a job that was over before it began has everything: others may have been ended early.
        over = over || (!broken && patient(|| client.job(id)).await?.status.is_final());
        if !over {
            sleep(PAUSE / 5).await;
        }
        let query = LogQuery { follow: !over, task, offset: Some(shown), tail: None };
        bytes = patient(|| client.logs(id, &query)).await?;
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

/// The same for whoever answers.
pub(super) async fn patiently<T, F>(call: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let since = Instant::now();
    loop {
        match call().await {
            Err(error) if is_passing(&error) && since.elapsed() < PATIENCE => sleep(PAUSE).await,
            answer => return answer,
        }
    }
}

fn is_passing(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<ClientError>().is_some_and(ClientError::is_passing)
            || matches!(cause.downcast_ref(), Some(Failure::Unreachable(_)))
    })
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
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// Answers one request after the other as written down, and returns what was asked for.
    fn server(
        answers: Vec<(&'static str, String)>,
    ) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serve = move || {
            let answer = |(header, body): &(&str, String)| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
                let asked = head.next().unwrap().unwrap();
                while !head.next().unwrap().unwrap().is_empty() {}
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\n{header}content-length: {length}\r\n\r\n"
                );
                stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
                asked.split_whitespace().nth(1).unwrap().rsplit('/').next().unwrap().to_owned()
            };
            answers.iter().map(answer).collect()
        };
        (url, std::thread::spawn(serve))
    }

    #[tokio::test]
    async fn a_stream_that_ends_before_the_job_goes_on_where_it_ended_and_nothing_is_missed() {
        let job = |status| {
            let job = Job { id: 7, status, ..Job::default() };
            ("", serde_json::to_string(&job).unwrap())
        };
        let (url, asked) = server(vec![
            ("x-log-offset: 5\r\n", "one\n".to_owned()),
            job(JobStatus::Running),
            ("x-log-offset: 9\r\n", "two\n".to_owned()),
            job(JobStatus::Completed),
            ("x-log-offset: 13\r\n", "three\n".to_owned()),
        ]);
        let client = Client::new(&url, None).unwrap();
        let query = LogQuery { follow: true, tail: Some(1), ..LogQuery::default() };
        let begun = client.logs(7, &query).await.unwrap();
        let mut text = Vec::new();
        let show = |piece: &[u8]| {
            text.extend_from_slice(piece);
            Ok(())
        };
        on_and_on(&client, 7, None, begun, show).await.unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "one\ntwo\nthree\n");
        let expected =
            ["logs?follow=true&tail=1", "7", "logs?follow=true&offset=9", "7", "logs?offset=13"];
        assert_eq!(asked.join().unwrap(), expected);
    }

    #[test]
    fn lines_of_a_gang_stay_whole_and_say_whose_they_are() {
        let mut lines = Prefixed::new(1);
        assert_eq!(lines.take(b"a\nb"), b"[1] a\n");
        assert_eq!(lines.take(b"c\n"), b"[1] bc\n");
        assert_eq!(lines.take(b"end"), b"");
        assert_eq!(lines.rest(), b"[1] end\n");
    }
}
