//! Contact with a node whose agent the server calls.
//!
//! An agent of the documented push protocol may block while a job runs: no heartbeat and no answer for as long as the job
//! lasts. Its port still accepts connections, because the kernel accepts them. Such a node is alive; a node is lost only
//! after its port has accepted no connection for three heartbeat intervals.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use agentaflow_api::units::Stamp;

use super::{LiveNode, TaskRef};

/// Result of a probe of a push endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushReach {
    /// The agent answers requests.
    Answers,
    /// The port accepts connections; the agent does not answer.
    Accepts,
    /// The port refuses connections: the process of the agent is gone.
    Refuses,
    /// No connection, for another reason: the host or the network may be down, and the agent may still run.
    Unreachable,
}

/// Answer of a push agent to the question for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobAnswer {
    Known,
    /// The agent answers that it has no such job.
    NotFound,
    /// 404: no such job, or an agent without this call.
    NoSuchPage,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PushLink {
    last_probe: Option<PushReach>,
    /// First of the failed probes since the last sign of life.
    failing_since: Option<Instant>,
    last_sign: Option<Stamp>,
    /// Tasks that the agent may not have any more.
    unconfirmed: BTreeMap<TaskRef, UnconfirmedTask>,
    /// The agent reported that it has no Docker.
    lacks_docker: bool,
}

/// A task that its agent may have lost.
#[derive(Clone, Copy, Debug, Default)]
struct UnconfirmedTask {
    /// The agent registered again after the task was assigned.
    registered_again: bool,
    /// Answers in a row that the agent does not have the task.
    denials: u32,
    /// Last sign of life of the process that had the task.
    last_sign: Option<Stamp>,
}

/// A task that its agent does not have any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissingTask {
    /// Last sign of life of the process that had the task.
    pub(crate) last_sign: Option<Stamp>,
}

impl PushLink {
    pub(super) fn answers(&self) -> bool {
        self.last_probe == Some(PushReach::Answers)
    }

    /// Forgets the probes of another endpoint.
    pub(super) fn clear_probes(&mut self) {
        self.last_probe = None;
        self.failing_since = None;
    }

    pub(super) fn lacks_docker(&self) -> bool {
        self.lacks_docker
    }

    /// Records a probe; true if the node showed a sign of life.
    pub(super) fn record_probe(&mut self, reach: PushReach, now: Stamp) -> bool {
        self.last_probe = Some(reach);
        let alive = matches!(reach, PushReach::Answers | PushReach::Accepts);
        if alive {
            self.record_sign(now);
        } else {
            self.failing_since.get_or_insert_with(Instant::now);
        }
        alive
    }

    pub(super) fn record_sign(&mut self, now: Stamp) {
        self.failing_since = None;
        self.last_sign = Some(now);
    }

    /// Time at which the node counts as silent without another sign of life; none while probes succeed.
    pub(super) fn silent_at(&self, patience: Duration) -> Option<Instant> {
        self.failing_since.map(|since| since + patience)
    }

    pub(super) fn forget_task(&mut self, task: TaskRef) {
        self.unconfirmed.remove(&task);
    }
}

impl LiveNode {
    /// Returns true if the last probe found no process at the endpoint.
    pub(crate) fn has_no_process(&self) -> bool {
        self.push.last_probe == Some(PushReach::Refuses)
    }

    /// Records if the agent reported that it has no Docker.
    pub(super) fn set_lacks_docker(&mut self, lacks: bool) {
        self.push.lacks_docker = lacks;
    }

    /// A report of the agent is a sign of life.
    pub(crate) fn record_sign(&mut self, now: Stamp) {
        self.push.record_sign(now);
    }

    /// Last sign of life: a heartbeat, a report or a connection.
    pub(crate) fn last_sign(&self) -> Option<Stamp> {
        self.push.last_sign.max(self.last_heartbeat())
    }

    /// The agent registered again: it may have restarted, and then it knows none of its tasks.
    pub(crate) fn mark_tasks_unconfirmed(&mut self) {
        let last_sign = self.last_sign();
        for task in self.tasks.keys() {
            let new = UnconfirmedTask { registered_again: true, denials: 0, last_sign };
            self.push.unconfirmed.entry(*task).or_insert(new).registered_again = true;
        }
    }

    /// Records the agent's answer about a task; a value if the agent certainly does not have the task.
    pub(crate) fn record_job_answer(
        &mut self,
        task: TaskRef,
        answer: JobAnswer,
    ) -> Option<MissingTask> {
        if answer == JobAnswer::Known || !self.tasks.contains_key(&task) {
            self.push.unconfirmed.remove(&task);
            return None;
        }
        let last_sign = self.last_sign();
        let new = UnconfirmedTask { last_sign, ..UnconfirmedTask::default() };
        let task = self.push.unconfirmed.entry(task).or_insert(new);
        task.denials += 1;
        let certain = task.registered_again || answer == JobAnswer::NotFound && task.denials > 1;
        certain.then_some(MissingTask { last_sign: task.last_sign })
    }
}

#[cfg(test)]
mod tests {
    use agentaflow_api::ids::{JobId, NodeId};
    use agentaflow_api::node::NodeSpec;

    use super::*;
    use crate::core::node::{Contact, LeaseTerms, TaskBooking};
    use crate::store::{JobRow, NodeRow, TaskAssignment};

    const NOW: Stamp = Stamp(1_000);
    const TASK: TaskRef = TaskRef { job: JobId(7), task: 0 };

    fn push_node() -> LiveNode {
        let spec =
            NodeSpec { api_endpoint: Some("http://10.0.0.7:8080".into()), ..NodeSpec::default() };
        let mut node = LiveNode::new(
            NodeRow { id: NodeId(1), spec, ..NodeRow::default() },
            LeaseTerms::default(),
        );
        node.set_interval(Duration::from_millis(1));
        node.connect(Contact::Push(PushReach::Answers), NOW);
        node.add_task(TASK, TaskBooking::new(&JobRow::default(), &TaskAssignment::default()));
        node
    }

    #[test]
    fn a_port_that_accepts_connections_keeps_a_silent_node_alive() {
        let mut node = push_node();
        node.connect(Contact::Push(PushReach::Accepts), NOW);
        std::thread::sleep(Duration::from_millis(10));
        assert!(node.is_alive() && !node.is_overdue(), "silence is expected");
        assert!(!node.is_reachable(), "a blocked agent gets no work");
        for reach in [PushReach::Refuses, PushReach::Unreachable] {
            node.connect(Contact::Push(reach), NOW);
            std::thread::sleep(Duration::from_millis(10));
            assert!(!node.is_alive() && node.is_overdue(), "{reach:?}");
        }
        node.connect(Contact::Push(PushReach::Accepts), NOW);
        assert!(node.is_alive() && !node.is_overdue(), "it came back in time");
    }

    #[test]
    fn one_answer_is_enough_after_a_registration_and_two_otherwise() {
        let mut node = push_node();
        assert!(node.record_job_answer(TASK, JobAnswer::NotFound).is_none());
        assert!(node.record_job_answer(TASK, JobAnswer::Known).is_none());
        assert!(node.record_job_answer(TASK, JobAnswer::NotFound).is_none());
        assert!(node.record_job_answer(TASK, JobAnswer::NotFound).is_some());
        let mut node = push_node();
        for _ in 0..3 {
            assert!(node.record_job_answer(TASK, JobAnswer::NoSuchPage).is_none());
        }
        node.mark_tasks_unconfirmed();
        assert!(node.record_job_answer(TASK, JobAnswer::NoSuchPage).is_some());
    }
}
