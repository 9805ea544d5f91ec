//! Changes that are not durable yet, and the messages, events and replies that wait for them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::sync::oneshot;

use agentaflow_api::event::{Event, EventKind};
use agentaflow_api::ids::{EventSeq, JobId, NodeId, UserId};
use agentaflow_api::link::Message;

use super::clock::Clock;
use crate::api_error::ApiError;
use crate::store::Change;

/// Collects one batch under the core's lock; the committer takes and writes it. Changes of jobs are collected by
/// [`super::job::JobTable`], which writes each job once per batch.
#[derive(Debug)]
pub(crate) struct Journal {
    batch: Batch,
    last_event: EventSeq,
    clock: Clock,
    /// Start of the transaction that is being written.
    writing_since: Option<Instant>,
    /// Set while memory and store may differ, and when the server stops: no change is accepted.
    closed: Option<&'static str>,
}

/// Everything that becomes durable or visible together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Writes other than jobs, in order.
    pub(crate) changes: Vec<Change>,
    pub(crate) messages: Vec<AgentMessage>,
    /// Nodes whose agents receive a full sync.
    pub(crate) syncs: BTreeSet<NodeId>,
    pub(crate) events: Vec<Arc<Event>>,
    tickets: Vec<oneshot::Sender<Result<(), ApiError>>>,
}

/// A message to the agent of a node.
#[derive(Debug)]
pub struct AgentMessage {
    pub node: NodeId,
    pub message: Message,
}

/// Objects that an event is about.
#[derive(Debug, Default)]
pub(crate) struct EventSubject {
    pub(crate) job: Option<JobId>,
    pub(crate) user: Option<UserId>,
    /// `gpu-…` name.
    pub(crate) node: Option<String>,
    pub(crate) data: Map<String, Value>,
}

impl Journal {
    /// Highest number of an event.
    pub(crate) fn last_event(&self) -> EventSeq {
        self.last_event
    }

    pub(crate) fn new(last_event: EventSeq, clock: Clock) -> Self {
        Self { batch: Batch::default(), last_event, clock, writing_since: None, closed: None }
    }

    pub(crate) fn write(&mut self, change: Change) {
        self.batch.changes.push(change);
    }

    pub(crate) fn write_all(&mut self, changes: Vec<Change>) {
        self.batch.changes.extend(changes);
    }

    /// Records an event; it becomes visible together with the change that caused it. Its message starts with a capital
    /// letter.
    pub(crate) fn record_event(
        &mut self,
        kind: EventKind,
        message: impl AsRef<str>,
        subject: EventSubject,
    ) {
        self.last_event = self.last_event.next();
        let event = Event {
            seq: self.last_event,
            at: self.clock.stamp(),
            kind,
            message: agentaflow_explain::capitalised(message.as_ref()),
            job_id: subject.job,
            job: None,
            node_id: subject.node,
            user_id: subject.user,
            data: subject.data,
        };
        self.batch.events.push(Arc::new(event.clone()));
        self.batch.changes.push(Change::Event(Box::new(event)));
    }

    pub(crate) fn send(&mut self, node: NodeId, message: Message) {
        self.batch.messages.push(AgentMessage { node, message });
    }

    /// Requests a full sync of a node's agent.
    pub(crate) fn request_sync(&mut self, node: NodeId) {
        self.batch.syncs.insert(node);
    }

    pub(crate) fn has_changes(&self) -> bool {
        !self.batch.changes.is_empty()
    }

    /// Returns true if the batch has nothing to write, send or answer.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_changes()
            && self.batch.messages.is_empty()
            && self.batch.syncs.is_empty()
            && self.batch.tickets.is_empty()
    }

    /// Reply that resolves once the current batch is durable.
    pub(crate) fn ticket(&mut self) -> oneshot::Receiver<Result<(), ApiError>> {
        let (sender, receiver) = oneshot::channel();
        self.batch.tickets.push(sender);
        receiver
    }

    pub(crate) fn take_batch(&mut self) -> Batch {
        std::mem::take(&mut self.batch)
    }

    pub(crate) fn begin_write(&mut self) {
        self.writing_since = Some(Instant::now());
    }

    pub(crate) fn end_write(&mut self) {
        self.writing_since = None;
    }

    pub(crate) fn is_writing(&self) -> bool {
        self.writing_since.is_some()
    }

    pub(crate) fn is_writing_longer_than(&self, limit: Duration) -> bool {
        self.writing_since.is_some_and(|since| since.elapsed() > limit)
    }

    pub(crate) fn close(&mut self, reason: &'static str) {
        self.closed = Some(reason);
    }

    /// Error for callers while no change is accepted.
    pub(crate) fn check_open(&self) -> Result<(), ApiError> {
        self.closed.map_or(Ok(()), |reason| Err(ApiError::unavailable(reason)))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.closed.is_none()
    }
}

impl Batch {
    /// Answers every caller that waits for this batch.
    pub(crate) fn answer(self, result: &Result<(), ApiError>) {
        for ticket in self.tickets {
            // The caller may have disconnected.
            let _ = ticket.send(result.clone());
        }
    }
}
