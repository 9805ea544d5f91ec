//! Agents that are called: what they are sent, and what they should have answered by now.

use serde_json::{Value, json};

use agentaflow_api::event::EventKind;
use agentaflow_api::link::{Stop, StopCause, TaskKey};
use agentaflow_api::units::Stamp;

use super::assigning::requirements;
use super::jobs::{grace_ms, stops};
use super::state::State;
use crate::store::{JobRow, SeatState};

/// An agent that is called has answered after this long, or never will.
const PUSH_ANSWER_MS: u64 = 15_000;
/// The time-out that agents of the documents are told when a job does not say one.
const PUSH_TIMEOUT_SECONDS: u64 = 3600;

impl State {
    /// Tasks of a node that were sent to its agent long ago and not answered for, and stops that stand.
    pub(crate) fn push_due(&self, id: i64) -> (Vec<TaskKey>, Vec<Stop>) {
        let (mut unanswered, mut halts) = (Vec::new(), Vec::new());
        let jobs = self.nodes.get(&id).into_iter().flat_map(|node| &node.jobs);
        for job in jobs.filter_map(|job| self.jobs.get(job)) {
            if job.state.stopping.is_some() {
                halts.extend(stops(job, None).into_iter().map(|(_, stop)| stop));
            } else if age(job) > PUSH_ANSWER_MS {
                let waiting =
                    job.state.seats.iter().filter(|seat| seat.state == SeatState::Assigned);
                unanswered.extend(waiting.map(|seat| TaskKey {
                    job: job.id,
                    epoch: job.state.epoch,
                    task: seat.task,
                }));
            }
        }
        (unanswered, halts)
    }

    /// Agents of the documents keep time themselves; one that forgot a job would keep it for ever.
    pub(crate) fn stop_overdue_pushes(&mut self) {
        let pushed = self.nodes.values().filter(|node| node.is_push()).flat_map(|node| &node.jobs);
        let overdue = |job: &&JobRow| {
            let allowed =
                job.spec.timeout_seconds.unwrap_or(PUSH_TIMEOUT_SECONDS).saturating_mul(1000);
            let grace = grace_ms(&job.spec) + PUSH_ANSWER_MS;
            job.state.stopping.is_none() && age(job) > allowed.saturating_add(grace)
        };
        let jobs = pushed.filter_map(|job| self.jobs.get(job)).filter(overdue);
        let jobs: Vec<i64> = jobs.map(|job| job.id).collect();
        for job in jobs {
            self.job_event(
                job,
                EventKind::TimedOut,
                "its agent should have ended it by now; it is stopped",
            );
            self.stop_tasks(job, StopCause::TimedOut, None);
        }
    }

    /// What an agent of the documents is sent.
    pub(crate) fn push_request(&self, id: i64) -> Option<Value> {
        let job = self.jobs.get(&id)?;
        let spec = &job.spec;
        Some(json!({
            "job_id": id,
            "docker_image": spec.docker_image,
            "docker_tag": spec.docker_tag.as_deref().unwrap_or("latest"),
            "docker_registry": spec.docker_registry,
            "job_config": spec.job_config,
            "input_data": if spec.input_data.is_null() { json!({}) } else { spec.input_data.clone() },
            "resource_requirements": requirements(job),
            "timeout": spec.timeout_seconds.unwrap_or(PUSH_TIMEOUT_SECONDS),
        }))
    }
}

/// Milliseconds since a job got its place.
fn age(job: &JobRow) -> u64 {
    let placed = job.state.scheduled_at.map_or(0, |at| Stamp::now().0.saturating_sub(at.0));
    placed.max(0) as u64
}
