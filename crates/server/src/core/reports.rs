//! News from agents, and what becomes of jobs.

use agentaflow_api::billing::LedgerEntry;
use agentaflow_api::job::{JobStatus, JobStatusUpdate, ResourceUsage};
use agentaflow_api::link::{Ended, News, Report, StopCause, TaskKey};
use agentaflow_api::units::{Cores, Dollars, Stamp};
use agentaflow_engine::Event;

use super::jobs::moves;
use super::money::{self, Allocation};
use super::nodes::node_name;
use super::state::{State, workload_id};
use crate::refusal::Refusal;
use crate::store::{Change, JobRow, Seat, SeatState};

/// A reported run may be this much longer than the server saw it, for clocks that run at different speeds.
const CLOCK_SLACK_MS: u64 = 2_000;

impl State {
    /// News of one task from the agent of a node. False when it is about an assignment that is not, or no longer,
    /// that node's: late news of a replaced one changes nothing.
    pub(crate) fn news(&mut self, node: i64, report: Report) -> bool {
        let Report { key, news } = report;
        let Some(seat) = self.seat_of(key, node) else { return false };
        if seat.state == SeatState::Ended {
            return true;
        }
        match news {
            News::Accepted => self.accepted(key, SeatState::Accepted, None),
            News::Placed(place) => {
                if let Some(seat) = self.seat_mut(key) {
                    seat.kubernetes = Some(place);
                    self.touch(key.job);
                }
            }
            News::Running { started_at } => {
                self.accepted(key, SeatState::Running, Some(started_at));
            }
            News::Progress { kind, detail } => self.progress(key, &kind, &detail),
            News::Refused { detail } => self.refused(key, &detail),
            News::Ended(ended) => self.ended(key, &ended),
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
            self.job_event(key.job, "Started", "it runs");
        }
    }

    fn progress(&mut self, key: TaskKey, kind: &str, detail: &str) {
        let kind = match kind {
            "Pulling" | "Pulled" | "Starting" => kind,
            _ => "Warning",
        };
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
        self.job_event(key.job, "Refused", format!("node {on} did not take it: {detail}"));
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
        let verdict = verdict(ended).with_last_words(ended);
        match verdict {
            Verdict::Good => {}
            Verdict::Moved(cause) => {
                if state.stopping.is_none() {
                    state.stopping = Some(cause);
                }
            }
            Verdict::Cancelled => {
                state.cancel_requested = true;
                state.exit_code = state.exit_code.or(ended.exit_code);
            }
            Verdict::Bad(word, detail) => {
                // The first failure is the reason; the others follow from it.
                if state.end_reason.is_none() {
                    state.end_reason = Some(word.to_owned());
                    state.failed_at = Some(Stamp::now());
                    state.error_message = Some(detail);
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
            kind: "usage".to_owned(),
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
    ) -> Result<(), Refusal> {
        let Some(job) = self.jobs.get(&id) else { return Ok(()) };
        let status = update.status.unwrap_or_default();
        let present = job.state.status;
        if present == JobStatus::Pending {
            return Err(illegal(present, status));
        }
        let seat = job.state.seats.iter().find(|seat| node.is_none_or(|node| seat.node == node));
        let Some(seat) = seat else {
            return Err(Refusal::conflict("not_assigned", "the job is not assigned to this node"));
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
        let news = match status {
            JobStatus::Running => News::Running { started_at: Stamp::now() },
            JobStatus::Completed => {
                ended.exit_code = Some(0);
                News::Ended(Box::new(ended))
            }
            JobStatus::Failed => {
                ended.exit_code = Some(1);
                let words = update
                    .error_message
                    .unwrap_or_else(|| "its agent said that it failed".to_owned());
                ended.failed_to_start =
                    Some(("Exited".to_owned(), words.chars().take(4000).collect()));
                News::Ended(Box::new(ended))
            }
            JobStatus::Cancelled => {
                ended.stopped = Some(job.state.stopping.unwrap_or(StopCause::Cancelled));
                News::Ended(Box::new(ended))
            }
            JobStatus::Pending | JobStatus::Scheduled => return Err(illegal(present, status)),
        };
        self.news(node, Report { key, news });
        Ok(())
    }
}

/// A change of status that cannot be.
pub(super) fn illegal(from: JobStatus, to: JobStatus) -> Refusal {
    Refusal::conflict(
        "illegal_transition",
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

enum Verdict {
    Good,
    /// Stopped only to run again.
    Moved(StopCause),
    Cancelled,
    /// One word and a sentence.
    Bad(&'static str, String),
}

impl Verdict {
    /// What a program wrote before it gave up tells more than its exit code, and lists are to tell it, too.
    fn with_last_words(self, ended: &Ended) -> Self {
        match self {
            Self::Bad(word @ ("Exited" | "Signalled"), detail)
                if ended.failed_to_start.is_none() =>
            {
                let said = agentaflow_explain::verdict(&agentaflow_explain::Ending {
                    reason: word,
                    exit_code: ended.exit_code,
                    detail: &detail,
                    output: &ended.last_words,
                });
                Self::Bad(word, said.cause)
            }
            other => other,
        }
    }
}

fn verdict(ended: &Ended) -> Verdict {
    if let Some((word, detail)) = &ended.failed_to_start {
        let word = ["ImagePull", "Exited"]
            .into_iter()
            .find(|known| known == word)
            .unwrap_or("StartFailed");
        return Verdict::Bad(word, detail.clone());
    }
    match ended.stopped {
        Some(StopCause::Cancelled) => return Verdict::Cancelled,
        Some(StopCause::TimedOut) => {
            return Verdict::Bad("TimedOut", "it was stopped because its time was up".to_owned());
        }
        Some(StopCause::GpuMemoryExceeded) => {
            let words = "it was stopped because it used more GPU memory than its share; ask for more with gpu_memory_required";
            return Verdict::Bad("GpuMemoryExceeded", words.to_owned());
        }
        Some(StopCause::BudgetExceeded) => {
            let words = "it was stopped because its owner's money is used up";
            return Verdict::Bad("BudgetExceeded", words.to_owned());
        }
        Some(cause) if moves(cause) => return Verdict::Moved(cause),
        _ => {}
    }
    if ended.out_of_memory {
        let words = "the host's memory, or the job's own limit, was used up; ask for more with memory_required";
        return Verdict::Bad("OutOfMemory", words.to_owned());
    }
    match (ended.exit_code, ended.signal) {
        (_, Some(signal)) => Verdict::Bad("Signalled", format!("it was ended by signal {signal}")),
        (Some(0), None) => Verdict::Good,
        (Some(code), None) => Verdict::Bad("Exited", format!("it ended with exit code {code}")),
        (None, None) => {
            Verdict::Bad("StartFailed", "its agent does not know how it ended".to_owned())
        }
    }
}

fn add_usage(sum: &mut ResourceUsage, more: &ResourceUsage) {
    sum.gpu_memory = sum.gpu_memory.max(more.gpu_memory);
    sum.memory = sum.memory.max(more.memory);
    sum.storage = sum.storage.max(more.storage);
    sum.cpu_cores = sum.cpu_cores.max(more.cpu_cores);
}
