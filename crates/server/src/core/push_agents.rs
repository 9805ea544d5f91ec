//! Agents that the server calls: their requests, and tasks and stops that they have not confirmed.

use serde_json::{Value, json};

use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{JobId, NodeId};
use agentaflow_api::job::TaskState;
use agentaflow_api::link::{Stop, StopCause, TaskKey};
use agentaflow_api::units::Stamp;

use super::assignment::requirements;
use super::job::workload::grace_ms;
use super::node::LiveNode;
use super::state::State;
use super::stop::stops;
use crate::store::JobRow;

/// A push agent confirms a task within this time, or the server calls it again.
const CONFIRM_MS: u64 = 15_000;
/// Timeout that a push agent receives for a job without one.
const DEFAULT_TIMEOUT_SECONDS: u64 = 3600;

/// Node whose agent the server calls.
#[derive(Clone, Debug)]
pub(crate) struct PushNode {
    pub(crate) id: NodeId,
    pub(crate) endpoint: String,
    /// Address that the node registered from.
    pub(crate) peer: Option<String>,
}

/// Messages that a push agent has not confirmed.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    pub(crate) tasks: Vec<TaskKey>,
    pub(crate) stops: Vec<Stop>,
}

impl State {
    pub(super) fn push_nodes(&self) -> Vec<PushNode> {
        let push = self.nodes.iter().filter(|node| node.is_push()).map(LiveNode::row);
        push.filter_map(|row| {
            let endpoint = row.spec.api_endpoint.clone()?;
            Some(PushNode { id: row.id, endpoint, peer: row.peer.clone() })
        })
        .collect()
    }

    pub(super) fn unconfirmed_pushes(&self, node: NodeId) -> Unconfirmed {
        let mut unconfirmed = Unconfirmed::default();
        let jobs = self.nodes.get(node).map(LiveNode::jobs).unwrap_or_default();
        for job in jobs.into_iter().filter_map(|job| self.jobs.get(job)) {
            if job.state.stopping.is_some() {
                unconfirmed.stops.extend(stops(job, None).into_iter().map(|stop| stop.stop));
            } else if ms_since_placement(job) > CONFIRM_MS {
                let tasks = job.state.tasks.iter();
                let assigned = tasks.filter(|task| task.state == TaskState::Scheduled);
                unconfirmed.tasks.extend(assigned.map(|task| job.task_key(task.task)));
            }
        }
        unconfirmed
    }

    /// Stops jobs of push agents after their timeout. The agents enforce it themselves; one that forgot a job would keep
    /// the job's resources forever.
    pub(super) fn stop_overdue_pushes(&mut self) {
        let overdue = |job: &&JobRow| {
            let timeout = job.spec.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
            let allowed = timeout.saturating_mul(1000).saturating_add(grace_ms(&job.spec));
            job.state.stopping.is_none() && ms_since_placement(job) > allowed + CONFIRM_MS
        };
        let push = self.nodes.iter().filter(|node| node.is_push() && node.has_tasks());
        let jobs = push.flat_map(LiveNode::jobs).filter_map(|job| self.jobs.get(job));
        let jobs: Vec<JobId> = jobs.filter(overdue).map(|job| job.id).collect();
        for job in jobs {
            let message = "the agent did not enforce the timeout; the server stops the job";
            self.job_event(job, EventKind::TimedOut, message);
            self.stop_tasks(job, StopCause::TimedOut, None);
        }
    }

    /// Request of the documented push protocol for a job.
    pub(super) fn push_request(&self, id: JobId) -> Option<Value> {
        let job = self.jobs.get(id)?;
        let spec = &job.spec;
        Some(json!({
            "job_id": id,
            "docker_image": spec.docker_image,
            "docker_tag": spec.docker_tag.as_deref().unwrap_or("latest"),
            "docker_registry": spec.docker_registry,
            "job_config": spec.job_config,
            "input_data": if spec.input_data.is_null() { json!({}) } else { spec.input_data.clone() },
            "resource_requirements": requirements(job),
            "timeout": spec.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS),
        }))
    }
}

fn ms_since_placement(job: &JobRow) -> u64 {
    let elapsed = job.state.scheduled_at.map_or(0, |at| Stamp::now().0.saturating_sub(at.0));
    elapsed.max(0) as u64
}
