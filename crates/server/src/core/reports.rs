//! Updates from agents, and their effect on jobs.

use agentaflow_api::billing::{LedgerEntry, LedgerKind};
use agentaflow_api::end::{EndCause, EndReason, StartFailure};
use agentaflow_api::error::ErrorCode;
use agentaflow_api::event::EventKind;
use agentaflow_api::job::{JobStatus, JobStatusUpdate, ResourceUsage};
use agentaflow_api::link::{Ended, Report, StopCause, TaskKey, TaskUpdate};
use agentaflow_api::units::{Cores, Dollars, Stamp};
use agentaflow_engine::Event;
use agentaflow_explain::{End, find_cause};

use super::jobs::moves;
use super::money::{self, Allocation};
use super::nodes::node_name;
use super::state::{State, workload_id};
use crate::api_error::ApiError;
use crate::store::{Change, JobRow, Seat, SeatState};

/// A reported run may be this much longer than the server saw it, for clocks that run at different speeds.
const CLOCK_SLACK_MS: u64 = 2_000;

impl State {
    /// Applies an update of one task from the agent of a node. False when it is about an assignment that is not, or no longer,
    /// that node's: a late update of a replaced one changes nothing.
    pub(crate) fn apply_update(&mut self, node: i64, report: Report) -> bool {
        let Report { key, update } = report;
        let Some(seat) = self.seat_of(key, node) else { return false };
        if seat.state == SeatState::Ended {
            return true;
        }
        match update {
            TaskUpdate::Accepted => self.accepted(key, SeatState::Accepted, None),
            TaskUpdate::Placed(place) => {
                if let Some(seat) = self.seat_mut(key) {
                    seat.kubernetes = Some(place);
                    self.touch(key.job);
                }
            }
            TaskUpdate::Running { started_at } => {
                self.accepted(key, SeatState::Running, Some(started_at));
            }
            TaskUpdate::Progress { kind, detail } => self.progress(key, kind, &detail),
            TaskUpdate::Refused { detail } => self.refused(key, &detail),
            TaskUpdate::Ended(ended) => self.ended(key, &ended),
        }
        true
    }

    fn seat_of(&self, key: TaskKey, node: i64) -> Option<&Seat> {
        let job = self.jobs.get(&key.job).filter(|job| job.state.epoch == key.epoch)?;
        job.state.seats.iter().find(|seat| seat.task == key.task && seat.node == node)
    }

    fn seat_mut(&mut self, key: TaskKey) -> Option<&mut Seat> {
        let job = self.jobs.get_mut(&key.job)?;
        job.state.seats.iter_mut().find(|seat| seat.task == key.task)
    }

    /// An agent has a task, or runs it.
    fn accepted(&mut self, key: TaskKey, reached: SeatState, started: Option<Stamp>) {
        let Some(seat) = self.seat_mut(key) else { return };
        if seat.state == reached
            || (seat.state == SeatState::Running && reached == SeatState::Accepted)
        {
            return;
        }
        let first = seat.state == SeatState::Assigned;
        seat.state = reached;
        if started.is_some() {
            // The server's clock, so that one agent's wrong clock does not mix with another's.
            seat.started_at = Some(Stamp::now());
        }
        if first {
            self.tell(Event::PlacementConfirmed { workload: workload_id(key.job), task: key.task });
        }
        self.touch(key.job);
        let Some(job) = self.jobs.get_mut(&key.job) else { return };
        if reached == SeatState::Running && job.state.status == JobStatus::Scheduled {
            job.state.status = JobStatus::Running;
            job.state.started_at = Some(Stamp::now());
            self.job_event(key.job, EventKind::Started, "it runs");
        }
    }

    fn progress(&mut self, key: TaskKey, kind: EventKind, detail: &str) {
        let detail: String = detail.chars().take(500).collect();
        self.job_event(key.job, kind, detail);
    }

    /// The node cannot run it now: the engine plans it again, elsewhere if possible.
    fn refused(&mut self, key: TaskKey, detail: &str) {
        let detail: String = detail.chars().take(500).collect();
        let Some(seat) = self.seat_mut(key) else { return };
        seat.state = SeatState::Ended;
        let node = seat.node;
        let on = node_name(self, node);
        self.leave(key.job, node);
        self.job_event(key.job, EventKind::Refused, format!("node {on} did not take it: {detail}"));
        self.touch(key.job);
        self.tell(Event::PlacementRefused { workload: workload_id(key.job), task: key.task });
        self.after_end(key.job);
    }

    /// A task is over: bill it, remember how it ended, and look whether the whole job is.
    fn ended(&mut self, key: TaskKey, ended: &Ended) {
        let Some(job) = self.jobs.get(&key.job) else { return };
        let observed =
            job.state.scheduled_at.map_or(0, |at| Stamp::now().0.saturating_sub(at.0).max(0));
        // Who does not know how long it ran is believed to have run since it said so.
        let unknown = ended.ran_ms == 0 && ended.exit_code.is_none();
        let seen = job
            .state
            .seats
            .iter()
            .find(|seat| seat.task == key.task)
            .and_then(|seat| seat.started_at);
        let since = seen.map_or(0, |at| Stamp::now().0.saturating_sub(at.0).max(0) as u64);
        let said = if unknown { since } else { ended.ran_ms };
        let ran_ms = said.min(observed as u64 + CLOCK_SLACK_MS);
        let ran = ended.exit_code.is_some() || ran_ms > 0;
        self.end_seat(key, ran_ms, ended.exit_code, ended.stopped.is_some());
        let Some(job) = self.jobs.get_mut(&key.job) else { return };
        let state = &mut job.state;
        if ran && state.started_at.is_none() {
            state.started_at = Some(Stamp(Stamp::now().0.saturating_sub(ran_ms as i64)));
        }
        add_usage(&mut state.usage, &ended.usage);
        if ended.output_data.is_some() {
            state.output_data.clone_from(&ended.output_data);
        }
        match outcome(ended) {
            Outcome::Success => {}
            Outcome::Requeue(cause) => {
                if state.stopping.is_none() {
                    state.stopping = Some(cause);
                }
            }
            Outcome::Cancelled => {
                state.cancel_requested = true;
                state.exit_code = state.exit_code.or(ended.exit_code);
            }
            Outcome::Failure { reason, cause, message } => {
                // The first failure is the reason; later ones follow from it.
                if state.end_reason.is_none() {
                    state.end_reason = Some(reason);
                    state.end_cause = cause;
                    state.failed_at = Some(Stamp::now());
                    state.error_message = Some(message);
                    state.exit_code = ended.exit_code;
                }
            }
        }
        self.touch(key.job);
        self.after_end(key.job);
    }

    /// Marks a task as over and bills it.
    pub(super) fn end_seat(
        &mut self,
        key: TaskKey,
        ran_ms: u64,
        exit_code: Option<i32>,
        stopped: bool,
    ) {
        let Some(seat) = self.seat_mut(key).filter(|seat| seat.state != SeatState::Ended) else {
            return;
        };
        seat.state = SeatState::Ended;
        (seat.ran_ms, seat.exit_code, seat.stopped) = (ran_ms, exit_code, stopped);
        let seat = seat.clone();
        self.leave(key.job, seat.node);
        self.bill(key, &seat, ran_ms);
    }

    /// A node has one task of the job less.
    fn leave(&mut self, job: i64, node: i64) {
        let there = |seat: &Seat| seat.node == node && seat.state != SeatState::Ended;
        let still = self.jobs.get(&job).is_some_and(|job| job.state.seats.iter().any(there));
        if let Some(node) = self.nodes.get_mut(&node).filter(|_| !still) {
            node.jobs.remove(&job);
        }
    }

    fn bill(&mut self, key: TaskKey, seat: &Seat, ran_ms: u64) {
        let Some(job) = self.jobs.get_mut(&key.job) else { return };
        let allocation = allocation(job, seat);
        let micros = money::cost(allocation, seat.price, ran_ms);
        job.state.ran_ms = job.state.ran_ms.max(ran_ms);
        job.state.cost = job.state.cost.saturating_add(micros);
        // What ended within a millisecond ran, too.
        if ran_ms == 0 && seat.exit_code.is_none() {
            return;
        }
        let (user, queue) = (job.user_id, job.queue.clone());
        let node_id = self.nodes.get(&seat.node).map(|node| node.row.node_id.clone());
        let at = Stamp::now();
        self.ids.0.ledger += 1;
        self.accounts.entry(user).or_default().book(micros, true, at);
        self.money_moved = true;
        self.batch.changes.push(Change::Ledger(Box::new(LedgerEntry {
            id: self.ids.0.ledger,
            at,
            kind: LedgerKind::Usage,
            user_id: user,
            job_id: Some(key.job),
            attempt: Some(key.epoch),
            task: Some(key.task),
            queue: Some(queue),
            node_id,
            gpus: Cores(allocation.gpu_milli),
            cpu_cores: Cores(allocation.cpu_milli),
            memory: allocation.memory,
            duration_ms: ran_ms,
            micros,
            amount: Dollars(micros),
            note: None,
        })));
    }

    /// News in the form of the documents.
    pub(crate) fn status_update(
        &mut self,
        id: i64,
        node: Option<i64>,
        update: JobStatusUpdate,
    ) -> Result<(), ApiError> {
        let Some(job) = self.jobs.get(&id) else { return Ok(()) };
        let status = update.status.unwrap_or_default();
        let present = job.state.status;
        if present == JobStatus::Pending {
            return Err(illegal(present, status));
        }
        let seat = job.state.seats.iter().find(|seat| node.is_none_or(|node| seat.node == node));
        let Some(seat) = seat else {
            return Err(ApiError::conflict(
                ErrorCode::NotAssigned,
                "the job is not assigned to this node",
            ));
        };
        let key = TaskKey { job: id, epoch: job.state.epoch, task: seat.task };
        let ran = seat.started_at.map_or(0, |at| Stamp::now().0.saturating_sub(at.0).max(0) as u64);
        let said = update.duration_seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
        let mut ended = Ended {
            ran_ms: said.map_or(ran, |seconds| (seconds * 1000.0) as u64),
            usage: update.resource_usage.unwrap_or_default(),
            output_data: update.output_data,
            ..Ended::default()
        };
        let node = seat.node;
        let reported = match status {
            JobStatus::Running => TaskUpdate::Running { started_at: Stamp::now() },
            JobStatus::Completed => {
                ended.exit_code = Some(0);
                TaskUpdate::Ended(Box::new(ended))
            }
            JobStatus::Failed => {
                ended.exit_code = Some(1);
                let words = update
                    .error_message
                    .unwrap_or_else(|| "its agent said that it failed".to_owned());
                let words: String = words.chars().take(4000).collect();
                ended.failed_to_start = Some(StartFailure::new(EndReason::Exited, words));
                TaskUpdate::Ended(Box::new(ended))
            }
            JobStatus::Cancelled => {
                ended.stopped = Some(job.state.stopping.unwrap_or(StopCause::Cancelled));
                TaskUpdate::Ended(Box::new(ended))
            }
            JobStatus::Pending | JobStatus::Scheduled => return Err(illegal(present, status)),
        };
        self.apply_update(node, Report { key, update: reported });
        Ok(())
    }
}

/// A change of status that cannot be.
pub(super) fn illegal(from: JobStatus, to: JobStatus) -> ApiError {
    ApiError::conflict(
        ErrorCode::IllegalTransition,
        format!("a job that is {} cannot become {}", from.as_str(), to.as_str()),
    )
}

/// What a task has booked.
pub(crate) fn allocation(job: &JobRow, seat: &Seat) -> Allocation {
    Allocation {
        gpu_milli: seat.gpu_milli,
        cpu_milli: job.spec.cpu_cores_required.unwrap_or_default().0,
        memory: job.spec.memory_required.unwrap_or(0),
    }
}

/// Effect of the end of a task on its job.
enum Outcome {
    Success,
    /// The job is requeued.
    Requeue(StopCause),
    Cancelled,
    Failure {
        reason: EndReason,
        cause: Option<EndCause>,
        message: String,
    },
}

fn outcome(ended: &Ended) -> Outcome {
    let failure = |reason, cause, detail: &str| {
        let end = End { reason: Some(reason), cause, exit_code: ended.exit_code, detail };
        Outcome::Failure { reason, cause, message: agentaflow_explain::end(&end).summary }
    };
    if let Some(failed) = &ended.failed_to_start {
        let reason = match failed.reason {
            known @ (EndReason::ImagePull | EndReason::Exited) => known,
            _ => EndReason::StartFailed,
        };
        let cause = failed.cause.or_else(|| find_cause(&failed.detail));
        return Outcome::Failure { reason, cause, message: failed.detail.clone() };
    }
    match ended.stopped {
        Some(StopCause::Cancelled) => return Outcome::Cancelled,
        Some(cause) if moves(cause) => return Outcome::Requeue(cause),
        Some(cause) => {
            if let Some(reason) = cause.end_reason() {
                return failure(reason, None, "");
            }
        }
        None => {}
    }
    if ended.out_of_memory {
        return failure(EndReason::OutOfMemory, None, "");
    }
    let found = find_cause(&ended.last_words);
    match (ended.exit_code, ended.signal) {
        (_, Some(_)) => failure(EndReason::Signalled, found, ""),
        (Some(0), None) => Outcome::Success,
        (Some(_), None) => failure(EndReason::Exited, found, ""),
        (None, None) => {
            failure(EndReason::StartFailed, None, "The agent does not know how the task ended")
        }
    }
}

fn add_usage(sum: &mut ResourceUsage, more: &ResourceUsage) {
    sum.gpu_memory = sum.gpu_memory.max(more.gpu_memory);
    sum.memory = sum.memory.max(more.memory);
    sum.storage = sum.storage.max(more.storage);
    sum.cpu_cores = sum.cpu_cores.max(more.cpu_cores);
}
