//! A node while the server runs: its record, liveness and tasks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use agentaflow_api::ids::{AgentId, JobId, NodeId};
use agentaflow_api::link::TaskUse;
use agentaflow_api::node::{GpuInstance, Health, Heartbeat};
use agentaflow_api::units::Stamp;
use agentaflow_engine::{Event, ForeignUse, GpuId};

use super::DEFAULT_INTERVAL;
use super::booking::{TaskBooking, TaskRef};
use super::description::{KUBERNETES, closed_gpus, describe};
use super::lease::LeaseTerms;
use super::push::{PushLink, PushReach};
use super::report::{EngineReport, GpuReadings, ReportedNode, RestoredNode};
use crate::store::{HeartbeatRow, NodeRow};

/// A node is silent after this many missed heartbeats: it gets no new work. It is lost once its lease has expired and its jobs
/// have had their time to stop.
const MISSED_HEARTBEATS: u32 = 3;
/// Delay with which a guardian may notice that a lease expired.
const GUARDIAN_SLACK: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct LiveNode {
    pub(super) row: NodeRow,
    liveness: Liveness,
    lease: LeaseTerms,
    pub(super) stream: Option<AgentId>,
    pub(super) push: PushLink,
    /// The server stops and moves all jobs off the node.
    evacuating: bool,
    /// Live tasks on the node.
    pub(super) tasks: BTreeMap<TaskRef, TaskBooking>,
    /// GPU readings of the last heartbeat that had any.
    pub(super) readings: Vec<GpuInstance>,
    pub(super) reported_free: FreeResources,
    report: EngineReport,
}

/// Contacts and heartbeats of a node.
#[derive(Clone, Copy, Debug)]
struct Liveness {
    /// Last contact, or the start of the server.
    last_contact: Instant,
    /// The node made contact since the server started.
    contacted: bool,
    last_heartbeat: Option<Stamp>,
    /// The store has `last_heartbeat`.
    saved: bool,
    interval: Duration,
    lost: bool,
}

/// Resources that the last heartbeat reported as free.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FreeResources {
    /// MiB, all GPUs together.
    pub(super) gpu_memory: Option<u64>,
    pub(super) cpu_milli: Option<u64>,
    /// MiB.
    pub(super) memory: Option<u64>,
    /// GiB.
    pub(super) storage: Option<u64>,
}

/// Connection of the server to a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Contact {
    /// This agent opened a stream or polls.
    Stream(AgentId),
    StreamClosed,
    /// A probe of the push endpoint.
    Push(PushReach),
}

impl LiveNode {
    pub(super) fn new(row: NodeRow, lease: LeaseTerms) -> Self {
        let liveness = Liveness {
            last_contact: Instant::now(),
            contacted: false,
            last_heartbeat: row.last_heartbeat,
            saved: true,
            interval: DEFAULT_INTERVAL,
            lost: false,
        };
        Self {
            row,
            liveness,
            lease,
            stream: None,
            push: PushLink::default(),
            evacuating: false,
            tasks: BTreeMap::new(),
            readings: Vec::new(),
            reported_free: FreeResources::default(),
            report: EngineReport::default(),
        }
    }

    /// Takes over liveness, connection and readings of the same node before a reload.
    pub(super) fn keep_liveness(&mut self, old: &Self) {
        self.liveness = Liveness { lost: false, ..old.liveness };
        self.stream = old.stream;
        self.push = old.push.clone();
        self.evacuating = old.evacuating;
        self.readings.clone_from(&old.readings);
        self.reported_free = old.reported_free;
        self.report.keep_resend(&old.report);
    }

    pub(crate) fn id(&self) -> NodeId {
        self.row.id
    }

    pub(crate) fn row(&self) -> &NodeRow {
        &self.row
    }

    pub(super) fn set_row(&mut self, row: NodeRow) {
        self.row = row;
    }

    /// Changes the record and returns a copy for the store.
    pub(crate) fn change_row(&mut self, change: impl FnOnce(&mut NodeRow)) -> NodeRow {
        change(&mut self.row);
        self.row.clone()
    }

    /// Replaces the push endpoint; true if it changed.
    pub(crate) fn set_endpoint(&mut self, endpoint: String) -> bool {
        if self.row.spec.api_endpoint.as_ref() == Some(&endpoint) {
            return false;
        }
        self.row.spec.api_endpoint = Some(endpoint);
        self.push.clear_probes();
        true
    }

    /// Returns true if work can reach the node.
    pub(crate) fn is_reachable(&self) -> bool {
        self.stream.is_some() || self.push.answers()
    }

    /// Returns true if the last contact is at most three intervals old. A push node is alive while its port accepts
    /// connections.
    pub(crate) fn is_alive(&self) -> bool {
        self.liveness.contacted && self.silent_at().is_none_or(|at| Instant::now() < at)
    }

    /// Time at which the node counts as silent without another contact; none if time alone does not silence it.
    fn silent_at(&self) -> Option<Instant> {
        if self.is_push() {
            return self.push.silent_at(self.alive_for());
        }
        Some(self.liveness.last_contact + self.alive_for())
    }

    fn alive_for(&self) -> Duration {
        self.liveness.interval * MISSED_HEARTBEATS
    }

    /// Time at which [`LiveNode::is_alive`] becomes false without another contact; none if it is false now.
    pub(super) fn alive_until(&self) -> Option<Instant> {
        self.silent_at().filter(|_| self.is_alive())
    }

    pub(crate) fn was_contacted(&self) -> bool {
        self.liveness.contacted
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.liveness.lost
    }

    /// Returns true if the engine has a description of the node.
    pub(crate) fn is_known_to_engine(&self) -> bool {
        self.report.is_made()
    }

    pub(crate) fn last_heartbeat(&self) -> Option<Stamp> {
        self.liveness.last_heartbeat
    }

    /// Length of the lease that a heartbeat renews now.
    pub(crate) fn lease_length(&self) -> Duration {
        self.lease.length(self.liveness.interval)
    }

    /// Returns true if the node has been silent until its guardian has stopped all leased jobs: the lease, an interval as
    /// margin, and the longest grace of its jobs.
    pub(crate) fn lease_expired(&self) -> bool {
        let grace = self.tasks.values().map(|task| task.stop_grace).max().unwrap_or(0);
        let interval = self.liveness.interval;
        let margin = interval + Duration::from_secs(grace.into()) + GUARDIAN_SLACK;
        Instant::now() > self.lease.end(self.liveness.last_contact, interval) + margin
    }

    /// Returns true if the node is silent and must be declared lost.
    pub(crate) fn is_overdue(&self) -> bool {
        let relevant = self.report.is_made() || self.has_tasks();
        let silent = if self.is_push() {
            self.silent_at().is_some_and(|at| at <= Instant::now())
        } else {
            self.lease_expired()
        };
        relevant && !self.liveness.lost && silent
    }

    /// Returns true if the engine still places work on the node although the node is silent.
    pub(crate) fn is_open_but_silent(&self) -> bool {
        self.report.is_open() && !self.is_alive()
    }

    /// Runtimes that the node offers to jobs.
    pub(crate) fn runtimes(&self) -> Vec<&str> {
        if self.is_push() {
            return if self.push.lacks_docker() { Vec::new() } else { vec!["push"] };
        }
        self.row.spec.runtimes.iter().map(String::as_str).collect()
    }

    /// Returns true if the node belongs to a Kubernetes cluster. Its heartbeats report the room that foreign pods
    /// leave, jobs of this server included.
    pub(crate) fn is_kubernetes(&self) -> bool {
        self.row.spec.runtimes.iter().any(|runtime| runtime == KUBERNETES)
    }

    /// Returns true if the server calls the agent, according to the documented push protocol.
    pub(crate) fn is_push(&self) -> bool {
        self.stream.is_none() && self.row.spec.api_endpoint.is_some()
    }

    pub(crate) fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Jobs with a live task on the node, by id.
    pub(crate) fn jobs(&self) -> Vec<JobId> {
        let mut jobs: Vec<JobId> = self.tasks.keys().map(|task| task.job).collect();
        jobs.dedup();
        jobs
    }

    /// Tasks that were assigned at least `age` ago.
    pub(crate) fn tasks_older_than(&self, age: Duration) -> impl Iterator<Item = TaskRef> {
        self.tasks.iter().filter(move |(_, task)| task.since.elapsed() >= age).map(|(key, _)| *key)
    }

    /// Returns true if the agent of the node receives messages now.
    pub(crate) fn is_listening(&self) -> bool {
        self.stream.is_some() && self.is_alive()
    }

    pub(crate) fn add_task(&mut self, task: TaskRef, booking: TaskBooking) {
        self.tasks.insert(task, booking);
    }

    pub(crate) fn remove_task(&mut self, task: TaskRef) {
        self.tasks.remove(&task);
        self.push.forget_task(task);
    }

    /// Records the use of a task on this node.
    pub(crate) fn record_use(&mut self, used: TaskUse) {
        let task = TaskRef { job: used.key.job, task: used.key.task };
        if let Some(booking) = self.tasks.get_mut(&task) {
            booking.used = Some(used);
        }
    }

    /// Use of a task as of the last heartbeat.
    pub(crate) fn task_use(&self, task: TaskRef) -> Option<TaskUse> {
        self.tasks.get(&task)?.used
    }

    /// Use of all tasks as of the last heartbeat.
    pub(crate) fn task_uses(&self) -> impl Iterator<Item = TaskUse> {
        self.tasks.values().filter_map(|booking| booking.used)
    }

    /// Booked MiB of GPU memory by GPU index.
    pub(super) fn booked_gpu_memory(&self) -> BTreeMap<u32, u64> {
        let mut booked = BTreeMap::new();
        for gpu in self.tasks.values().flat_map(|task| &task.gpus) {
            *booked.entry(gpu.index).or_default() += gpu.memory;
        }
        booked
    }

    pub(super) fn set_interval(&mut self, interval: Duration) {
        // A shorter interval counts only once no task runs that was started under the longer one.
        let floor = if self.has_tasks() { self.liveness.interval } else { Duration::ZERO };
        self.liveness.interval = interval.max(floor);
    }

    pub(crate) fn begin_evacuation(&mut self) {
        self.evacuating = true;
    }

    pub(crate) fn mark_lost(&mut self) {
        self.liveness.lost = true;
    }

    pub(crate) fn connect(&mut self, contact: Contact, now: Stamp) {
        match contact {
            Contact::Stream(agent) => self.stream = Some(agent),
            Contact::StreamClosed => self.stream = None,
            Contact::Push(_) => {}
        }
        let contacted = match contact {
            Contact::Stream(_) => true,
            Contact::StreamClosed => false,
            Contact::Push(reach) => self.record_probe(reach, now),
        };
        if contacted {
            // A connection counts as contact; only heartbeats renew leases.
            self.liveness.contacted = true;
            if !self.liveness.lost {
                self.liveness.last_contact = Instant::now();
            }
        }
    }

    /// Records a probe; true if it is a sign of life.
    fn record_probe(&mut self, reach: PushReach, now: Stamp) -> bool {
        let alive = self.push.record_probe(reach, now);
        // The last sign of life is the end of the bill of a lost job: it must survive a restart of the server.
        self.liveness.saved &= !alive || !self.has_tasks();
        self.liveness.lost &= !alive;
        alive
    }

    /// Records a heartbeat; true if the node was lost.
    pub(crate) fn record_heartbeat(&mut self, heartbeat: Heartbeat, now: Stamp) -> bool {
        let was_lost = self.liveness.lost;
        self.liveness = Liveness {
            last_contact: Instant::now(),
            contacted: true,
            last_heartbeat: Some(now),
            saved: false,
            lost: false,
            ..self.liveness
        };
        self.push.record_sign(now);
        // The engine accepts a lost node again when it receives its description.
        if was_lost {
            self.report.resend();
        }
        let free = &mut self.reported_free;
        free.gpu_memory = heartbeat.gpu_memory_available.or(free.gpu_memory);
        free.cpu_milli = heartbeat.cpu_cores_available.map(|cores| cores.0).or(free.cpu_milli);
        free.memory = heartbeat.memory_available.or(free.memory);
        free.storage = heartbeat.storage_available.or(free.storage);
        self.row.health = heartbeat.health_status.unwrap_or(self.row.health);
        if let Some(instances) = heartbeat.gpu_instances {
            self.readings = instances;
        }
        was_lost
    }

    pub(super) fn take_unsaved_heartbeat(&mut self) -> Option<HeartbeatRow> {
        if self.liveness.saved {
            return None;
        }
        self.liveness.saved = true;
        self.row.last_heartbeat = self.last_sign();
        self.row.last_heartbeat.map(|at| HeartbeatRow { node: self.row.id, at })
    }

    /// Records the description with which the engine is restored: cordoned until work can reach the node.
    pub(crate) fn report_restored(&mut self) -> RestoredNode {
        let node = super::engine_node(&self.row, &self.runtimes(), &BTreeMap::new());
        let closed_gpus = closed_gpus(&self.row.overrides);
        self.report.set(ReportedNode {
            node: node.clone(),
            foreign: ForeignUse::default(),
            cordoned: true,
            draining: self.row.draining,
            closed_gpus: closed_gpus.clone(),
        });
        RestoredNode { node, closed_gpus, draining: self.row.draining, lost: self.liveness.lost }
    }

    /// Removes the engine's description: the engine starts without the node.
    pub(crate) fn clear_report(&mut self) {
        self.report.clear();
    }

    /// Returns true if the engine knows this GPU of the node.
    pub(crate) fn has_reported_gpu(&self, gpu: &GpuId) -> bool {
        self.report.has_gpu(gpu)
    }

    /// Events that bring the engine's description of the node up to date. A node that was never reachable is not
    /// described.
    pub(crate) fn engine_events(&mut self) -> Vec<Event> {
        if !self.report.is_made() && !self.is_reachable() {
            return Vec::new();
        }
        let current = self.current_report();
        self.report.update(current)
    }

    fn current_report(&self) -> ReportedNode {
        let (node, foreign) = describe(self, &self.booked_gpu_memory());
        let open = self.is_reachable()
            && self.is_alive()
            && !self.row.cordoned
            && !self.evacuating
            && self.row.health != Health::Unhealthy;
        ReportedNode {
            node,
            foreign,
            cordoned: !open,
            draining: self.row.draining,
            closed_gpus: closed_gpus(&self.row.overrides),
        }
    }

    /// Utilisation and health changes of the last readings, for GPUs that the engine knows.
    pub(crate) fn reading_events(&mut self) -> GpuReadings {
        self.report.read_gpus(&self.readings)
    }
}
