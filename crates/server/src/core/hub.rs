//! Outboxes: numbered messages for each node, over a stream that its agent holds open or polls for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use agentaflow_api::link::{Framed, Message};

use super::handle::StreamItem;

/// Messages kept for an agent that comes back; one that missed more is told everything.
const KEPT: usize = 4096;
/// An agent that does not poll again within this time is no longer reachable.
const POLL_LEASE: Duration = Duration::from_mins(1);

/// All outboxes.
#[derive(Debug)]
pub(crate) struct Hub {
    session: String,
    boxes: Mutex<FxHashMap<i64, Outbox>>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Outbox {
    next: u64,
    kept: VecDeque<Arc<Framed>>,
    stream: Option<Stream>,
    generation: u64,
    polled: Option<Instant>,
}

/// A stream that an agent holds open.
#[derive(Debug)]
struct Stream {
    generation: u64,
    sender: mpsc::Sender<StreamItem>,
    /// Ends it from our side.
    end: CancellationToken,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// What an agent gets when it opens its stream.
#[derive(Debug)]
pub(crate) struct Opened {
    /// What it reads from.
    pub(crate) receiver: mpsc::Receiver<StreamItem>,
    /// Tells when the agent went away.
    pub(crate) sender: mpsc::Sender<StreamItem>,
    /// Tells when the stream is ended from our side.
    pub(crate) end: CancellationToken,
    /// Which opening this is.
    pub(crate) generation: u64,
    /// It must be told everything.
    pub(crate) must_sync: bool,
}

impl Hub {
    /// A hub with its own session of numbers.
    pub(crate) fn new(session: String) -> Self {
        Self { session, boxes: Mutex::default(), news: Notify::new() }
    }

    /// Opens a node's stream; an older one ends.
    pub(crate) fn open(&self, node: i64, session: Option<&str>, after: u64) -> Opened {
        let mut boxes = self.lock();
        let outbox = boxes.entry(node).or_default();
        let missed = self.missed(outbox, session, after);
        let (sender, receiver) = mpsc::channel(KEPT + 1);
        let must_sync = missed.is_none();
        for message in missed.into_iter().flatten() {
            // There is room for all that is kept.
            let _ = sender.try_send(StreamItem::Message(message));
        }
        outbox.generation += 1;
        let (generation, end) = (outbox.generation, CancellationToken::new());
        outbox.stream = Some(Stream { generation, sender: sender.clone(), end: end.clone() });
        Opened { receiver, sender, end, generation, must_sync }
    }

    /// Ends a node's stream and forgets what it did not fetch; a new agent is told everything.
    pub(crate) fn close(&self, node: i64) {
        if let Some(outbox) = self.lock().get_mut(&node) {
            outbox.stream = None;
            outbox.polled = None;
            outbox.kept.clear();
        }
    }

    /// Whether that opening of the stream is the present one; it is gone then.
    pub(crate) fn closed(&self, node: i64, generation: u64) -> bool {
        let mut boxes = self.lock();
        let Some(outbox) = boxes.get_mut(&node) else { return false };
        let current = outbox.stream.as_ref().is_none_or(|stream| stream.generation == generation);
        if current {
            outbox.stream = None;
        }
        current
    }

    /// Messages after that number; none when the agent must be told everything.
    pub(crate) fn poll(
        &self,
        node: i64,
        session: Option<&str>,
        after: u64,
    ) -> Option<Vec<Arc<Framed>>> {
        let mut boxes = self.lock();
        let outbox = boxes.entry(node).or_default();
        outbox.polled = Some(Instant::now());
        self.missed(outbox, session, after)
    }

    /// Forgets what a node did not fetch: it is to be told everything.
    pub(crate) fn forget(&self, node: i64) {
        if let Some(outbox) = self.lock().get_mut(&node) {
            outbox.kept.clear();
        }
    }

    /// Everything, and what came after it; none while everything was not told yet.
    pub(crate) fn since_sync(&self, node: i64) -> Option<Vec<Arc<Framed>>> {
        let boxes = self.lock();
        let kept = &boxes.get(&node)?.kept;
        let told = matches!(kept.front()?.message, Message::Sync { .. });
        told.then(|| kept.iter().cloned().collect())
    }

    /// Waits for anything to be sent to anybody.
    pub(crate) fn anything(&self) -> tokio::sync::futures::Notified<'_> {
        self.news.notified()
    }

    /// Nodes whose agent polls no longer.
    pub(crate) fn stopped_polling(&self) -> Vec<i64> {
        let mut boxes = self.lock();
        let mut silent = Vec::new();
        for (node, outbox) in boxes.iter_mut() {
            let over = outbox.polled.is_some_and(|at| at.elapsed() > POLL_LEASE);
            if over {
                outbox.polled = None;
                if outbox.stream.is_none() {
                    silent.push(*node);
                }
            }
        }
        silent
    }

    /// Sends a message. What is told before everything is told again need not be kept.
    pub(crate) fn send(&self, node: i64, message: Message) {
        let mut boxes = self.lock();
        let outbox = boxes.entry(node).or_default();
        if matches!(message, Message::Sync { .. }) {
            outbox.kept.clear();
        }
        outbox.next += 1;
        let framed = Arc::new(Framed { session: self.session.clone(), seq: outbox.next, message });
        outbox.kept.push_back(framed.clone());
        if outbox.kept.len() > KEPT {
            outbox.kept.pop_front();
        }
        let full = outbox
            .stream
            .as_ref()
            .is_some_and(|stream| stream.sender.try_send(StreamItem::Message(framed)).is_err());
        if full {
            // It comes back and goes on where it was.
            outbox.stream = None;
        }
        drop(boxes);
        self.news.notify_waiters();
    }

    /// What came after a number of this session, if all of it is still there.
    fn missed(
        &self,
        outbox: &Outbox,
        session: Option<&str>,
        after: u64,
    ) -> Option<Vec<Arc<Framed>>> {
        if session != Some(self.session.as_str()) || after > outbox.next {
            return None;
        }
        let first = outbox.kept.front().map_or(outbox.next + 1, |framed| framed.seq);
        let whole = after + 1 >= first
            || matches!(outbox.kept.front().map(|f| &f.message), Some(Message::Sync { .. }));
        whole.then(|| outbox.kept.iter().filter(|framed| framed.seq > after).cloned().collect())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FxHashMap<i64, Outbox>> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(job: i64) -> Message {
        use agentaflow_api::link::{Stop, StopCause, TaskKey};
        let key = TaskKey { job, epoch: 1, task: 0 };
        Message::Stop(Stop { key, cause: StopCause::Cancelled, grace_ms: 0 })
    }

    fn sync() -> Message {
        Message::Sync { assignments: Vec::new(), stops: Vec::new() }
    }

    #[test]
    fn an_agent_that_comes_back_gets_what_it_missed() {
        let hub = Hub::new("s".into());
        hub.send(1, sync());
        for job in 1..4 {
            hub.send(1, stop(job));
        }
        let missed = hub.poll(1, Some("s"), 2).unwrap();
        assert_eq!(missed.iter().map(|framed| framed.seq).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn an_agent_of_another_session_must_be_told_everything() {
        let hub = Hub::new("s".into());
        hub.send(1, stop(1));
        assert!(hub.poll(1, Some("old"), 0).is_none());
        assert!(hub.poll(1, None, 0).is_none());
        assert!(hub.poll(1, Some("s"), 7).is_none());
    }

    #[test]
    fn an_agent_that_missed_too_much_must_be_told_everything() {
        let hub = Hub::new("s".into());
        for job in 0..=KEPT as i64 {
            hub.send(1, stop(job));
        }
        assert!(hub.poll(1, Some("s"), 0).is_none());
        assert!(hub.poll(1, Some("s"), 1).is_some());
    }

    #[test]
    fn a_new_stream_ends_the_older_one() {
        let hub = Hub::new("s".into());
        let first = hub.open(1, None, 0);
        let second = hub.open(1, None, 0);
        drop(first.sender);
        let mut receiver = first.receiver;
        assert!(
            receiver
                .try_recv()
                .is_err_and(|error| error == mpsc::error::TryRecvError::Disconnected)
        );
        assert!(!hub.closed(1, first.generation));
        assert!(hub.closed(1, second.generation));
    }
}
