//! How jobs end, wait again, and survive the loss of their nodes.

use agentaflow_api::end::EndReason;
use agentaflow_api::event::EventKind;
use agentaflow_api::job::{JobStatus, OnNodeLost};
use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_api::units::Stamp;
use agentaflow_engine::{Event, WorkloadState};

use super::jobs::{DEFAULT_LOSSES, weight};
use super::state::{State, workload_id};
use crate::store::SeatState;

impl State {
    /// Some task ended. If others still run and the job cannot succeed any more, they are stopped; when none
    /// runs, the job is concluded.
    pub(super) fn after_end(&mut self, id: i64) {
        let Some(job) = self.jobs.get(&id) else { return };
        let state = &job.state;
        let live = state.seats.iter().any(|seat| seat.state != SeatState::Ended);
        let hopeless =
            state.end_reason.is_some() || state.cancel_requested || state.stopping.is_some();
        if live {
            if hopeless && state.stopping.is_none() {
                self.stop_tasks(id, StopCause::GangBroken, None);
            }
            return;
        }
        self.conclude(id);
    }

    /// Nothing of the job runs any more: it is over, or waits again.
    fn conclude(&mut self, id: i64) {
        let Some(job) = self.jobs.get(&id) else { return };
        let state = &job.state;
        let seats = &state.seats;
        // Who saves its work and leaves with 0 because it was told to is not done.
        let good = !seats.is_empty()
            && seats.iter().all(|seat| seat.exit_code == Some(0) && !seat.stopped);
        if good && state.end_reason.is_none() {
            return self.finish(id, JobStatus::Completed, EndReason::Exited, None);
        }
        if let Some(reason) = state.end_reason {
            let left = state.retries_used < job.spec.max_retries.unwrap_or(0);
            if reason.is_retryable() && left && !state.cancel_requested {
                return self.retry(id);
            }
            if !state.cancel_requested || !reason.is_own_exit() {
                let detail = state.error_message.clone();
                return self.finish(id, JobStatus::Failed, reason, detail);
            }
        }
        if state.complete_requested {
            return self.finish(id, JobStatus::Completed, EndReason::Completed, None);
        }
        if state.cancel_requested {
            return self.finish(
                id,
                JobStatus::Cancelled,
                EndReason::Cancelled,
                Some("stopped by its user".to_owned()),
            );
        }
        if state.stopping == Some(StopCause::LeaseLost) {
            return self.lost(id);
        }
        self.wait_again(id);
    }

    /// A job's node was lost: one of its losses is used up.
    fn lost(&mut self, id: i64) {
        if self.count_loss(id) {
            self.wait_again(id);
        } else {
            let words = "its node was lost more often than its retries allow".to_owned();
            self.finish(id, JobStatus::Failed, EndReason::NodeLost, Some(words));
        }
    }

    /// Uses up one loss; false when none was left.
    fn count_loss(&mut self, id: i64) -> bool {
        let Some(job) = self.jobs.get_mut(&id) else { return false };
        let allowed = job.spec.max_retries.unwrap_or(DEFAULT_LOSSES);
        job.state.losses += 1;
        job.state.losses <= allowed
    }

    fn retry(&mut self, id: i64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.state.retries_used += 1;
        let (used, most) = (job.state.retries_used, job.spec.max_retries.unwrap_or(0));
        let why = job.state.error_message.clone().unwrap_or_default();
        self.job_event(id, EventKind::Retrying, format!("{why}; retry {used} of {most}"));
        self.wait_again(id);
    }

    /// Back to waiting, as old as it was, in the engine too.
    fn wait_again(&mut self, id: i64) {
        let workload = workload_id(id);
        let Some(view) = self.engine.workload(&workload) else {
            // It was left out when the engine was restored.
            if let Some(anew) = self.jobs.get(&id).and_then(|job| super::jobs::workload(job).ok()) {
                self.tell(Event::Submitted(Box::new(anew)));
            }
            return self.note_waiting(id);
        };
        match view.state {
            WorkloadState::Pending => {}
            WorkloadState::Stopping => {
                for task in view.tasks {
                    self.tell(Event::TaskStopped { workload: workload.clone(), task: task.task });
                }
            }
            WorkloadState::Placed | WorkloadState::Running => self.tell(Event::Requeued(workload)),
        }
        self.note_waiting(id);
    }

    /// The record of a job waits again. The engine knows already, and may even have a new place for it.
    pub(crate) fn note_waiting(&mut self, id: i64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state.status == JobStatus::Pending {
            return;
        }
        let state = &mut job.state;
        state.status = JobStatus::Pending;
        (state.stopping, state.error_message) = (None, None);
        (state.end_reason, state.end_cause) = (None, None);
        (state.exit_code, state.scheduled_at, state.started_at) = (None, None, None);
        state.failed_at = None;
        self.touch(id);
        self.job_event(id, EventKind::Requeued, "it waits for a place again");
    }

    /// The end.
    pub(crate) fn finish(
        &mut self,
        id: i64,
        status: JobStatus,
        reason: EndReason,
        detail: Option<String>,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let state = &mut job.state;
        state.status = status;
        state.completed_at = Some(Stamp::now());
        state.end_reason = Some(reason);
        state.error_message = detail.clone().filter(|_| status != JobStatus::Completed);
        if status == JobStatus::Completed {
            state.exit_code = Some(0);
        }
        (state.stopping, state.wait_reason, state.sealed) = (None, None, None);
        self.touch(id);
        let (kind, words) = match status {
            JobStatus::Completed => (EventKind::Completed, "Completed".to_owned()),
            JobStatus::Cancelled => (EventKind::Cancelled, detail.unwrap_or_default()),
            _ => (EventKind::Failed, detail.unwrap_or_else(|| reason.to_string())),
        };
        self.job_event(id, kind, words);
        self.tell(match status {
            JobStatus::Cancelled => Event::Cancelled(workload_id(id)),
            _ => Event::Finished(workload_id(id)),
        });
        if let Some(job) = self.jobs.remove(&id) {
            if let Some(held) = self.held.get_mut(&job.user_id) {
                (held.0, held.1) =
                    (held.0.saturating_sub(1), held.1.saturating_sub(weight(&job.spec)));
            }
            for seat in &job.state.seats {
                if let Some(node) = self.nodes.get_mut(&seat.node) {
                    node.jobs.remove(&id);
                }
            }
            self.batch.finished.insert(id, job);
        }
        self.money_moved = true;
    }

    /// A node was silent for so long that its guardian has stopped what must not run twice: that is given to
    /// others. What asked to wait, waits.
    pub(crate) fn lose_node(&mut self, id: i64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.lost = true;
        let (name, node_id) = (node.row.spec.node_name.clone(), node.row.node_id.clone());
        let heard = node.beat_at;
        let jobs: Vec<i64> = node.jobs.iter().copied().collect();
        self.node_event(
            id,
            EventKind::NodeLost,
            format!("node `{name}` does not answer; its jobs are given to others"),
        );
        for job in jobs {
            self.lose_tasks(job, id, heard);
        }
        self.tell(Event::NodeLost(node_id.into()));
    }

    /// The tasks of a job on a lost node are over, as far as they were seen to run.
    fn lose_tasks(&mut self, id: i64, node: i64, heard: Option<Stamp>) {
        let Some(job) = self.jobs.get(&id) else { return };
        if job.spec.on_node_lost.unwrap_or_default() == OnNodeLost::Wait
            && !job.state.cancel_requested
        {
            return;
        }
        let epoch = job.state.epoch;
        let gone: Vec<(TaskKey, u64)> = job
            .state
            .seats
            .iter()
            .filter(|seat| seat.node == node && seat.state != SeatState::Ended)
            .map(|seat| {
                let ran = seat
                    .started_at
                    .zip(heard)
                    .map_or(0, |(from, to)| to.0.saturating_sub(from.0).max(0));
                (TaskKey { job: id, epoch, task: seat.task }, ran as u64)
            })
            .collect();
        for (key, ran) in gone {
            self.end_seat(key, ran, None, true);
        }
        self.touch(id);
        self.forgive(id, heard);
        let Some(job) = self.jobs.get(&id) else { return };
        let live = job.state.seats.iter().any(|seat| seat.state != SeatState::Ended);
        let wanted = !job.state.cancel_requested && job.state.end_reason.is_none();
        if !wanted && !live {
            return self.conclude(id);
        }
        if wanted && self.count_loss(id) {
            if !live {
                // The engine knows, or hears of it with the node.
                self.note_waiting(id);
            }
        } else if wanted {
            if live {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.state.end_reason = Some(EndReason::NodeLost);
                    job.state.error_message = Some("a node of the gang was lost".to_owned());
                }
                self.stop_tasks(id, StopCause::GangBroken, None);
            } else {
                let words = "its node was lost more often than its retries allow".to_owned();
                self.finish(id, JobStatus::Failed, EndReason::NodeLost, Some(words));
            }
        }
    }

    /// When a node of a gang dies, its comrades fail first, for lack of an answer: that is the node's fault.
    fn forgive(&mut self, id: i64, heard: Option<Stamp>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let state = &mut job.state;
        let own = state.end_reason.is_some_and(EndReason::is_own_exit);
        if own && state.seats.len() > 1 && state.failed_at > heard {
            (state.end_reason, state.end_cause) = (None, None);
            (state.error_message, state.failed_at) = (None, None);
            state.exit_code = None;
        }
    }

    /// Tasks on nodes that are lost already cannot be stopped any more: they are given up.
    pub(crate) fn give_up_lost_tasks(&mut self, id: i64) {
        let Some(job) = self.jobs.get(&id) else { return };
        let nodes: std::collections::BTreeSet<i64> =
            job.state.seats.iter().map(|seat| seat.node).collect();
        for node in nodes {
            let lost = self.nodes.get(&node).is_none_or(|node| node.lost);
            if lost {
                let heard = self.nodes.get(&node).and_then(|node| node.beat_at);
                self.lose_tasks(id, node, heard);
            }
        }
    }
}
