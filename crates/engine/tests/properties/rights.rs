//! Quotas, guarantees and preemption rules, checked against the ledger.

use std::collections::BTreeSet;

use agentaflow_engine::{
    GpuAllocation, GpuAssignment, GpuRequest, NodeId, Placement, PreemptionReason, QueueId, Quota,
    Time, Victim, Workload, WorkloadId,
};

use crate::devices::amounts;
use crate::ledger::{Allocation, Ledger};

impl Ledger {
    /// No queue on the path exceeds its limit.
    pub fn check_quotas(&self, workload: &Workload, placement: &Placement) {
        let mut next = Some(workload.queue.clone());
        while let Some(id) = next {
            let queue = &self.queues[&id];
            self.check_quota(workload, placement, &id, &queue.limit);
            if !queue.borrow {
                self.check_quota(workload, placement, &id, &queue.guaranteed);
            }
            next = (id.as_str() != "root").then(|| queue.parent.clone());
        }
    }

    fn is_below(&self, queue: &QueueId, above: &QueueId) -> bool {
        queue == above
            || (queue.as_str() != "root" && self.is_below(&self.queues[queue].parent, above))
    }

    fn check_quota(&self, workload: &Workload, placement: &Placement, id: &QueueId, limit: &Quota) {
        let allocations = || {
            let allocations =
                self.allocations.values().map(|allocation| (&allocation.of, allocation));
            allocations.filter(|(workload, _)| self.is_below(&workload.queue, id))
        };
        let within = |asked: u64, limit: Option<u64>, used: u64| {
            let limit = limit.filter(|_| asked > 0);
            assert!(
                limit.is_none_or(|limit| used <= limit),
                "{id} uses {used} of {limit:?} for {}",
                workload.id
            );
        };
        let request = &workload.request;
        within(request.cpu.0, limit.cpu, allocations().map(|(w, _)| w.request.cpu.0).sum());
        within(
            request.memory.0,
            limit.memory,
            allocations().map(|(w, _)| w.request.memory.0).sum(),
        );
        let charged = self.charge(workload, &placement.node, &placement.gpus, None);
        within(
            charged,
            limit.gpu,
            allocations()
                .map(|(w, allocation)| self.charge(w, &allocation.node, &allocation.gpus, None))
                .sum(),
        );
        for (model, limit) in &limit.models {
            let of = |w: &Workload, allocation: &Allocation| {
                self.charge(w, &allocation.node, &allocation.gpus, Some(model.as_str()))
            };
            let mine =
                self.charge(workload, &placement.node, &placement.gpus, Some(model.as_str()));
            within(
                mine,
                Some(*limit),
                allocations().map(|(w, allocation)| of(w, allocation)).sum(),
            );
        }
        for (name, limit) in &limit.resources {
            let of = |w: &Workload| w.request.resources.get(name).copied().unwrap_or(0);
            within(of(workload), Some(*limit), allocations().map(|(w, _)| of(w)).sum());
        }
    }

    /// Thousandths that an allocation uses of one model or of all. Unnamed GPUs of a node with several models
    /// count for no model.
    fn charge(
        &self,
        workload: &Workload,
        node: &NodeId,
        gpus: &GpuAssignment,
        model: Option<&str>,
    ) -> u64 {
        let spec = &self.nodes[node].spec;
        let parts = match gpus {
            GpuAssignment::Devices(parts) => parts,
            GpuAssignment::Count(count) => {
                let uniform = spec.gpus.windows(2).all(|pair| pair[0].model == pair[1].model);
                let first = spec.gpus.first().map(|gpu| gpu.model.as_str());
                if model.is_some() && (!uniform || first != model) {
                    return 0;
                }
                return match workload.request.gpu {
                    GpuRequest::Fraction(share) if !workload.request.exclusive => {
                        share.get().into()
                    }
                    GpuRequest::Memory(mib) if !workload.request.exclusive => {
                        // A lower bound, because the GPU is unknown.
                        mib.0 * 1000 / spec.gpus.iter().map(|gpu| gpu.memory.0).max().unwrap_or(1)
                    }
                    _ => u64::from(*count) * 1000,
                };
            }
        };
        let charge = |part: &GpuAllocation| {
            let gpu = spec.gpus.iter().find(|gpu| gpu.id == part.gpu).expect("the GPU exists");
            let counts = model.is_none_or(|model| gpu.model.as_str() == model);
            let milli = amounts(part.share, gpu.model.as_str(), gpu.memory.0).0;
            if !counts {
                0
            } else if workload.request.exclusive {
                1000
            } else {
                milli
            }
        };
        parts.iter().map(charge).sum()
    }

    /// Checks and records a preemption.
    pub fn preempt(&mut self, now: Time, victims: &[Victim], beneficiary: &WorkloadId) {
        let wanting = self.workloads.get(beneficiary).expect("a known beneficiary").clone();
        assert!(self.policy.preemption && wanting.may_preempt, "{beneficiary} may not stop others");
        assert!(wanting.gate.is_none(), "{beneficiary} is behind a gate");
        assert!(!victims.is_empty(), "no victim for {beneficiary}");
        let mut named = BTreeSet::new();
        for Victim { workload: id, reason: right } in victims {
            assert!(named.insert(id), "{id} is stopped twice");
            let victim = self.workloads.get(id).expect("a known victim").clone();
            let since = self
                .allocations
                .iter()
                .filter(|((holder, _), _)| holder == id)
                .map(|(_, allocation)| allocation.since)
                .max();
            let ran = now.since(since.expect("a victim that runs"));
            assert!(victim.preemptible, "{id} may not be stopped");
            assert!(
                ran >= victim.min_runtime.unwrap_or(self.policy.min_runtime),
                "{id} has only run for {ran}"
            );
            let lower = victim.priority < wanting.priority;
            let mut above = std::iter::successors(Some(&wanting.queue), |id| {
                (id.as_str() != "root").then(|| &self.queues[*id].parent)
            });
            let entitled = above.any(|id| self.queues[id].guaranteed != Quota::default());
            let lawful = match right {
                PreemptionReason::Priority => lower,
                PreemptionReason::Reclaim => victim.queue != wanting.queue && entitled,
            };
            assert!(lawful, "{beneficiary} has no right to stop {id} by {right:?}");
            self.check_guarantees(&victim, &wanting, &named);
            for budget in &victim.budgets {
                if let Some(allowed) = self.budgets.get_mut(budget) {
                    let left = allowed.checked_sub(victim.task_count());
                    *allowed = left.expect("a budget is kept");
                }
            }
            assert!(self.stopping.insert(id.clone()), "{id} is being stopped already");
        }
    }

    /// Between queues only usage beyond the guarantee is preempted, without terminating tasks.
    fn check_guarantees(
        &self,
        victim: &Workload,
        wanting: &Workload,
        named: &BTreeSet<&WorkloadId>,
    ) {
        let mut next = Some(victim.queue.clone()).filter(|queue| *queue != wanting.queue);
        while let Some(id) = next.filter(|id| !self.is_below(&wanting.queue, id)) {
            let queue = &self.queues[&id];
            let goes = |id: &WorkloadId| named.contains(id) || self.stopping.contains(id);
            let quota = &queue.guaranteed;
            let allocations = || {
                let allocations = self.allocations.iter();
                let allocations =
                    allocations.filter(|((holder, _), _)| *holder == victim.id || !goes(holder));
                let allocations = allocations.map(|(_, allocation)| (&allocation.of, allocation));
                allocations.filter(|(workload, _)| self.is_below(&workload.queue, &id))
            };
            let over = |limit: Option<u64>, of: &dyn Fn(&Workload, &Allocation) -> u64| {
                limit.is_some_and(|limit| {
                    allocations()
                        .map(|(workload, allocation)| of(workload, allocation))
                        .sum::<u64>()
                        > limit
                })
            };
            let gpus = |w: &Workload, allocation: &Allocation, model: Option<&str>| {
                self.charge(w, &allocation.node, &allocation.gpus, model)
            };
            let mut by_model = quota.models.iter().map(|(model, limit)| {
                over(Some(*limit), &|w, allocation| gpus(w, allocation, Some(model.as_str())))
            });
            let mut by_name = quota.resources.iter().map(|(name, limit)| {
                over(Some(*limit), &|w, _| w.request.resources.get(name).copied().unwrap_or(0))
            });
            // The models are unknown on a node that chooses devices itself.
            let unsure = allocations()
                .any(|(_, allocation)| matches!(allocation.gpus, GpuAssignment::Count(_)));
            let borrows = *quota == Quota::default()
                || unsure
                || over(quota.cpu, &|w, _| w.request.cpu.0)
                || over(quota.memory, &|w, _| w.request.memory.0)
                || over(quota.gpu, &|w, allocation| gpus(w, allocation, None))
                || by_model.any(|over| over)
                || by_name.any(|over| over);
            assert!(borrows, "{} takes what {id} is guaranteed", wanting.id);
            next = (id.as_str() != "root").then(|| queue.parent.clone());
        }
    }
}
