//! Liveness of nodes: heartbeats, connections, and loss.

use agentaflow_api::event::EventKind;
use agentaflow_api::ids::NodeId;
use agentaflow_api::job::TaskState;
use agentaflow_api::link::TaskKey;
use agentaflow_api::node::Heartbeat;

use super::node::{Contact, LiveNode, TaskRef, UnusableGpu};
use super::state::State;
use crate::store::Change;

impl State {
    /// Records a heartbeat. Nothing is written for it; [`State::save_heartbeats`] does so at intervals.
    pub(super) fn record_heartbeat(&mut self, id: NodeId, mut heartbeat: Heartbeat) {
        let now = self.now();
        let mut uses = std::mem::take(&mut heartbeat.tasks);
        // A late heartbeat may name tasks of an earlier attempt.
        uses.retain(|used| self.jobs.task_on(used.key, id).is_some());
        let was_lost = self.nodes.update(id, |node| node.record_heartbeat(heartbeat, now));
        if was_lost == Some(true) {
            let name = self.nodes.name(id);
            self.node_event(
                id,
                EventKind::NodeRecovered,
                format!("node `{name}` sends heartbeats again"),
            );
            self.journal.request_sync(id);
        }
        self.nodes.update(id, |node| uses.into_iter().for_each(|used| node.record_use(used)));
        self.report_node(id);
        self.report_readings(id);
    }

    fn report_readings(&mut self, id: NodeId) {
        let Some(readings) = self.nodes.update(id, LiveNode::reading_events) else { return };
        for change in &readings.changed {
            let (kind, verb) = match change.unusable {
                Some(UnusableGpu::Failed) => (EventKind::GpuUnhealthy, "failed"),
                Some(UnusableGpu::Maintenance) => (EventKind::GpuUnhealthy, "takes no new jobs"),
                None => (EventKind::GpuRecovered, "works again"),
            };
            let problem = change.problem.as_deref().filter(|_| change.unusable.is_some());
            let problem = problem.map(|problem| format!(": {problem}")).unwrap_or_default();
            let node = self.nodes.name(id);
            self.node_event(
                id,
                kind,
                format!("GPU {} of node `{node}` {verb}{problem}", change.gpu),
            );
        }
        self.apply_all(readings.events);
    }

    /// Records that a node's stream or push endpoint became reachable or unreachable.
    pub(super) fn connect_node(&mut self, id: NodeId, contact: Contact) {
        let is_lost = |state: &Self| state.nodes.get(id).is_some_and(LiveNode::is_lost);
        let was_lost = is_lost(self);
        let now = self.now();
        self.nodes.update(id, |node| node.connect(contact, now));
        if was_lost && !is_lost(self) {
            let message = format!("node `{}` accepts connections again", self.nodes.name(id));
            self.node_event(id, EventKind::NodeRecovered, message);
        }
        self.report_node(id);
    }

    /// Declares overdue nodes lost, and closes silent ones for new work.
    pub(super) fn find_lost_nodes(&mut self) {
        for id in self.nodes_where(LiveNode::is_overdue) {
            if self.nodes.get(id).is_some_and(LiveNode::is_push) {
                self.declare_push_node_lost(id);
            } else {
                self.declare_lost(id);
            }
        }
        // A host that did not answer may return without the process of its agent.
        let abandoned = |node: &LiveNode| {
            node.is_push() && node.is_lost() && node.has_no_process() && node.has_tasks()
        };
        for id in self.nodes_where(abandoned) {
            self.end_jobs_of_lost_worker(id);
        }
        for id in self.nodes_where(LiveNode::is_open_but_silent) {
            self.report_node(id);
        }
    }

    /// Requeues tasks that a connected agent has not confirmed in time. An agent that has the task nevertheless stops it
    /// at the next sync, and its updates are stale.
    pub(super) fn requeue_unconfirmed(&mut self) {
        let timeout = self.settings.confirmation_timeout;
        let listening = self.nodes.iter().filter(|node| node.is_listening());
        let overdue: Vec<(NodeId, TaskKey)> = listening
            .flat_map(|node| {
                let old = node.tasks_older_than(timeout);
                old.filter_map(|task| Some((node.id(), self.unconfirmed_task(task)?)))
            })
            .collect();
        for (node, key) in overdue {
            tracing::warn!(node = %self.nodes.name(node), task = %key, "Agent did not confirm a task");
            self.requeue_refused(key, &format!("not confirmed within {timeout:?}"));
            self.journal.request_sync(node);
        }
    }

    fn unconfirmed_task(&self, task: TaskRef) -> Option<TaskKey> {
        let job = self.jobs.get(task.job).filter(|job| job.state.stopping.is_none())?;
        let mut tasks = job.state.tasks.iter();
        let assigned = tasks.find(|assigned| assigned.task == task.task)?;
        (assigned.state == TaskState::Scheduled).then(|| job.task_key(task.task))
    }

    fn nodes_where(&self, test: impl Fn(&LiveNode) -> bool) -> Vec<NodeId> {
        self.nodes.iter().filter(|node| test(node)).map(LiveNode::id).collect()
    }

    pub(super) fn save_heartbeats(&mut self) {
        let heartbeats = self.nodes.take_unsaved_heartbeats();
        if !heartbeats.is_empty() {
            self.journal.write(Change::Heartbeats(heartbeats));
        }
    }
}
