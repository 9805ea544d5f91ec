//! Asks for news in the background. Whatever takes long or fails, the keys keep working.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_api::client::user::{JobQuery, LogQuery};
use agentaflow_api::job::JobStatus;
use anyhow::{Result, anyhow};
use futures_util::StreamExt as _;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::model::{Message, Snapshot, Wants};
use super::text;
use crate::backend::Backend;
use crate::failure;

/// Jobs that run or wait, at most.
const OPEN: u64 = 1000;

/// Jobs that ended, at most.
const ENDED: u64 = 20;

/// Lines of output that are kept.
const LINES: u64 = 1000;

/// Bytes of output that are read for them: a line may have any length.
const BYTES: usize = 1024 * 1024;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long what was explained holds; explaining costs the other side more than listing.
const EXPLAINED: Duration = Duration::from_secs(3);

/// Asks in the background until it is dropped.
#[derive(Debug)]
pub(super) struct Poller {
    backend: Backend,
    messages: UnboundedSender<Message>,
    wants: watch::Sender<Wants>,
    now: Arc<Notify>,
    tasks: Vec<JoinHandle<()>>,
}

impl Poller {
    pub(super) fn start(
        backend: Backend,
        every: Duration,
        messages: UnboundedSender<Message>,
    ) -> Self {
        let (wants, wanted) = watch::channel(Wants::default());
        let now = Arc::new(Notify::new());
        let tasks = vec![
            tokio::spawn(lists(backend.clone(), every, messages.clone(), now.clone())),
            tokio::spawn(outputs(backend.clone(), every, messages.clone(), wanted.clone())),
            tokio::spawn(reasons(backend.clone(), every, messages.clone(), wanted)),
        ];
        Self { backend, messages, wants, now, tasks }
    }

    /// Says what is wanted beside the lists.
    pub(super) fn want(&self, wants: Wants) {
        self.wants.send_if_modified(|old| {
            let changed = *old != wants;
            *old = wants;
            changed
        });
    }

    /// Asks at once.
    pub(super) fn refresh(&self) {
        self.now.notify_one();
    }

    /// Stops a job.
    pub(super) fn cancel(&self, handle: String) {
        let (backend, messages, now) =
            (self.backend.clone(), self.messages.clone(), self.now.clone());
        tokio::spawn(async move {
            let ended = match patiently(backend.cancel(&handle)).await {
                Ok(job) if job.status.is_final() => {
                    Ok(format!("job {handle} is {}", job.status.as_str()))
                }
                Ok(_) => Ok(format!("job {handle} is being stopped")),
                Err(problem) => Err(format!("cannot cancel job {handle}: {problem}")),
            };
            // The screen may be gone, and with it whoever wants to know.
            let _ = messages.send(Message::Cancelled(ended));
            now.notify_one();
        });
    }

    /// Whether it fell over, so that no more news will come.
    pub(super) fn is_broken(&self) -> bool {
        self.tasks.iter().any(JoinHandle::is_finished)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Everything there is to show now.
pub(super) async fn snapshot(backend: &Backend) -> Result<Snapshot> {
    let query = |status: &[JobStatus], limit| JobQuery {
        status: status.to_vec(),
        limit: Some(limit),
        skip: None,
    };
    let open = query(&[JobStatus::Pending, JobStatus::Scheduled, JobStatus::Running], OPEN);
    let ended = query(&[JobStatus::Completed, JobStatus::Failed, JobStatus::Cancelled], ENDED);
    let (nodes, mut jobs, ended) =
        tokio::try_join!(backend.nodes(), backend.jobs(&open), backend.jobs(&ended))?;
    // What ended between the two answers is in both: the later one counts.
    jobs.retain(|job| !ended.iter().any(|other| other.handle() == job.handle()));
    jobs.extend(ended);
    Ok(Snapshot { nodes, jobs })
}

async fn lists(
    backend: Backend,
    every: Duration,
    messages: UnboundedSender<Message>,
    now: Arc<Notify>,
) {
    let mut ticks = ticks(every);
    // What is shown at first was asked for before.
    ticks.tick().await;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = now.notified() => {}
        }
        let message = match patiently(Box::pin(snapshot(&backend))).await {
            Ok(data) => Message::Data(Box::new(data)),
            Err(problem) => Message::Trouble(problem),
        };
        if messages.send(message).is_err() {
            return;
        }
    }
}

async fn outputs(
    backend: Backend,
    every: Duration,
    messages: UnboundedSender<Message>,
    mut wants: watch::Receiver<Wants>,
) {
    let mut ticks = ticks(every);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = wants.changed() => if changed.is_err() { return },
        }
        let Some(handle) = wants.borrow_and_update().logs.clone() else { continue };
        let lines = patiently(output(&backend, &handle)).await;
        if messages.send(Message::Logged(handle, lines)).is_err() {
            return;
        }
    }
}

async fn reasons(
    backend: Backend,
    every: Duration,
    messages: UnboundedSender<Message>,
    mut wants: watch::Receiver<Wants>,
) {
    let mut ticks = ticks(every);
    let mut asked: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = wants.changed() => if changed.is_err() { return },
        }
        asked.retain(|_, at| at.elapsed() < EXPLAINED);
        let wanted = wants.borrow_and_update().explain.clone();
        let Some(handle) = wanted.into_iter().find(|handle| !asked.contains_key(handle)) else {
            continue;
        };
        let said = patiently(backend.explain(&handle)).await.map(Box::new);
        asked.insert(handle.clone(), Instant::now());
        if messages.send(Message::Explained(handle, said)).is_err() {
            return;
        }
        // The next one is asked at once.
        ticks.reset_immediately();
    }
}

async fn output(backend: &Backend, handle: &str) -> Result<Vec<String>> {
    let query = LogQuery { follow: false, tail: Some(LINES), task: None, offset: None };
    let mut pieces = backend.logs(handle, &query).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece?);
        if bytes.len() > BYTES {
            bytes.truncate(BYTES);
            break;
        }
    }
    Ok(text::log_lines(&bytes))
}

/// The answer, or in words why there is none.
async fn patiently<T>(answer: impl Future<Output = Result<T>>) -> Result<T, String> {
    let late = || anyhow!("no answer within {} s", PATIENCE.as_secs());
    let answer = timeout(PATIENCE, answer).await.unwrap_or_else(|_| Err(late()));
    answer.map_err(|error| failure::sentence(&error))
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
