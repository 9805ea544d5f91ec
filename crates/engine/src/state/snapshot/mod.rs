//! Snapshots: stopping and going on as if nothing had happened.
//!
//! A body restores facts: nodes, queues, live placements (never decided anew) and waiting work in its
//! order; plus the little that no fact shows: the round-robin cursor, past use, holds, what was said.

pub(crate) mod records;

use smallvec::SmallVec;
use std::sync::Arc;

use crate::hold::holds::Purpose;
use crate::model::decision::{GpuAllocation, GpuShare};
use crate::model::error::Rejected;
use crate::model::name::WorkloadId;
use crate::model::units::Time;
use crate::quota::queues::Account;
use crate::state::cluster::room::{Claim, DeviceClaim};
use crate::state::cluster::shape::ShapeIdx;
use crate::state::cluster::{NodeIdx, Reach};
use crate::state::scheduler::Scheduler;
use crate::state::snapshot::records::{
    HoldSnapshot, NodeSnapshot, QueueSnapshot, Snapshot, TaskSnapshot, WorkloadPhase,
    WorkloadSnapshot,
};
use crate::state::workloads::{JobIdx, Seat, State};

impl Scheduler {
    /// Everything that is needed to go on.
    pub fn snapshot(&self) -> Snapshot {
        let mut jobs: Vec<JobIdx> = self.jobs.iter().map(|(index, _)| index).collect();
        jobs.sort_unstable_by_key(|job| self.jobs.get(*job).serial);
        let set_aside = self.pending.groups().filter_map(|(_, group)| {
            let first = group.members.values().next()?;
            Some((self.jobs.get(*first).spec.id.clone(), group.blocked.clone()?))
        });
        let mut set_aside: Vec<_> = set_aside.collect();
        set_aside.sort_by(|a, b| a.0.cmp(&b.0));
        Snapshot {
            now: self.now,
            policy: self.policy.clone(),
            vocabulary: (self.cluster.models.clone(), self.cluster.resources.clone()),
            queues: self.queue_facts(),
            nodes: self.cluster.ordered().into_iter().map(|node| self.node_facts(node)).collect(),
            workloads: jobs.into_iter().map(|job| self.workload_facts(job)).collect(),
            budgets: self.budgets.clone(),
            cursor: self.cursor.clone(),
            holds: self
                .holders(|_| true)
                .into_iter()
                .filter_map(|job| self.hold_facts(job))
                .collect(),
            savers: self.saver_names(),
            set_aside,
            demand: self.expectation.facts(&self.cluster, &self.outlook),
            timers: self.timers.clone(),
            notices: self.notices.clone(),
            improved: self.improved,
        }
    }

    /// Only what no record of a body holds: past use of queues and where round robin goes on. Cheap, however
    /// much runs; a body that builds its snapshots from its own records adds this.
    pub fn usage_history(&self) -> Snapshot {
        Snapshot {
            now: self.now,
            queues: self.queue_facts(),
            cursor: self.cursor.clone(),
            ..Snapshot::default()
        }
    }

    /// Goes on from a snapshot: nothing in it is decided anew.
    pub fn restore(snapshot: Snapshot) -> Result<Self, Rejected> {
        let mut scheduler = Self::new(snapshot.policy);
        scheduler.now = snapshot.now;
        for model in &snapshot.vocabulary.0 {
            scheduler.cluster.model(model);
        }
        for resource in &snapshot.vocabulary.1 {
            scheduler.cluster.resource(resource);
        }
        scheduler.restore_queues(&snapshot.queues)?;
        for facts in snapshot.nodes {
            scheduler.restore_node(facts)?;
        }
        scheduler.cluster.sort();
        for facts in snapshot.workloads {
            scheduler.restore_workload(facts)?;
        }
        for node in scheduler.cluster.ordered() {
            scheduler.complete_seats(node, false);
        }
        for facts in &snapshot.queues {
            scheduler.restore_past(facts);
        }
        for facts in &snapshot.holds {
            scheduler.restore_hold(facts)?;
        }
        for workload in &snapshot.savers {
            let job = scheduler.job_number(workload)?;
            if !scheduler.is_queued(job) {
                return Err(contradiction("waiting workload", workload));
            }
            scheduler.savers.insert(job);
            scheduler.return_savings(vec![job]);
        }
        for (workload, reason) in snapshot.set_aside {
            let job = scheduler.job_number(&workload)?;
            let group = scheduler.pending.find(&scheduler.group_key(job));
            let group = group.ok_or_else(|| contradiction("set-aside workload", &workload))?;
            // All its members count as not yet told; those that were are not told again.
            scheduler.pending.block(group, reason, &mut scheduler.queues);
        }
        scheduler.budgets = snapshot.budgets;
        scheduler.cursor = snapshot.cursor;
        scheduler.expectation.restore(snapshot.demand, &scheduler.cluster, &mut scheduler.outlook);
        scheduler.timers = snapshot.timers;
        scheduler.notices = snapshot.notices;
        scheduler.improved = snapshot.improved;
        Ok(scheduler)
    }

    fn queue_facts(&self) -> Vec<QueueSnapshot> {
        let mut queues: Vec<_> = self.queues.iter().collect();
        queues.sort_by_key(|(index, queue)| {
            (self.queues.path(*index).count(), queue.spec.id.clone())
        });
        let bits = |account: &Account| account.past.map(f64::to_bits);
        let facts = |(_, queue): (u32, &crate::quota::queues::QueueState)| QueueSnapshot {
            queue: queue.spec.clone(),
            past: [bits(&queue.own), bits(&queue.total)],
            as_of: [queue.own.as_of, queue.total.as_of],
        };
        queues.into_iter().map(facts).collect()
    }

    fn restore_queues(&mut self, queues: &[QueueSnapshot]) -> Result<(), Rejected> {
        for facts in queues {
            facts.queue.validate()?;
            let id = facts.queue.id.clone();
            self.queues
                .set(facts.queue.clone())
                .map_err(|why| Rejected::Queue { queue: id, why })?;
        }
        Ok(())
    }

    fn restore_past(&mut self, facts: &QueueSnapshot) {
        if let Some(queue) = self.queues.find(&facts.queue.id) {
            let state = self.queues.get_mut(queue);
            for (account, at) in [(&mut state.own, 0), (&mut state.total, 1)] {
                account.past = facts.past[at].map(|bits| f64::from_bits(bits).clamp(0.0, f64::MAX));
                account.as_of = facts.as_of[at];
            }
        }
    }

    fn node_facts(&self, node: NodeIdx) -> NodeSnapshot {
        let host = self.cluster.host(node);
        let foreign = host.foreign.iter().map(|(id, (uses, claim))| {
            let gpu = |part: &DeviceClaim| host.spec.gpus[usize::from(part.device)].id.clone();
            let assumed =
                claim.devices.iter().map(gpu).filter(|gpu| !uses.gpus.contains_key(gpu)).collect();
            (id.clone(), (uses.clone(), assumed))
        });
        NodeSnapshot {
            node: (*host.spec).clone(),
            lost: host.reach == Reach::Lost,
            cordoned: host.cordoned,
            draining: host.draining,
            reclaimed: host.reclaimed,
            health: host.health.clone(),
            utilization: host.busy.clone(),
            foreign: foreign.collect(),
        }
    }

    fn restore_node(&mut self, facts: NodeSnapshot) -> Result<(), Rejected> {
        facts.node.validate()?;
        if self.cluster.node(&facts.node.id).is_some() {
            return Err(Rejected::Snapshot(format!("node `{}` is there twice", facts.node.id)));
        }
        let node = self.cluster.add(&Arc::new(facts.node));
        let host = self.cluster.host_mut(node);
        host.reach = if facts.lost { Reach::Lost } else { Reach::Up };
        host.cordoned = facts.cordoned;
        host.draining = facts.draining;
        host.reclaimed = facts.reclaimed;
        host.health = facts.health;
        host.busy = facts.utilization;
        for (id, (uses, assumed)) in facts.foreign {
            uses.validate()?;
            self.restore_foreign(node, id, uses, &assumed);
        }
        self.refresh_state(node);
        Ok(())
    }

    fn workload_facts(&self, index: JobIdx) -> WorkloadSnapshot {
        let job = self.jobs.get(index);
        let mut workload = (*job.spec).clone();
        workload.submitted = Some(job.submitted);
        let seat = |(task, seat): (u32, &Seat)| TaskSnapshot {
            task,
            node: self.cluster.host(seat.node).spec.id.clone(),
            gpus: self.parts(seat.node, &seat.claim),
            confirmed: seat.confirmed,
            leaving: seat.leaving,
            known: seat.known,
        };
        let finished = job.tasks.iter().enumerate().filter(|(_, slot)| slot.finished);
        WorkloadSnapshot {
            workload,
            phase: match job.state {
                State::Waiting => WorkloadPhase::Pending,
                State::Preempting => WorkloadPhase::Preempting,
                State::Placed => WorkloadPhase::Placed,
                State::Stopping => WorkloadPhase::Stopping,
            },
            placed_at: job.placed_at,
            tasks: job.seats().map(seat).collect(),
            finished: finished.map(|(task, _)| task as u32).collect(),
            refusals: job.refusals,
            not_before: job.not_before,
            avoid: job.avoid.map(|node| self.cluster.host(node).spec.id.clone()),
            told: job.told,
        }
    }

    fn restore_workload(&mut self, facts: WorkloadSnapshot) -> Result<(), Rejected> {
        let WorkloadSnapshot { workload, phase, placed_at, tasks: seats, finished, .. } = facts;
        workload.validate()?;
        let id = workload.id.clone();
        if self.jobs.find(&id).is_some() {
            return Err(Rejected::DuplicateWorkload(id));
        }
        self.queues
            .find(&workload.queue)
            .ok_or_else(|| Rejected::UnknownQueue(workload.queue.clone()))?;
        let avoid = facts.avoid.as_ref().and_then(|node| self.cluster.node(node));
        self.learn_from(&workload);
        let index = self.take_in(Box::new(workload));
        let job = self.jobs.get_mut(index);
        job.refusals = facts.refusals;
        job.not_before = facts.not_before;
        job.avoid = avoid;
        job.told = facts.told;
        for task in finished {
            let slot = job
                .tasks
                .get_mut(task as usize)
                .ok_or_else(|| contradiction("finished task of", &id))?;
            slot.finished = true;
        }
        for seat in seats {
            self.restore_seat(index, &seat)?;
        }
        self.enter_phase(index, phase, placed_at);
        Ok(())
    }

    pub(crate) fn enter_phase(&mut self, index: JobIdx, phase: WorkloadPhase, placed_at: Time) {
        let told = self.jobs.get(index).told;
        match phase {
            WorkloadPhase::Placed | WorkloadPhase::Stopping => {
                let now = std::mem::replace(&mut self.now, placed_at);
                self.mark_placed(index);
                self.now = now;
                let terminating =
                    self.jobs.get(index).seats().any(|(_, seat)| seat.leaving.is_some());
                if phase == WorkloadPhase::Stopping {
                    self.unmark_placed(index);
                    self.jobs.get_mut(index).state = State::Stopping;
                } else if terminating {
                    self.stoppable.remove(&index);
                }
            }
            WorkloadPhase::Preempting => {
                let job = self.jobs.get_mut(index);
                (job.state, job.placed_at) = (State::Preempting, placed_at);
            }
            WorkloadPhase::Pending => {
                let job = self.jobs.get_mut(index);
                job.placed_at = placed_at;
                let (gated, until) = (job.spec.gate.is_some(), job.not_before);
                if until > Time(0) {
                    self.backoffs.insert((until, index));
                } else if !gated {
                    self.enqueue(index);
                }
            }
        }
        self.jobs.get_mut(index).told = told;
    }

    fn restore_seat(&mut self, job: JobIdx, facts: &TaskSnapshot) -> Result<(), Rejected> {
        let node = self.node_number(&facts.node)?;
        let id = self.jobs.get(job).spec.id.clone();
        let free = self
            .jobs
            .get(job)
            .tasks
            .get(facts.task as usize)
            .is_some_and(|slot| slot.seat.is_none());
        if !free {
            return Err(contradiction("task of", &id));
        }
        let shape = self.jobs.get(job).shape_of(facts.task);
        let claim = self.claim_of(shape, node, &facts.gpus, true)?;
        let TaskSnapshot { confirmed, leaving, known, .. } = *facts;
        self.seat_as_found(job, facts.task, Seat { node, claim, confirmed, leaving, known });
        Ok(())
    }

    /// Books a task where it is, whether or not there is room: that is a fact.
    pub(crate) fn seat_as_found(&mut self, job: JobIdx, task: u32, seat: Seat) {
        let (node, leaving) = (seat.node, seat.leaving);
        self.seat(job, task, node, seat.claim.clone());
        let staying = Seat { leaving: None, ..seat };
        self.jobs.get_mut(job).tasks[task as usize].seat = Some(staying);
        if leaving.is_some() {
            self.begin_to_stop(job, task);
            if let Some(seat) = self.jobs.get_mut(job).tasks[task as usize].seat.as_mut() {
                seat.leaving = leaving;
            }
        }
        if self.cluster.room(node).overcommitted() {
            self.cluster.host_mut(node).disturbed = true;
        }
    }

    /// The claim of a task of this shape on these devices; a task that runs has its slices, one
    /// that is held for may still wait for them.
    fn claim_of(
        &self,
        shape: ShapeIdx,
        node: NodeIdx,
        gpus: &[GpuAllocation],
        runs: bool,
    ) -> Result<Claim, Rejected> {
        let shape = self.cluster.shape(shape);
        let mut devices: SmallVec<[DeviceClaim; 1]> = SmallVec::new();
        for GpuAllocation { gpu, share: part } in gpus {
            let index = self.gpu_number(node, gpu)?;
            let device = &self.cluster.room(node).devices[index];
            let mut claim = DeviceClaim {
                device: index as u8,
                exclusive: shape.exclusive,
                model: device.model,
                milli: 1000,
                mib: device.total,
                slice: None,
            };
            match part {
                GpuShare::Whole => claim.exclusive = true,
                GpuShare::Fraction { milli, mib } => {
                    claim.milli = (*milli).min(1000) as i32;
                    claim.mib = mib.0.min(crate::model::units::MAX_GPU_MEMORY) as i32;
                }
                GpuShare::MigSlice { profile, start } => {
                    let known =
                        device.geometry.and_then(|g| Some((g, g.profile(profile.as_str())?)));
                    let known =
                        known.filter(|(g, id)| !runs || device.slots.fits_at(g, *id, *start));
                    let (_, id) = known.ok_or_else(|| {
                        Rejected::Snapshot(format!(
                            "no slice {} at {start} of GPU `{gpu}`",
                            profile.as_str()
                        ))
                    })?;
                    (claim.milli, claim.mib) = device.slice(id).unwrap_or_default();
                    claim.slice = Some((id, *start));
                }
            }
            devices.push(claim);
        }
        Ok(Claim { need: shape.need.clone(), devices })
    }

    fn hold_facts(&self, job: JobIdx) -> Option<HoldSnapshot> {
        let hold = self.holds.get(job)?;
        let name = |job: &JobIdx| self.jobs.get(*job).spec.id.clone();
        let (victims, until) = match &hold.purpose {
            Purpose::Preemption { victims, until } => {
                (Some(victims.iter().map(name).collect()), Some(*until))
            }
            Purpose::Reservation { start } => (None, *start),
        };
        let seat = |(node, claim): &(NodeIdx, Claim)| {
            (self.cluster.host(*node).spec.id.clone(), self.parts(*node, claim))
        };
        Some(HoldSnapshot {
            workload: name(&job),
            victims,
            until,
            claims: hold.planned.iter().map(seat).collect(),
        })
    }

    fn restore_hold(&mut self, facts: &HoldSnapshot) -> Result<(), Rejected> {
        let job = self.job_number(&facts.workload)?;
        let mut seats = Vec::new();
        for (task, (node, gpus)) in facts.claims.iter().enumerate() {
            let node = self.node_number(node)?;
            let shape = self.jobs.get(job).shape_of(task as u32);
            seats.push((node, self.claim_of(shape, node, gpus, false)?));
        }
        let purpose = match &facts.victims {
            None => Purpose::Reservation { start: facts.until },
            Some(names) => {
                let victims =
                    names.iter().map(|name| self.job_number(name)).collect::<Result<_, _>>()?;
                Purpose::Preemption { victims, until: facts.until.unwrap_or(self.now) }
            }
        };
        self.hold(job, purpose, seats);
        Ok(())
    }
}

fn contradiction(what: &str, workload: &WorkloadId) -> Rejected {
    Rejected::Snapshot(format!("{what} `{workload}`"))
}
