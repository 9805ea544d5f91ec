//! Reads the source in the background, so that a slow or failing request never blocks the keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::model::{Message, Requests};
use crate::source::{Request, Source};
use crate::text;

/// Lines of log kept for a job.
const LOG_LINES: u64 = 1000;

/// Bytes read for these lines; a line has no maximum length.
const LOG_BYTES: usize = 1024 * 1024;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Lifetime of an explanation. Explaining costs the server more than listing.
const EXPLANATION_TTL: Duration = Duration::from_secs(3);

/// Background requests; dropping the poller stops them.
pub(crate) struct Poller {
    source: Arc<dyn Source>,
    messages: UnboundedSender<Message>,
    requests: watch::Sender<Requests>,
    refresh: Arc<Notify>,
    tasks: Vec<JoinHandle<()>>,
}

impl Poller {
    pub(crate) fn start(
        source: Arc<dyn Source>,
        every: Duration,
        messages: UnboundedSender<Message>,
    ) -> Self {
        let (requests, requested) = watch::channel(Requests::default());
        let refresh = Arc::new(Notify::new());
        let tasks = vec![
            tokio::spawn(poll_snapshot(source.clone(), every, messages.clone(), refresh.clone())),
            tokio::spawn(poll_logs(source.clone(), every, messages.clone(), requested.clone())),
            tokio::spawn(poll_explanations(source.clone(), every, messages.clone(), requested)),
        ];
        Self { source, messages, requests, refresh, tasks }
    }

    /// Sets the explanations and logs to read beside the snapshot.
    pub(crate) fn set_requests(&self, requests: Requests) {
        self.requests.send_if_modified(|old| {
            let changed = *old != requests;
            *old = requests;
            changed
        });
    }

    /// Reads a snapshot now.
    pub(crate) fn refresh(&self) {
        self.refresh.notify_one();
    }

    pub(crate) fn cancel(&self, handle: String) {
        let (source, messages, refresh) =
            (self.source.clone(), self.messages.clone(), self.refresh.clone());
        tokio::spawn(async move {
            let result = match bounded(source.cancel(&handle)).await {
                Ok(job) if job.status.is_final() => {
                    Ok(format!("job {handle} is {}", job.status.as_str()))
                }
                Ok(_) => Ok(format!("job {handle} is being stopped")),
                Err(problem) => Err(format!("cannot cancel job {handle}: {problem}")),
            };
            // The send fails only after the view has closed.
            let _ = messages.send(Message::Cancelled(result));
            refresh.notify_one();
        });
    }

    /// A background task panicked; the data will not be refreshed any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.tasks.iter().any(JoinHandle::is_finished)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn poll_snapshot(
    source: Arc<dyn Source>,
    every: Duration,
    messages: UnboundedSender<Message>,
    refresh: Arc<Notify>,
) {
    let mut ticks = ticks(every);
    // The caller has read the first snapshot.
    ticks.tick().await;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = refresh.notified() => {}
        }
        let message = match bounded(source.snapshot()).await {
            Ok(snapshot) => Message::Snapshot(Box::new(snapshot)),
            Err(problem) => Message::Failed(problem),
        };
        if messages.send(message).is_err() {
            return;
        }
    }
}

async fn poll_logs(
    source: Arc<dyn Source>,
    every: Duration,
    messages: UnboundedSender<Message>,
    mut requests: watch::Receiver<Requests>,
) {
    let mut ticks = ticks(every);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = requests.changed() => if changed.is_err() { return },
        }
        let Some(handle) = requests.borrow_and_update().logs.clone() else { continue };
        let bytes = bounded(source.logs(&handle, LOG_LINES, LOG_BYTES)).await;
        let lines = bytes.map(|bytes| text::log_lines(&bytes));
        if messages.send(Message::Logs(handle, lines)).is_err() {
            return;
        }
    }
}

async fn poll_explanations(
    source: Arc<dyn Source>,
    every: Duration,
    messages: UnboundedSender<Message>,
    mut requests: watch::Receiver<Requests>,
) {
    let mut ticks = ticks(every);
    let mut explained: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = requests.changed() => if changed.is_err() { return },
        }
        explained.retain(|_, at| at.elapsed() < EXPLANATION_TTL);
        let requested = requests.borrow_and_update().explain.clone();
        let Some(handle) = requested.into_iter().find(|handle| !explained.contains_key(handle))
        else {
            continue;
        };
        let explanation = bounded(source.explain(&handle)).await.map(Box::new);
        explained.insert(handle.clone(), Instant::now());
        if messages.send(Message::Explained(handle, explanation)).is_err() {
            return;
        }
        // The next job is explained without a pause.
        ticks.reset_immediately();
    }
}

async fn bounded<T>(request: Request<'_, T>) -> Result<T, String> {
    let late = || Err(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()));
    timeout(REQUEST_TIMEOUT, request).await.unwrap_or_else(|_| late())
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
