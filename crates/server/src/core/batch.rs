//! What happened since the last transaction and is not durable yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::oneshot;

use agentaflow_api::event::Event;
use agentaflow_api::link::Message;

use crate::api_error::ApiError;
use crate::store::{Change, JobRow};

/// Collected under the lock, written by the committer, told to the world after that.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Writes other than jobs, in order.
    pub(crate) changes: Vec<Change>,
    /// Jobs accepted since.
    pub(crate) new_jobs: BTreeSet<i64>,
    /// Jobs whose state changed since.
    pub(crate) touched: BTreeSet<i64>,
    /// Jobs that are over since; the state no longer holds them.
    pub(crate) finished: BTreeMap<i64, JobRow>,
    /// Messages to nodes, in order.
    pub(crate) outgoing: Vec<(i64, Message)>,
    /// Nodes that need to be told everything.
    pub(crate) syncs: BTreeSet<i64>,
    /// Events to broadcast.
    pub(crate) events: Vec<Arc<Event>>,
    /// Who waits for this to be durable.
    pub(crate) tickets: Vec<oneshot::Sender<Result<(), ApiError>>>,
}

impl Batch {
    /// Whether there is something to write.
    pub(crate) fn has_changes(&self) -> bool {
        !(self.changes.is_empty() && self.new_jobs.is_empty() && self.touched.is_empty())
    }

    /// Whether there is anything to do.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_changes()
            && self.outgoing.is_empty()
            && self.syncs.is_empty()
            && self.tickets.is_empty()
    }
}
