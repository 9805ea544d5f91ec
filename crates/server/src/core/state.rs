//! State behind the core's lock: the parts that own the data, and operations that need several of them.
//!
//! Each part has private fields and keeps its own invariants. The operations over several parts:
//!
//! * jobs: `submit.rs`, `place.rs`, `assignment.rs`, `task_updates.rs`, `stop.rs`, `finish.rs`, `explain.rs`;
//! * nodes: `registration.rs`, `liveness.rs`, `claims.rs`, `push_agents.rs`, `admin.rs`;
//! * accounts: `budgets.rs`, `sealed.rs`; the start of the server: `restore.rs`.

use std::sync::Arc;

use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{EventSeq, JobId, NodeId};
use agentaflow_api::units::Stamp;
use agentaflow_engine::Event;

use super::activity::Activity;
use super::budget_book::BudgetBook;
use super::engine_link::EngineLink;
use super::handle::Ids;
use super::job::JobTable;
use super::journal::{EventSubject, Journal};
use super::ledger::Ledger;
use super::node::{LiveNode, NodeTable, NodeView};
use super::published::{Published, QueueView};
use super::queue_table::QueueTable;
use super::sealed::SealedJobs;
use crate::directory::SharedDirectory;
use crate::secrets::Keyring;
use crate::settings::Settings;
use crate::storage::Storage;

#[derive(Debug)]
pub(crate) struct State {
    pub(super) settings: Arc<Settings>,
    pub(super) secrets: Arc<Keyring>,
    /// Users and credentials. Readers share it without the core's lock; only the core changes it.
    pub(super) directory: SharedDirectory,
    /// Random number of this start of the server.
    pub(super) incarnation: u32,
    /// Stored bytes of accounts.
    pub(super) storage: Arc<Storage>,
    /// Last ids of users and credentials.
    pub(super) ids: Ids,
    pub(super) jobs: JobTable,
    pub(super) nodes: NodeTable,
    pub(super) queues: QueueTable,
    pub(super) ledger: Ledger,
    pub(super) budgets: BudgetBook,
    pub(super) engine: EngineLink,
    pub(super) journal: Journal,
    pub(super) sealed: SealedJobs,
    pub(super) activity: Arc<Activity>,
    /// Last event whose job has been exported as a trace.
    pub(super) traced_until: EventSeq,
    /// State of the alerts as JSON, as stored.
    pub(super) alerts: Option<String>,
}

impl State {
    /// Time of the server. It never jumps; see `clock.rs`.
    pub(super) fn now(&self) -> Stamp {
        self.engine.clock().stamp()
    }

    /// Records an event about a job and its owner.
    pub(super) fn job_event(&mut self, job: JobId, kind: EventKind, message: impl Into<String>) {
        let user = self.jobs.get_unsaved(job).map(|row| row.user_id);
        let subject = EventSubject { job: Some(job), user, ..EventSubject::default() };
        let message: String = message.into();
        if let Some(user) = user {
            self.storage.account(user).add(message.len() as u64);
        }
        self.journal.record_event(kind, message, subject);
    }

    pub(super) fn node_event(&mut self, node: NodeId, kind: EventKind, message: impl Into<String>) {
        let Some(name) = self.nodes.get(node).map(|node| node.row().node_id.clone()) else {
            return;
        };
        let subject = EventSubject { node: Some(name), ..EventSubject::default() };
        self.journal.record_event(kind, message.into(), subject);
    }

    /// Brings the engine's description of a node up to date.
    pub(super) fn report_node(&mut self, id: NodeId) {
        let events = self.nodes.update(id, LiveNode::engine_events);
        self.apply_all(events.into_iter().flatten());
    }

    pub(super) fn apply_all(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.engine.apply(event);
        }
    }

    /// Returns true if the next transaction has something to write.
    pub(super) fn has_changes(&self) -> bool {
        self.journal.has_changes() || self.jobs.has_unsaved()
    }

    /// Publishes every view that changed since the last call.
    pub(super) fn publish(&mut self, published: &Published) {
        for id in self.nodes.take_stale() {
            match self.node_view(id) {
                Some(view) => published.set_node(id, Arc::new(view)),
                None => published.remove_node(id),
            }
        }
        for id in self.nodes.take_stale_agents() {
            published.set_agent(id, self.nodes.agent(id).cloned());
        }
        let mut users = self.ledger.take_stale_users();
        users.extend(self.jobs.take_stale_users());
        for user in users {
            let running = self.jobs.running_cost(user);
            published.set_account(user, self.ledger.view(user, running));
        }
        let jobs_changed = self.jobs.take_stale_queues();
        if self.queues.take_stale() || jobs_changed {
            published.set_queues(self.queue_views());
            published.set_pending_reasons(self.jobs.pending_reasons().clone());
            published.set_running_cost(self.jobs.total_running_cost());
        }
    }

    /// Current view of a node.
    pub(super) fn node_view(&self, id: NodeId) -> Option<NodeView> {
        let node = self.nodes.get(id)?;
        let name = node.row().node_id.as_str().into();
        Some(node.view(self.engine.scheduler().node_room(&name)))
    }

    fn queue_views(&self) -> Vec<QueueView> {
        let amount = |used: i64| used.max(0) as u64;
        let view = |view: agentaflow_engine::QueueView| QueueView {
            row: self.queues.get(view.id.as_str()).cloned(),
            jobs: self.jobs.queue_jobs(view.id.as_str()),
            name: view.id.as_str().to_owned(),
            cpu_milli: amount(view.used.cpu_milli),
            memory: amount(view.used.memory),
            gpu_milli: amount(view.used.gpu_milli),
        };
        self.engine.scheduler().queues().into_iter().map(view).collect()
    }
}
