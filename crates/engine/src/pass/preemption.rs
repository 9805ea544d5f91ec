//! Executes preemptions inside a pass: stops the victims, and starts the preemptor after they are gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::hold::holds::HoldPurpose;
use crate::model::decision::{Decision, Victim};
use crate::quota::charge::Charge;
use crate::state::cluster::room::Claim;
use crate::state::cluster::{NodeIdx, fit};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{WorkloadIdx, WorkloadPhase};

use crate::pass::decide::Pass;

impl Scheduler {
    /// Starts preemptors whose victims are gone. Other holds first release their bookings on the planned
    /// nodes; they are refilled afterwards from their own victims.
    pub(crate) fn start_preemptors(&mut self, pass: &mut Pass) {
        self.cluster.sort();
        let ready = |purpose: &HoldPurpose| matches!(purpose, HoldPurpose::Preemption { victims, .. } if victims.is_empty());
        for workload in self.hold_owners(|hold| ready(&hold.purpose)) {
            let Some(hold) = self.release_hold(workload) else { continue };
            let nodes: BTreeSet<NodeIdx> = hold.planned.iter().map(|(node, _)| *node).collect();
            for node in &nodes {
                self.free_hold_bookings(*node);
            }
            let lifted = self.suspend_savings(workload);
            let placed_workload = self.claims_fit(workload, &hold.planned)
                && self.book_claims(workload, hold.planned);
            for node in &nodes {
                self.refill_holds(*node);
            }
            // The plan no longer fits: search again, before any pending workload.
            let placed_workload = placed_workload || self.place_workload(workload).is_ok();
            self.resume_savings(lifted);
            if placed_workload {
                self.mark_placed(workload);
                self.push_placements(workload, pass);
                self.unblock_affinity_groups(workload);
            } else {
                self.workloads.get_mut(workload).phase = WorkloadPhase::Pending;
                self.enqueue(workload);
            }
        }
    }

    pub(crate) fn fits_quota(&self, workload: WorkloadIdx, planned: &[(u32, Claim)]) -> bool {
        let mut charge = Charge::default();
        for (_, claim) in planned {
            charge.add(&Charge::of(claim));
        }
        self.queues.excess(&self.cluster, self.workloads.get(workload).queue, &charge).is_none()
    }

    /// The planned claims fit the nodes and the queue's quota.
    pub(crate) fn claims_fit(&mut self, workload: WorkloadIdx, planned: &[(u32, Claim)]) -> bool {
        let mut rooms = std::collections::BTreeMap::new();
        for (task, (node, claim)) in planned.iter().enumerate() {
            let shape = self.cluster.shape(self.workloads.get(workload).shape_of(task as u32));
            let room = rooms.entry(*node).or_insert_with(|| self.cluster.room(*node).clone());
            if fit::shortfall(shape, room).is_some() || !room.has(claim) {
                return false;
            }
            room.book(claim);
        }
        self.fits_quota(workload, planned)
    }

    /// Books the planned claims unless affinity or spread terms now exclude a node.
    pub(crate) fn book_claims(
        &mut self,
        workload: WorkloadIdx,
        planned: Vec<(u32, Claim)>,
    ) -> bool {
        let spec = self.workloads.get(workload).spec.clone();
        let strategy = self.strategy(self.workloads.get(workload));
        for (task, (node, claim)) in planned.into_iter().enumerate() {
            let shape = self.workloads.get(workload).shape_of(task as u32);
            let request = spec.request_of(task as u32);
            let barred = !self.terms.are_irrelevant_to(request)
                && self.judge(request, shape, strategy, &[]).verdicts[node as usize]
                    .shortfall
                    .is_some();
            if barred {
                for task in 0..task {
                    self.release_task(workload, task as u32);
                }
                return false;
            }
            self.book_task(workload, task as u32, node, claim);
        }
        true
    }

    /// Plans and starts a preemption; returns false when none is allowed or none helps.
    pub(crate) fn preempt_for(&mut self, workload: WorkloadIdx, pass: &mut Pass) -> bool {
        // The plan may use the workload's own reservation, and the reservation of a workload behind it.
        self.suspend_hold(workload);
        let after = self.holds.reserved.filter(|other| self.is_ahead_of(workload, *other));
        if let Some(other) = after {
            self.suspend_hold(other);
        }
        let Some(eviction) = self.plan_preemption(workload) else {
            self.resume_hold(workload);
            if let Some(other) = after {
                self.resume_hold(other);
            }
            return false;
        };
        if let Some(other) = after {
            self.release_hold(other);
        }
        self.dequeue(workload);
        self.workloads.get_mut(workload).phase = WorkloadPhase::Preempting;
        for victim in &eviction.victims {
            self.charge_disruption_budgets(*victim);
            self.stop_workload(*victim);
        }
        let gone = [eviction.victims.as_slice(), &eviction.awaited].concat();
        let until = self.hold_deadline(&gone);
        let victims: Vec<Victim> =
            eviction.victims.iter().map(|victim| self.victim_of(*victim, workload)).collect();
        if !victims.is_empty() {
            let beneficiary = self.workloads.get(workload).spec.id.clone();
            pass.decisions.push(Decision::Preempt { victims, beneficiary, until });
        }
        let reason = self.preempting_reason(&gone, until);
        self.report_wait_reason(workload, &Arc::new(reason), &mut pass.decisions);
        self.place_hold(
            workload,
            HoldPurpose::Preemption { victims: gone, until },
            eviction.claims,
        );
        true
    }

    pub(crate) fn charge_disruption_budgets(&mut self, victim: WorkloadIdx) {
        let spec = self.workloads.get(victim).spec.clone();
        for budget in &spec.budgets {
            if let Some(allowed) = self.budgets.get_mut(budget) {
                *allowed = allowed.saturating_sub(spec.task_count());
            }
        }
    }
}
