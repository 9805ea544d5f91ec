//! The queue tree: usage, shares, guarantees, and the next queue to serve.

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

use crate::model::name::{QueueId, ResourceName};
use crate::model::policy::{Queue, Quota};
use crate::model::units::{Span, Time};
use crate::quota::charge::{Charge, add, covers, exceeded, names, one_of_each};
use crate::state::cluster::Cluster;
use crate::state::cluster::room::{CPU, MEMORY, ModelIdx, ResIdx};
use crate::state::workloads::WorkloadIdx;

/// Dense index of a queue; the root is 0.
pub(crate) type QueueIdx = u32;

pub(crate) const ROOT: QueueIdx = 0;

/// Amounts under quota: thousandths of cores, MiB of memory, MiB of storage, thousandths of GPUs. The first three
/// have the indexes of [`NodeAmounts`](crate::state::cluster::room::NodeAmounts).
pub(crate) type QuotaAmounts = [i64; 4];

/// Index into [`QuotaAmounts`].
pub(crate) const GPU: usize = 3;

/// Current and past usage of a queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    pub(crate) used: QuotaAmounts,
    pub(crate) past: [f64; 4],
    pub(crate) as_of: Time,
}

impl Account {
    /// Updates the moving average up to `now`.
    fn accrue(&mut self, now: Time, half_life: Span) {
        let passed = now.since(self.as_of).0;
        if passed == 0 {
            return;
        }
        let keep = libm::exp2(-(passed as f64) / half_life.0.max(1) as f64);
        for (past, used) in self.past.iter_mut().zip(self.used) {
            *past = *past * keep + used as f64 * (1.0 - keep);
        }
        self.as_of = now;
    }

    /// Index of the resource with the largest share of capacity; `None` without usage.
    fn dominant(&self, capacity: &QuotaAmounts) -> Option<usize> {
        let share = |at: &usize| self.used[*at] as f64 / capacity[*at].max(1) as f64;
        let used = [GPU, CPU, MEMORY].into_iter().filter(|at| self.used[*at] > 0);
        used.max_by(|a, b| share(a).total_cmp(&share(b)))
    }

    /// The dominant share: the largest share of any resource, current plus past usage.
    fn share(&self, capacity: &QuotaAmounts) -> f64 {
        let mut share = 0.0_f64;
        for at in [CPU, MEMORY, GPU] {
            if capacity[at] > 0 {
                share = share.max((self.used[at] as f64 + self.past[at]) / capacity[at] as f64);
            }
        }
        share
    }
}

/// A queue and its usage.
#[derive(Clone, Debug)]
pub(crate) struct QueueState {
    pub(crate) spec: Queue,
    pub(crate) parent: Option<QueueIdx>,
    children: Vec<QueueIdx>,
    pub(crate) total: Account,
    /// Usage of the queue's own workloads, without its descendants.
    pub(crate) own: Account,
    pub(crate) models: FxHashMap<ModelIdx, i64>,
    pub(crate) named: FxHashMap<ResIdx, i64>,
    /// Ready groups of the queue, and of its subtree.
    ready: u32,
    ready_below: u32,
    /// Workloads in this queue.
    pub(crate) members: u32,
    /// The queue exceeded its limit before the last pass, because a limit was lowered or workloads were
    /// adopted.
    pub(crate) overcommitted_externally: bool,
}

impl QueueState {
    fn uses(&self, cluster: &Cluster, name: &ResourceName) -> i64 {
        let used =
            self.named.iter().filter(|(resource, _)| cluster.resource_name(**resource) == name);
        used.map(|(_, amount)| *amount).sum()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Queues {
    pub(crate) states: Vec<Option<QueueState>>,
    by_name: FxHashMap<QueueId, QueueIdx>,
    /// Any queue has a guarantee; without one, shares alone decide.
    guarantees: bool,
    /// Any queue has a limit.
    pub(crate) limits: bool,
    /// Quota reserved for pending workloads: queue and charge by workload.
    pub(crate) pledges: BTreeMap<WorkloadIdx, (QueueIdx, Charge)>,
}

impl Default for Queues {
    fn default() -> Self {
        let root = Queue::new("root");
        let mut queues = Self {
            states: Vec::new(),
            by_name: FxHashMap::default(),
            guarantees: false,
            limits: false,
            pledges: BTreeMap::new(),
        };
        queues.insert(root, None);
        queues
    }
}

impl Queues {
    pub(crate) fn find(&self, name: &QueueId) -> Option<QueueIdx> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn get(&self, queue: QueueIdx) -> &QueueState {
        self.states[queue as usize].as_ref().expect("a queue index in use has a queue")
    }

    pub(crate) fn get_mut(&mut self, queue: QueueIdx) -> &mut QueueState {
        self.states[queue as usize].as_mut().expect("a queue index in use has a queue")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (QueueIdx, &QueueState)> {
        self.states
            .iter()
            .enumerate()
            .filter_map(|(index, queue)| Some((index as QueueIdx, queue.as_ref()?)))
    }

    /// Creates or updates a queue; returns the reason when the tree would become invalid.
    pub(crate) fn set(&mut self, spec: Queue) -> Result<(), &'static str> {
        let known = self.find(&spec.id);
        if known == Some(ROOT) {
            self.get_mut(ROOT).spec = Queue { parent: QueueId::from("root"), ..spec };
        } else {
            let parent = self.find(&spec.parent).ok_or("has an unknown parent")?;
            match known {
                None => {
                    self.insert(spec, Some(parent));
                }
                Some(queue) if self.get(queue).parent == Some(parent) => {
                    self.get_mut(queue).spec = spec;
                }
                Some(_) => return Err("cannot change its parent; delete and recreate the queue"),
            }
        }
        self.survey();
        Ok(())
    }

    /// Removes a queue without workloads and children.
    pub(crate) fn remove(&mut self, queue: QueueIdx) -> Result<(), &'static str> {
        if queue == ROOT {
            return Err("is the root queue");
        }
        let state = self.get(queue);
        if !state.children.is_empty() {
            return Err("has child queues");
        }
        if state.members > 0 {
            return Err("has workloads");
        }
        let removed = self.states[queue as usize].take().expect("a queue index in use has a queue");
        self.by_name.remove(&removed.spec.id);
        if let Some(parent) = removed.parent {
            self.get_mut(parent).children.retain(|child| *child != queue);
        }
        self.survey();
        Ok(())
    }

    /// The queue and its ancestors.
    pub(crate) fn path(&self, queue: QueueIdx) -> impl Iterator<Item = QueueIdx> {
        std::iter::successors(Some(queue), |queue| self.get(*queue).parent)
    }

    /// Adds (`sign` 1) or removes (`sign` -1) usage after an update of the moving averages.
    pub(crate) fn charge(
        &mut self,
        queue: QueueIdx,
        charge: &Charge,
        sign: i64,
        now: Time,
        half_life: Span,
    ) {
        let own = &mut self.get_mut(queue).own;
        own.accrue(now, half_life);
        add(&mut own.used, &charge.base, sign);
        let mut next = Some(queue);
        while let Some(queue) = next {
            let state = self.get_mut(queue);
            state.total.accrue(now, half_life);
            add(&mut state.total.used, &charge.base, sign);
            for (model, milli) in &charge.models {
                *state.models.entry(*model).or_default() += sign * milli;
            }
            for (resource, amount) in &charge.named {
                *state.named.entry(*resource).or_default() += sign * amount;
            }
            next = state.parent;
        }
    }

    pub(crate) fn accrue(&mut self, now: Time, half_life: Span) {
        for queue in self.states.iter_mut().flatten() {
            queue.own.accrue(now, half_life);
            queue.total.accrue(now, half_life);
        }
    }

    pub(crate) fn have_guarantees(&self) -> bool {
        self.guarantees
    }

    pub(crate) fn have_limits(&self) -> bool {
        self.limits
    }

    /// With this charge, the queue `to` stays within every guarantee on its path below the common ancestor
    /// with `from`.
    pub(crate) fn is_entitled(
        &self,
        cluster: &Cluster,
        from: QueueIdx,
        to: QueueIdx,
        charge: &Charge,
    ) -> bool {
        let victims: Vec<_> = self.path(from).collect();
        let mine = self.path(to).take_while(|queue| !victims.contains(queue));
        let mut entitled = false;
        for queue in mine {
            let state = self.get(queue);
            if state.spec.guaranteed == Quota::default() {
                continue;
            }
            if !covers(cluster, &state.spec.guaranteed, charge) {
                return false;
            }
            if exceeded(cluster, state, &state.spec.guaranteed, charge, None, true).is_some() {
                return false;
            }
            entitled = true;
        }
        entitled
    }

    /// The queue `from` uses more than its guarantees below the common ancestor with `to`.
    pub(crate) fn is_borrowing(&self, cluster: &Cluster, from: QueueIdx, to: QueueIdx) -> bool {
        let above: Vec<_> = self.path(to).collect();
        self.path(from).take_while(|queue| !above.contains(queue)).all(|queue| {
            let state = self.get(queue);
            let quota = &state.spec.guaranteed;
            *quota == Quota::default()
                || exceeded(cluster, state, quota, &Charge::default(), None, false).is_some()
        })
    }

    /// Adds (`change` 1) or removes (`change` -1) a ready group.
    pub(crate) fn mark_ready(&mut self, queue: QueueIdx, change: i32) {
        let state = self.get_mut(queue);
        state.ready = state.ready.wrapping_add_signed(change);
        let mut next = Some(queue);
        while let Some(queue) = next {
            let state = self.get_mut(queue);
            state.ready_below = state.ready_below.wrapping_add_signed(change);
            next = state.parent;
        }
    }

    /// The next queue to serve. Descends to the child within its guarantee first, then to the child with the
    /// smallest share per weight.
    pub(crate) fn next(&self, cluster: &Cluster) -> Option<QueueIdx> {
        let mut at = ROOT;
        loop {
            let state = self.get(at);
            if state.ready_below == 0 {
                return None;
            }
            if state.ready == state.ready_below {
                return Some(at);
            }
            let own = (state.ready > 0).then(|| {
                (true, state.own.share(&cluster.capacity) / f64::from(state.spec.weight), None)
            });
            let children = state.children.iter().map(|child| (*child, self.get(*child)));
            let children =
                children.filter(|(_, state)| state.ready_below > 0).map(|(child, state)| {
                    let share = state.total.share(&cluster.capacity) / f64::from(state.spec.weight);
                    (!self.within_guarantee(cluster, state), share, Some(child))
                });
            let chosen = own.into_iter().chain(children).min_by(|a, b| {
                a.0.cmp(&b.0)
                    .then(a.1.total_cmp(&b.1))
                    .then_with(|| self.name(a.2).cmp(&self.name(b.2)))
            })?;
            match chosen.2 {
                Some(child) => at = child,
                None => return Some(at),
            }
        }
    }

    fn name(&self, queue: Option<QueueIdx>) -> Option<&QueueId> {
        queue.map(|queue| &self.get(queue).spec.id)
    }

    /// The queue can use more without borrowing. A queue whose dominant resource has no guarantee counts as
    /// borrowing; otherwise it would come first forever.
    fn within_guarantee(&self, cluster: &Cluster, state: &QueueState) -> bool {
        let quota = &state.spec.guaranteed;
        self.guarantees
            && *quota != Quota::default()
            && state
                .total
                .dominant(&cluster.capacity)
                .is_none_or(|at| names(cluster, state, quota, at))
            && quota.resources.iter().all(|(name, limit)| state.uses(cluster, name) < *limit as i64)
            && exceeded(cluster, state, &state.spec.guaranteed, &one_of_each(cluster), None, true)
                .is_none()
    }

    fn insert(&mut self, spec: Queue, parent: Option<QueueIdx>) -> QueueIdx {
        let index = self.states.iter().position(Option::is_none).unwrap_or_else(|| {
            self.states.push(None);
            self.states.len() - 1
        });
        self.by_name.insert(spec.id.clone(), index as QueueIdx);
        self.states[index] = Some(QueueState {
            spec,
            parent,
            children: Vec::new(),
            total: Account::default(),
            own: Account::default(),
            models: FxHashMap::default(),
            named: FxHashMap::default(),
            ready: 0,
            ready_below: 0,
            members: 0,
            overcommitted_externally: false,
        });
        if let Some(parent) = parent {
            self.get_mut(parent).children.push(index as QueueIdx);
        }
        index as QueueIdx
    }

    fn survey(&mut self) {
        let quotas = || self.states.iter().flatten().map(|queue| &queue.spec);
        let guarantees = quotas().any(|spec| spec.guaranteed != Quota::default());
        let limits = quotas().any(|spec| spec.limit != Quota::default() || !spec.borrow);
        self.guarantees = guarantees;
        self.limits = limits;
    }
}
