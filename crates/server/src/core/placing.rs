//! Carrying out what the engine decides.

use serde_json::{Map, Value, json};

use agentaflow_api::event::EventKind;
use agentaflow_api::job::JobStatus;
use agentaflow_api::link::{Message, StopCause};
use agentaflow_api::units::Stamp;
use agentaflow_engine::{
    Decision, Event, Fault, OnFault, Placement, Time, Victim, WaitReason, WorkloadId,
};

use super::jobs::grace_ms;
use super::money;
use super::nodes::node_name;
use super::show::{called, in_words};
use super::state::{About, State, job_of};
use crate::store::{Seat, SeatState};

/// The longest grace when the server stops: it has five seconds in all.
const EVACUATION_GRACE_MS: u64 = 2_000;

impl State {
    /// Asks the engine until it has nothing more to say.
    pub(crate) fn decide(&mut self) {
        self.dirty = false;
        // The engine may ask to be asked again at once; more than a few rounds would be a fault in it.
        for _ in 0..8 {
            let now = self.clock.now();
            let plan = self.engine.decide(now);
            self.wake = plan.wake_at;
            let again = plan.wake_at.is_some_and(|wake| wake <= now);
            self.carry_out(plan.decisions, now);
            if !again && !self.dirty {
                break;
            }
            self.dirty = false;
        }
    }

    fn carry_out(&mut self, decisions: Vec<Decision>, now: Time) {
        let mut placed: Vec<(WorkloadId, Vec<Placement>)> = Vec::new();
        for decision in decisions {
            match decision {
                Decision::Place(placement) => match placed.last_mut() {
                    Some((workload, tasks)) if *workload == placement.workload => {
                        tasks.push(placement);
                    }
                    _ => placed.push((placement.workload.clone(), vec![placement])),
                },
                Decision::Preempt { victims, beneficiary, .. } => {
                    for Victim { workload, reason: right } in &victims {
                        let Some(victim) = job_of(workload) else { continue };
                        let why = agentaflow_explain::stopped_for(&called(&beneficiary), *right);
                        self.job_event(victim, EventKind::Preempted, why);
                        self.stop_tasks(victim, StopCause::Preempted, None);
                    }
                }
                Decision::Displace { workload, cause, action } => {
                    self.displace(&workload, &cause, action);
                }
                Decision::Wait { workload, reason } => self.waits(&workload, &reason, now),
            }
        }
        for (workload, tasks) in placed {
            self.place(&workload, &tasks);
        }
    }

    /// A job waits, and why is news.
    fn waits(&mut self, workload: &WorkloadId, reason: &WaitReason, now: Time) {
        let Some(id) = job_of(workload) else { return };
        let words = in_words(reason, now);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state.wait_reason.as_ref() == Some(&words) {
            return;
        }
        job.state.wait_reason = Some(words.clone());
        let user = Some(job.user_id);
        self.touch(id);
        let data: Map<String, Value> =
            [("reason".to_owned(), json!(reason.kind()))].into_iter().collect();
        self.event(
            EventKind::Waiting,
            words,
            About { job: Some(id), user, data, ..About::default() },
        );
    }

    /// A job has places: a new try begins.
    fn place(&mut self, workload: &WorkloadId, tasks: &[Placement]) {
        let seats = job_of(workload).and_then(|id| {
            self.jobs.get(&id)?;
            let request = self.engine.workload(workload)?.workload.request;
            let seats: Option<Vec<Seat>> =
                tasks.iter().map(|task| self.seat(&request, task)).collect();
            Some((id, seats?))
        });
        let Some((id, seats)) = seats else {
            tracing::error!(%workload, "a placement names a job or node that is not there");
            self.tell(Event::Requeued(workload.clone()));
            return;
        };
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let state = &mut job.state;
        state.epoch += 1;
        state.status = JobStatus::Scheduled;
        state.scheduled_at = Some(Stamp::now());
        (state.stopping, state.wait_reason) = (None, None);
        (state.end_reason, state.end_cause) = (None, None);
        (state.error_message, state.exit_code, state.warned_at) = (None, None, None);
        state.seats = seats;
        let (epoch, user) = (state.epoch, job.user_id);
        let nodes: Vec<(i64, u32)> =
            state.seats.iter().map(|seat| (seat.node, seat.task)).collect();
        self.touch(id);
        self.announce(id, user, epoch);
        for (node, task) in nodes {
            if let Some(node) = self.nodes.get_mut(&node) {
                node.jobs.insert(id);
            }
            if let Some(assignment) = self.assignment(id, task) {
                self.batch.outgoing.push((node, Message::Assign(Box::new(assignment))));
            }
        }
        self.money_moved = true;
    }

    fn announce(&mut self, id: i64, user: i64, epoch: u32) {
        let Some(job) = self.jobs.get(&id) else { return };
        let places: Vec<String> = job
            .state
            .seats
            .iter()
            .map(|seat| {
                let gpus = money::gpu_names(&seat.grants);
                let on = node_name(self, seat.node);
                match gpus.len() {
                    0 => on,
                    1 => format!("{on} GPU {}", gpus[0]),
                    _ => format!("{on} GPUs {}", gpus.join(",")),
                }
            })
            .collect();
        let first = job.state.seats.first().and_then(|seat| self.nodes.get(&seat.node));
        let node = first.map(|node| node.row.node_id.clone());
        let simulated = first.is_some_and(|node| node.row.spec.simulated)
            && job.state.seats.iter().any(|seat| !seat.grants.is_empty());
        let data = [("attempt".to_owned(), json!(epoch))].into_iter().collect();
        let about = About { job: Some(id), user: Some(user), node: node.as_deref(), data };
        let shown = if places.len() > 8 {
            format!("{} and {} more", places[..8].join("; "), places.len() - 8)
        } else {
            places.join("; ")
        };
        self.event(EventKind::Scheduled, format!("goes to {shown}"), about);
        if simulated {
            self.job_event(
                id,
                EventKind::SimulatedGpu,
                "its GPUs are simulated: it gets no device",
            );
        }
    }

    /// Stops everything on a node because the server stops; it waits again and loses no try.
    pub(crate) fn evacuate(&mut self, id: i64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.evacuating = true;
        let jobs: Vec<i64> = node.jobs.iter().copied().collect();
        self.refresh_node(id);
        for job in jobs {
            let Some(spec) = self.jobs.get(&job).map(|job| &job.spec) else { continue };
            let grace = grace_ms(spec).min(EVACUATION_GRACE_MS);
            self.job_event(
                job,
                EventKind::Stopping,
                "the system is being stopped; it goes on after the next start",
            );
            self.stop_tasks(job, StopCause::Shutdown, Some(grace));
        }
    }

    /// The ground under a job gave way.
    fn displace(&mut self, workload: &WorkloadId, fault: &Fault, action: OnFault) {
        let Some(id) = job_of(workload) else { return };
        let Some(job) = self.jobs.get(&id) else { return };
        let live = job.state.seats.iter().any(|seat| seat.state != SeatState::Ended);
        let (cause, words) = match fault {
            Fault::NodeLost(node) => {
                (StopCause::GangBroken, format!("node {node} does not answer"))
            }
            Fault::Draining(node) => (StopCause::Drained, format!("node {node} is being emptied")),
            Fault::GpuDraining { node, gpu } => {
                (StopCause::Drained, format!("GPU {gpu} of node {node} is being emptied"))
            }
            Fault::SpotReclaim { node, .. } => {
                (StopCause::Drained, format!("node {node} is taken back"))
            }
            Fault::GpuFailed { node, gpu } => {
                (StopCause::GpuSick, format!("GPU {gpu} of node {node} is broken"))
            }
            Fault::GangBroken { task } => {
                (StopCause::GangBroken, format!("task {task} could not start"))
            }
        };
        let lost = matches!(fault, Fault::NodeLost(_));
        if action == OnFault::Keep && lost {
            self.job_event(
                id,
                EventKind::NodeLost,
                format!("{words}; it waits for the node, as it asked to"),
            );
            return;
        }
        self.job_event(id, if lost { EventKind::NodeLost } else { EventKind::Displaced }, words);
        if live {
            self.stop_tasks(id, cause, None);
        } else {
            self.note_waiting(id);
        }
    }
}
