//! Limits of queues: available quota, pledges, and excess by external causes.

use crate::model::policy::Quota;
use crate::quota::charge::{Charge, Excess, exceeded};
use crate::quota::queues::{Account, QueueIdx, Queues};
use crate::state::cluster::Cluster;
use crate::state::workloads::WorkloadIdx;

impl Queues {
    /// Reserves quota for a workload; counts against the limits of its queue and ancestors.
    pub(crate) fn pledge(&mut self, workload: WorkloadIdx, queue: QueueIdx, charge: Charge) {
        self.pledges.insert(workload, (queue, charge));
    }

    pub(crate) fn release_pledge(&mut self, workload: WorkloadIdx) {
        self.pledges.remove(&workload);
    }

    /// Another workload has a pledge on a limit that applies to this queue.
    pub(crate) fn is_pledged(&self, queue: QueueIdx) -> bool {
        let limited = |queue: &QueueIdx| {
            let spec = &self.get(*queue).spec;
            spec.limit != Quota::default() || !spec.borrow
        };
        self.path(queue).filter(limited).any(|queue| self.pledged(queue).is_some())
    }

    /// An otherwise idle queue has quota for this charge.
    pub(crate) fn could_ever_fit_limits(
        &self,
        cluster: &Cluster,
        queue: QueueIdx,
        charge: &Charge,
    ) -> bool {
        self.path(queue).all(|queue| {
            let mut idle = self.get(queue).clone();
            idle.total = Account::default();
            idle.models.clear();
            idle.named.clear();
            let over = |quota| exceeded(cluster, &idle, quota, charge, None, false).is_some();
            !over(&idle.spec.limit) && (idle.spec.borrow || !over(&idle.spec.guaranteed))
        })
    }

    /// Pledges of the queue and its descendants.
    fn pledged(&self, queue: QueueIdx) -> Option<Charge> {
        let mut sum: Option<Charge> = None;
        for (from, charge) in self.pledges.values() {
            if self.path(*from).any(|above| above == queue) {
                sum.get_or_insert_default().add(charge);
            }
        }
        sum
    }

    /// The first limit of the queue or its ancestors that the charge would exceed.
    pub(crate) fn excess(
        &self,
        cluster: &Cluster,
        queue: QueueIdx,
        charge: &Charge,
    ) -> Option<Excess> {
        if !self.limits {
            return None;
        }
        self.path(queue).find_map(|queue| {
            let state = self.get(queue);
            let pledged = self.pledged(queue);
            let over = |quota| exceeded(cluster, state, quota, charge, pledged.as_ref(), false);
            let excess = over(&state.spec.limit);
            let own = if state.spec.borrow { None } else { over(&state.spec.guaranteed) };
            let (resource, amounts) = excess.or(own)?;
            let [limit, used, kept, asked] = amounts.map(|amount| amount.max(0) as u64);
            Some(Excess { queue, resource, limit, used, reserved: kept, requested: asked })
        })
    }

    pub(crate) fn is_over(&self, cluster: &Cluster, queue: QueueIdx) -> bool {
        let state = self.get(queue);
        let over =
            |quota| exceeded(cluster, state, quota, &Charge::default(), None, false).is_some();
        over(&state.spec.limit) || (!state.spec.borrow && over(&state.spec.guaranteed))
    }

    /// Marks queues above their limit before a pass, for the linter.
    pub(crate) fn record_excess(&mut self, cluster: &Cluster) {
        if self.limits {
            for queue in 0..self.states.len() as QueueIdx {
                if self.states[queue as usize].is_some() {
                    self.get_mut(queue).overcommitted_externally = self.is_over(cluster, queue);
                }
            }
        }
    }

    /// Accepts that adopted workloads exceed the limits of a queue and its ancestors.
    pub(crate) fn mark_overcommitted(&mut self, cluster: &Cluster, queue: QueueIdx) {
        if self.limits {
            for queue in self.path(queue).collect::<Vec<_>>() {
                self.get_mut(queue).overcommitted_externally |= self.is_over(cluster, queue);
            }
        }
    }
}
