//! Execution of the engine's decisions.

use serde_json::{Map, Value, json};

use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{JobId, NodeId};
use agentaflow_api::link::{Message, StopCause};
use agentaflow_engine::{
    Decision, Event, Fault, OnFault, Placement, Time, Victim, WaitReason, WorkloadId,
};

use super::clock::stamp_of;
use super::explain::{job_name, pending_reason};
use super::job::workload::{grace_ms, job_of};
use super::journal::EventSubject;
use super::node::{LiveNode, TaskBooking, TaskRef};
use super::pricing;
use super::state::State;
use crate::store::TaskAssignment;

/// Longest grace of a task when the server stops, which may take five seconds in all.
const EVACUATION_GRACE_MS: u64 = 2_000;
/// Passes in a row. The engine may request another pass at once; more of them would be a defect of the engine.
const MAX_PASSES: usize = 8;

/// All tasks that one pass placed of one workload.
struct PlacedWorkload {
    workload: WorkloadId,
    tasks: Vec<Placement>,
}

impl State {
    /// Runs passes of the engine until no event is left, and executes their decisions.
    pub(super) fn run_engine(&mut self) {
        for _ in 0..MAX_PASSES {
            let pass = self.engine.run_pass();
            self.execute(pass.decisions, pass.now);
            if !pass.again && !self.engine.needs_pass() {
                break;
            }
        }
        let held = self.engine.scheduler().held_nodes();
        self.nodes.set_held(&held);
    }

    fn execute(&mut self, decisions: Vec<Decision>, now: Time) {
        let mut placed: Vec<PlacedWorkload> = Vec::new();
        for decision in decisions {
            match decision {
                Decision::Place(placement) => match placed.last_mut() {
                    Some(last) if last.workload == placement.workload => last.tasks.push(placement),
                    _ => placed.push(PlacedWorkload {
                        workload: placement.workload.clone(),
                        tasks: vec![placement],
                    }),
                },
                Decision::Preempt { victims, beneficiary, .. } => {
                    self.preempt(&victims, &beneficiary);
                }
                Decision::Displace { workload, cause, action } => {
                    self.displace(&workload, &cause, action);
                }
                // The server restarts a gang as a whole and reports no lost tasks.
                Decision::AwaitReplacement { .. } => {}
                Decision::Wait { workload, reason } => self.record_pending(&workload, &reason, now),
            }
        }
        for PlacedWorkload { workload, tasks } in placed {
            self.place(&workload, &tasks);
        }
    }

    fn preempt(&mut self, victims: &[Victim], beneficiary: &WorkloadId) {
        for Victim { workload, reason } in victims {
            let Some(victim) = job_of(workload) else { continue };
            self.activity.count_preemption(*reason);
            let message = agentaflow_explain::preempted_by(&job_name(beneficiary), *reason);
            self.job_event(victim, EventKind::Preempted, message);
            self.stop_tasks(victim, StopCause::Preempted, None);
        }
    }

    /// Records the reason of a pending job, with an event if the reason changed.
    fn record_pending(&mut self, workload: &WorkloadId, reason: &WaitReason, now: Time) {
        let Some(id) = job_of(workload) else { return };
        let Some(job) = self.jobs.get(id) else { return };
        let reason = pending_reason(reason, now, &self.pending_context(job));
        if job.state.pending_reason.as_ref() == Some(&reason) {
            return;
        }
        let user = Some(job.user_id);
        self.activity.decisions.count_wait(reason.code().as_str());
        let text = agentaflow_explain::pending::reason(&reason, stamp_of(now));
        let data: Map<String, Value> =
            [("reason".to_owned(), json!(reason.code()))].into_iter().collect();
        self.jobs.update(id, |state| state.pending_reason = Some(reason));
        let subject = EventSubject { job: Some(id), user, data, ..EventSubject::default() };
        self.journal.record_event(EventKind::Waiting, text, subject);
    }

    /// Starts a new attempt of a job on the nodes that the engine chose.
    fn place(&mut self, workload: &WorkloadId, placements: &[Placement]) {
        let Some((id, tasks)) = self.assign_tasks(workload, placements) else {
            tracing::error!(%workload, "Placement names an unknown job or node");
            self.engine.apply(Event::Requeued(workload.clone()));
            return;
        };
        if self.hold_sealed_job(id) {
            return;
        }
        let (incarnation, now) = (self.incarnation, self.now());
        self.jobs.update(id, |state| state.begin_attempt(tasks, incarnation, now));
        self.announce_placement(id);
        let Some(job) = self.jobs.get(id).cloned() else { return };
        self.activity.record_placement(id, job.created_at, now);
        for task in &job.state.tasks {
            let booking = TaskBooking::new(&job, task);
            let key = TaskRef { job: id, task: task.task };
            self.nodes.update(task.node, |node| node.add_task(key, booking));
            if let Some(assignment) = self.assignment(&job, task) {
                self.journal.send(task.node, Message::Assign(Box::new(assignment)));
            }
        }
    }

    fn assign_tasks(
        &self,
        workload: &WorkloadId,
        placements: &[Placement],
    ) -> Option<(JobId, Vec<TaskAssignment>)> {
        let id = job_of(workload)?;
        self.jobs.get(id)?;
        let request = self.engine.scheduler().workload(workload)?.workload.request;
        let tasks = placements.iter().map(|placement| self.assign_task(&request, placement));
        Some((id, tasks.collect::<Option<_>>()?))
    }

    fn announce_placement(&mut self, id: JobId) {
        /// Tasks that the message names.
        const NAMED: usize = 8;
        let Some(job) = self.jobs.get(id) else { return };
        let state = &job.state;
        let place = |task: &TaskAssignment| {
            let gpus = pricing::gpu_names(&task.grants);
            let node = self.nodes.name(task.node);
            match gpus.len() {
                0 => node,
                1 => format!("{node} GPU {}", gpus[0]),
                _ => format!("{node} GPUs {}", gpus.join(",")),
            }
        };
        let mut places = state.tasks.iter().take(NAMED).map(place).collect::<Vec<_>>().join("; ");
        if state.tasks.len() > NAMED {
            places = format!("{places} and {} more", state.tasks.len() - NAMED);
        }
        let first = state.tasks.first().and_then(|task| self.nodes.get(task.node));
        let simulated = first.is_some_and(|node| node.row().spec.simulated)
            && state.tasks.iter().any(|task| !task.grants.is_empty());
        let subject = EventSubject {
            job: Some(id),
            user: Some(job.user_id),
            node: first.map(|node| node.row().node_id.clone()),
            data: [("attempt".to_owned(), json!(state.epoch))].into_iter().collect(),
        };
        self.journal.record_event(EventKind::Scheduled, format!("assigned to {places}"), subject);
        if simulated {
            self.job_event(
                id,
                EventKind::SimulatedGpu,
                "the GPUs are simulated: the job gets no device",
            );
        }
    }

    /// Moves all jobs off a node because the server stops. They are requeued and lose no retry.
    pub(super) fn evacuate_node(&mut self, id: NodeId) {
        self.nodes.update(id, LiveNode::begin_evacuation);
        self.report_node(id);
        let jobs = self.nodes.get(id).map(LiveNode::jobs).unwrap_or_default();
        for job in jobs {
            let Some(spec) = self.jobs.get(job).map(|job| &job.spec) else { continue };
            let grace = grace_ms(spec).min(EVACUATION_GRACE_MS);
            let message = "the server is stopping; the job resumes after the next start";
            self.job_event(job, EventKind::Stopping, message);
            self.stop_tasks(job, StopCause::Shutdown, Some(grace));
        }
    }

    /// Stops a job whose node or GPU the engine withdrew.
    fn displace(&mut self, workload: &WorkloadId, fault: &Fault, action: OnFault) {
        let Some(id) = job_of(workload) else { return };
        let Some(job) = self.jobs.get(id) else { return };
        let has_live_task = job.state.has_live_task();
        self.activity.decisions.count_displacement();
        let (cause, message) = stop_for(fault);
        let lost = matches!(fault, Fault::NodeLost(_));
        if action == OnFault::Keep && lost {
            let message = format!("{message}; the job waits for the node (on_node_lost: wait)");
            self.job_event(id, EventKind::NodeLost, message);
            return;
        }
        self.job_event(id, if lost { EventKind::NodeLost } else { EventKind::Displaced }, message);
        if has_live_task {
            self.stop_tasks(id, cause, None);
        } else {
            self.record_requeued(id);
        }
    }
}

/// Stop cause and message for a fault.
fn stop_for(fault: &Fault) -> (StopCause, String) {
    match fault {
        Fault::NodeLost(node) => (StopCause::GangBroken, format!("node {node} does not answer")),
        Fault::Draining(node) => (StopCause::Drained, format!("node {node} is being drained")),
        Fault::GpuDraining { node, gpu } => {
            (StopCause::Drained, format!("GPU {gpu} of node {node} is being drained"))
        }
        Fault::SpotReclaim { node, .. } => {
            (StopCause::Drained, format!("node {node} is being reclaimed by its provider"))
        }
        Fault::GpuFailed { node, gpu } => {
            (StopCause::GpuUnhealthy, format!("GPU {gpu} of node {node} failed"))
        }
        Fault::ReplacementMissing { task } => {
            (StopCause::GangBroken, format!("task {task} was not replaced in time"))
        }
        Fault::GangBroken { task } => {
            (StopCause::GangBroken, format!("task {task} could not start"))
        }
    }
}
