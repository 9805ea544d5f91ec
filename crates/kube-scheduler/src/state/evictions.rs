//! Disruption budgets: how many pods of a group may be stopped at a time.

use agentaflow_engine::{BudgetId, Event, Span, Time};
use agentaflow_kube_core::slim::DisruptionBudget;
use agentaflow_kube_core::translate;

use super::{ClusterState, Key, key_of};

/// How long a pod is spared whose eviction was refused, at first.
const SPARED: Span = Span::minutes(1);
/// How often that time doubles.
const SPARED_TWICE_AS_LONG: u32 = 6;

/// A pod that could not be evicted.
#[derive(Debug, Default)]
pub(super) struct EvictionBackoff {
    times: u32,
    /// Until then nobody is asked to evict it.
    until: Option<Time>,
}

impl ClusterState {
    pub(super) fn see_budget(&mut self, budget: DisruptionBudget) {
        let key = key_of(&budget.metadata);
        let (allowed, spec) = (allowed(&budget), budget.spec.clone());
        let before = self.budgets.insert(key.clone(), budget);
        if !self.begun {
            return;
        }
        if before.as_ref().map(self::allowed) != Some(allowed) {
            self.tell(Event::BudgetUpdated { id: BudgetId::from(key.to_string()), allowed });
        }
        if before.map(|before| before.spec) != Some(spec) {
            self.tell_protected(&key.namespace);
        }
    }

    pub(super) fn lose_budget(&mut self, budget: &DisruptionBudget) {
        let key = key_of(&budget.metadata);
        if self.budgets.remove(&key).is_some() && self.begun {
            self.tell(Event::BudgetRemoved(BudgetId::from(key.to_string())));
            self.tell_protected(&key.namespace);
        }
    }

    /// Budgets come and go while pods run: every workload of a namespace learns which ones are its own now.
    fn tell_protected(&mut self, namespace: &str) {
        let here = |member: &Key| *member.namespace == *namespace;
        let known = self.groups.iter().filter(|(_, group)| group.known);
        let known = known.filter(|(_, group)| group.members.values().next().is_some_and(here));
        let known: Vec<_> = known
            .map(|(id, group)| (id.clone(), self.budgets_of(group.members.values())))
            .collect();
        for (workload, budgets) in known {
            self.tell(Event::WorkloadBudgetsUpdated { workload, budgets });
        }
    }

    pub(super) fn tell_budgets(&mut self) {
        let all: Vec<(Key, u32)> =
            self.budgets.iter().map(|(key, budget)| (key.clone(), allowed(budget))).collect();
        for (key, allowed) in all {
            self.tell(Event::BudgetUpdated { id: BudgetId::from(key.to_string()), allowed });
        }
    }

    /// The budgets that stopping these pods draws on.
    pub(super) fn budgets_of<'a>(&self, pods: impl IntoIterator<Item = &'a Key>) -> Vec<BudgetId> {
        let mut all: Vec<BudgetId> = Vec::new();
        for key in pods {
            for budget in self.budgets_of_pod(key) {
                if !all.contains(&budget) {
                    all.push(budget);
                }
            }
        }
        all
    }

    fn budgets_of_pod(&self, key: &Key) -> Vec<BudgetId> {
        let Some(pod) = self.pods.get(key).and_then(|entry| entry.pod.as_ref()) else {
            return Vec::new();
        };
        let spared = self.spared.get(key).filter(|spared| spared.until.is_some());
        let labels = translate::labels(pod.metadata.labels.as_ref());
        let protects = |budget: &DisruptionBudget| {
            let selector = budget.spec.selector.as_ref();
            selector.is_some_and(|selector| {
                translate::selector(selector).is_ok_and(|selector| selector.matches(&labels))
            })
        };
        let mine = self.budgets.iter().filter(|(budget, _)| budget.namespace == key.namespace);
        mine.filter(|(_, budget)| protects(budget))
            .map(|(budget, _)| BudgetId::from(budget.to_string()))
            .chain(spared.map(|_| spared_by(key)))
            .collect()
    }

    /// Somebody does not let a pod be evicted: it has a budget of its own for a while, which allows nothing. Each time it
    /// is asked in vain that lasts twice as long.
    pub(super) fn spare(&mut self, key: &Key) {
        let spared = self.spared.entry(key.clone()).or_default();
        let time = Span(SPARED.0 << spared.times.min(SPARED_TWICE_AS_LONG));
        spared.times += 1;
        spared.until = Some(self.now.after(time));
        self.tell(Event::BudgetUpdated { id: spared_by(key), allowed: 0 });
    }

    /// Those who were spared long enough may be asked again; says when the next one may.
    pub(super) fn spare_until(&mut self) -> Option<Time> {
        let over = |spared: &EvictionBackoff| spared.until.is_some_and(|until| until <= self.now);
        let over: Vec<Key> = self
            .spared
            .iter()
            .filter(|(_, spared)| over(spared))
            .map(|(key, _)| key.clone())
            .collect();
        for key in over {
            if let Some(spared) = self.spared.get_mut(&key) {
                spared.until = None;
            }
            self.tell(Event::BudgetRemoved(spared_by(&key)));
        }
        self.spared.values().filter_map(|spared| spared.until).min()
    }

    /// The pod is gone.
    pub(super) fn spare_no_more(&mut self, key: &Key) {
        if self.spared.remove(key).is_some_and(|spared| spared.until.is_some()) {
            self.tell(Event::BudgetRemoved(spared_by(key)));
        }
    }
}

/// The budget of a pod that cannot be evicted. No object is called like this.
fn spared_by(key: &Key) -> BudgetId {
    BudgetId::from(format!("{key} cannot be evicted"))
}

fn allowed(budget: &DisruptionBudget) -> u32 {
    budget.status.disruptions_allowed.max(0) as u32
}
