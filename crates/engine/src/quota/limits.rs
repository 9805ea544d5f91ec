//! What the limits of queues leave: for a charge, for those who room or quota is kept for, and when reality is beyond them.

use crate::model::policy::Quota;
use crate::quota::charge::{Charge, Excess, exceeded};
use crate::quota::queues::{Account, QueueIdx, Queues};
use crate::state::cluster::Cluster;
use crate::state::workloads::WorkloadIdx;

impl Queues {
    /// Keeps quota for a workload that room is kept for.
    pub(crate) fn pledge(&mut self, workload: WorkloadIdx, queue: QueueIdx, charge: Charge) {
        self.pledges.insert(workload, (queue, charge));
    }

    /// Gives back what was kept.
    pub(crate) fn release_pledge(&mut self, workload: WorkloadIdx) {
        self.pledges.remove(&workload);
    }

    /// Whether anything is kept of a limit that this queue pays from.
    pub(crate) fn is_pledged(&self, queue: QueueIdx) -> bool {
        let limited = |queue: &QueueIdx| {
            let spec = &self.get(*queue).spec;
            spec.limit != Quota::default() || !spec.borrow
        };
        self.path(queue).filter(limited).any(|queue| self.pledged(queue).is_some())
    }

    /// Whether the limits allow this charge when nothing else is used.
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

    /// What is kept of a queue's quota, by itself and below it.
    fn pledged(&self, queue: QueueIdx) -> Option<Charge> {
        let mut sum: Option<Charge> = None;
        for (from, charge) in self.pledges.values() {
            if self.path(*from).any(|above| above == queue) {
                sum.get_or_insert_default().add(charge);
            }
        }
        sum
    }

    /// The first limit on the way up that this charge would break.
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

    /// Whether a queue uses more than its own limit.
    pub(crate) fn is_over(&self, cluster: &Cluster, queue: QueueIdx) -> bool {
        let state = self.get(queue);
        let over =
            |quota| exceeded(cluster, state, quota, &Charge::default(), None, false).is_some();
        over(&state.spec.limit) || (!state.spec.borrow && over(&state.spec.guaranteed))
    }

    /// Remembers which queues are over their limit before a pass begins.
    pub(crate) fn record_excess(&mut self, cluster: &Cluster) {
        if self.limits {
            for queue in 0..self.states.len() as QueueIdx {
                if self.states[queue as usize].is_some() {
                    self.get_mut(queue).overcommitted_externally = self.is_over(cluster, queue);
                }
            }
        }
    }

    /// What was found running may be more than a queue and those above it allow: that is a fact.
    pub(crate) fn accept_excess(&mut self, cluster: &Cluster, queue: QueueIdx) {
        if self.limits {
            for queue in self.path(queue).collect::<Vec<_>>() {
                self.get_mut(queue).overcommitted_externally |= self.is_over(cluster, queue);
            }
        }
    }
}
