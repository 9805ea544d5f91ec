//! Outboxes: numbered messages for each node, which its agent receives by a stream or by polling.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use agentaflow_api::ids::NodeId;
use agentaflow_api::link::{Framed, Message};

use super::handle::StreamItem;

/// Messages kept for an agent that reconnects; an agent that missed more receives a full sync.
const KEPT: usize = 4096;
/// An agent that does not poll within this time is not reachable.
const POLL_LEASE: Duration = Duration::from_mins(1);

/// Outboxes of all nodes.
#[derive(Debug)]
pub(crate) struct Outboxes {
    session: String,
    boxes: Mutex<FxHashMap<NodeId, Outbox>>,
    sent: Notify,
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
    /// Ends the stream from the server's side.
    end: CancellationToken,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// A stream that an agent opened.
#[derive(Debug)]
pub(crate) struct OpenedStream {
    pub(crate) receiver: mpsc::Receiver<StreamItem>,
    /// Closed when the agent disconnects.
    pub(crate) sender: mpsc::Sender<StreamItem>,
    /// Cancelled when the server ends the stream.
    pub(crate) end: CancellationToken,
    pub(crate) generation: u64,
    /// The agent needs a full sync.
    pub(crate) must_sync: bool,
}

impl Outboxes {
    /// Outboxes whose numbers belong to this session.
    pub(crate) fn new(session: String) -> Self {
        Self { session, boxes: Mutex::default(), sent: Notify::new() }
    }

    /// Opens the stream of a node and ends an older one.
    pub(crate) fn open(&self, node: NodeId, session: Option<&str>, after: u64) -> OpenedStream {
        let mut boxes = self.lock();
        let outbox = boxes.entry(node).or_default();
        let missed = self.missed(outbox, session, after);
        let (sender, receiver) = mpsc::channel(KEPT + 1);
        let must_sync = missed.is_none();
        for message in missed.into_iter().flatten() {
            // The channel has room for every kept message.
            let _ = sender.try_send(StreamItem::Message(message));
        }
        outbox.generation += 1;
        let (generation, end) = (outbox.generation, CancellationToken::new());
        outbox.stream = Some(Stream { generation, sender: sender.clone(), end: end.clone() });
        OpenedStream { receiver, sender, end, generation, must_sync }
    }

    /// Ends the stream of a node and drops its messages; the next agent receives a full sync.
    pub(crate) fn close(&self, node: NodeId) {
        if let Some(outbox) = self.lock().get_mut(&node) {
            outbox.stream = None;
            outbox.polled = None;
            outbox.kept.clear();
        }
    }

    /// Removes the stream of this generation; false if a newer one replaced it.
    pub(crate) fn remove_stream(&self, node: NodeId, generation: u64) -> bool {
        let mut boxes = self.lock();
        let Some(outbox) = boxes.get_mut(&node) else { return false };
        let current = outbox.stream.as_ref().is_none_or(|stream| stream.generation == generation);
        if current {
            outbox.stream = None;
        }
        current
    }

    /// Messages after that number; none if the agent needs a full sync.
    pub(crate) fn poll(
        &self,
        node: NodeId,
        session: Option<&str>,
        after: u64,
    ) -> Option<Vec<Arc<Framed>>> {
        let mut boxes = self.lock();
        let outbox = boxes.entry(node).or_default();
        outbox.polled = Some(Instant::now());
        self.missed(outbox, session, after)
    }

    /// Drops the messages of a node before a full sync.
    pub(crate) fn drop_messages(&self, node: NodeId) {
        if let Some(outbox) = self.lock().get_mut(&node) {
            outbox.kept.clear();
        }
    }

    /// The last full sync and all later messages; none before a full sync.
    pub(crate) fn since_sync(&self, node: NodeId) -> Option<Vec<Arc<Framed>>> {
        let boxes = self.lock();
        let kept = &boxes.get(&node)?.kept;
        let synced = matches!(kept.front()?.message, Message::Sync { .. });
        synced.then(|| kept.iter().cloned().collect())
    }

    /// Resolves when any message is sent to any node.
    pub(crate) fn any_message(&self) -> tokio::sync::futures::Notified<'_> {
        self.sent.notified()
    }

    /// Nodes whose agent stopped polling since the last call.
    pub(crate) fn stopped_polling(&self) -> Vec<NodeId> {
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

    /// Sends a message. A full sync replaces all earlier messages.
    pub(crate) fn send(&self, node: NodeId, message: Message) {
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
            // The agent reconnects and continues after its last message.
            outbox.stream = None;
        }
        drop(boxes);
        self.sent.notify_waiters();
    }

    /// Messages after a number of this session, if all of them are kept.
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

    fn lock(&self) -> std::sync::MutexGuard<'_, FxHashMap<NodeId, Outbox>> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(1);

    fn stop(job: i64) -> Message {
        use agentaflow_api::ids::JobId;
        use agentaflow_api::link::{Stop, StopCause, TaskKey};
        let key = TaskKey { job: JobId(job), epoch: 1, incarnation: 0, task: 0 };
        Message::Stop(Stop { key, cause: StopCause::Cancelled, grace_ms: 0 })
    }

    fn sync() -> Message {
        Message::Sync { assignments: Vec::new(), stops: Vec::new() }
    }

    #[test]
    fn an_agent_that_reconnects_receives_the_missed_messages() {
        let outboxes = Outboxes::new("s".into());
        outboxes.send(NODE, sync());
        for job in 1..4 {
            outboxes.send(NODE, stop(job));
        }
        let missed = outboxes.poll(NODE, Some("s"), 2).unwrap();
        assert_eq!(missed.iter().map(|framed| framed.seq).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn an_agent_of_another_session_needs_a_full_sync() {
        let outboxes = Outboxes::new("s".into());
        outboxes.send(NODE, stop(1));
        assert!(outboxes.poll(NODE, Some("old"), 0).is_none());
        assert!(outboxes.poll(NODE, None, 0).is_none());
        assert!(outboxes.poll(NODE, Some("s"), 7).is_none());
    }

    #[test]
    fn an_agent_that_missed_too_many_messages_needs_a_full_sync() {
        let outboxes = Outboxes::new("s".into());
        for job in 0..=KEPT as i64 {
            outboxes.send(NODE, stop(job));
        }
        assert!(outboxes.poll(NODE, Some("s"), 0).is_none());
        assert!(outboxes.poll(NODE, Some("s"), 1).is_some());
    }

    #[test]
    fn a_new_stream_ends_the_older_one() {
        let outboxes = Outboxes::new("s".into());
        let first = outboxes.open(NODE, None, 0);
        let second = outboxes.open(NODE, None, 0);
        drop(first.sender);
        let mut receiver = first.receiver;
        assert!(
            receiver
                .try_recv()
                .is_err_and(|error| error == mpsc::error::TryRecvError::Disconnected)
        );
        assert!(!outboxes.remove_stream(NODE, first.generation));
        assert!(outboxes.remove_stream(NODE, second.generation));
    }
}
