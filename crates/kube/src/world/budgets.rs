//! Disruption budgets: how many pods of a group may be stopped at a time.

use agentaflow_engine::{BudgetId, Event};

use super::{Key, World, key_of};
use crate::slim::DisruptionBudget;
use crate::translate;

impl World {
    pub(super) fn see_budget(&mut self, budget: DisruptionBudget) {
        let key = key_of(&budget.metadata);
        let (allowed, spec) = (allowed(&budget), budget.spec.clone());
        let before = self.budgets.insert(key.clone(), budget);
        if !self.begun {
            return;
        }
        if before.as_ref().map(self::allowed) != Some(allowed) {
            self.tell(Event::Budget { id: BudgetId::from(key.to_string()), allowed });
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
        let known = self.groups.iter().filter(|(_, group)| group.known);
        let first = known.filter_map(|(id, group)| Some((id, group.members.values().next()?)));
        let first = first.filter(|(_, member)| *member.namespace == *namespace);
        let first: Vec<_> = first.map(|(id, member)| (id.clone(), member.clone())).collect();
        for (workload, member) in first {
            let budgets = self.budgets_of(&member);
            self.tell(Event::Protected { workload, budgets });
        }
    }

    pub(super) fn tell_budgets(&mut self) {
        let all: Vec<(Key, u32)> =
            self.budgets.iter().map(|(key, budget)| (key.clone(), allowed(budget))).collect();
        for (key, allowed) in all {
            self.tell(Event::Budget { id: BudgetId::from(key.to_string()), allowed });
        }
    }

    /// The budgets that stopping this pod draws on.
    pub(super) fn budgets_of(&self, key: &Key) -> Vec<BudgetId> {
        let Some(pod) = self.pods.get(key).and_then(|entry| entry.pod.as_ref()) else {
            return Vec::new();
        };
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
            .collect()
    }
}

fn allowed(budget: &DisruptionBudget) -> u32 {
    budget.status.disruptions_allowed.max(0) as u32
}
