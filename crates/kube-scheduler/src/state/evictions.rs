//! Disruption budgets, refused evictions, and deletions that the API server has not confirmed.

use agentaflow_backoff::BackoffPolicy;
use agentaflow_engine::{BudgetId, Event, Span, Time};
use agentaflow_kube_core::slim::DisruptionBudget;
use agentaflow_kube_core::translate;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::action::{Action, Key};
use super::engine_link::EngineLink;
use super::gang_table::GangTable;
use super::key_of;
use super::pod_entry::{is_finished, is_terminating};
use super::pod_index::PodIndex;

/// Delays after refused evictions.
const EVICTION_RETRIES: BackoffPolicy =
    BackoffPolicy::new(Duration::from_mins(1), Duration::from_mins(64));

/// Milliseconds after which a requested deletion or creation is requested again: the API server may have refused it.
pub(super) const RETRY_AFTER: u64 = 30_000;

#[derive(Debug, Default)]
pub(super) struct Evictions {
    budgets: BTreeMap<Key, DisruptionBudget>,
    backoffs: BTreeMap<Key, EvictionBackoff>,
    /// Pods whose eviction was refused while the engine still expects their end.
    refused: BTreeSet<Key>,
    /// Deleted pods that are still there, and the time of the next request.
    deletions: BTreeMap<Key, Time>,
}

/// While `until` lies ahead, a budget of its own that allows nothing protects the pod.
#[derive(Debug, Default)]
struct EvictionBackoff {
    refusals: u32,
    until: Option<Time>,
}

impl Evictions {
    pub(super) fn budget_applied(
        &mut self,
        budget: DisruptionBudget,
        started: bool,
        engine: &mut EngineLink,
        gangs: &GangTable,
        pods: &PodIndex,
    ) {
        let key = key_of(&budget.metadata);
        let (allowed, spec) = (allowed(&budget), budget.spec.clone());
        let before = self.budgets.insert(key.clone(), budget);
        if !started {
            return;
        }
        if before.as_ref().map(self::allowed) != Some(allowed) {
            engine.send(Event::BudgetUpdated { id: BudgetId::from(key.to_string()), allowed });
        }
        if before.map(|before| before.spec) != Some(spec) {
            self.publish_protection(&key.namespace, engine, gangs, pods);
        }
    }

    pub(super) fn budget_deleted(
        &mut self,
        budget: &DisruptionBudget,
        started: bool,
        engine: &mut EngineLink,
        gangs: &GangTable,
        pods: &PodIndex,
    ) {
        let key = key_of(&budget.metadata);
        if self.budgets.remove(&key).is_some() && started {
            engine.send(Event::BudgetRemoved(BudgetId::from(key.to_string())));
            self.publish_protection(&key.namespace, engine, gangs, pods);
        }
    }

    /// Sends the budgets of every workload in a namespace: budgets come and go while pods run.
    fn publish_protection(
        &self,
        namespace: &str,
        engine: &mut EngineLink,
        gangs: &GangTable,
        pods: &PodIndex,
    ) {
        let is_here = |member: &Key| *member.namespace == *namespace;
        for (id, gang) in gangs.iter().filter(|(_, gang)| gang.submitted) {
            if gang.first_member().is_some_and(is_here) {
                let budgets = self.budgets_of(gang.members.values(), pods);
                engine.send(Event::WorkloadBudgetsUpdated { workload: id.clone(), budgets });
            }
        }
    }

    /// Sends the disruptions that each budget allows.
    pub(super) fn publish_budgets(&self, engine: &mut EngineLink) {
        for (key, budget) in &self.budgets {
            let id = BudgetId::from(key.to_string());
            engine.send(Event::BudgetUpdated { id, allowed: allowed(budget) });
        }
    }

    /// The budgets that an eviction of these pods draws on.
    pub(super) fn budgets_of<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a Key>,
        pods: &PodIndex,
    ) -> Vec<BudgetId> {
        let mut all: Vec<BudgetId> = Vec::new();
        for key in keys {
            for budget in self.budgets_of_pod(key, pods) {
                if !all.contains(&budget) {
                    all.push(budget);
                }
            }
        }
        all
    }

    fn budgets_of_pod(&self, key: &Key, pods: &PodIndex) -> Vec<BudgetId> {
        let Some(pod) = pods.get(key).and_then(|entry| entry.pod.as_ref()) else {
            return Vec::new();
        };
        let backoff = self.backoffs.get(key).filter(|backoff| backoff.until.is_some());
        let labels = translate::labels(pod.metadata.labels.as_ref());
        let protects = |budget: &DisruptionBudget| {
            let selector = budget.spec.selector.as_ref();
            selector.is_some_and(|selector| {
                translate::selector(selector).is_ok_and(|selector| selector.matches(&labels))
            })
        };
        let near = self.budgets.iter().filter(|(budget, _)| budget.namespace == key.namespace);
        near.filter(|(_, budget)| protects(budget))
            .map(|(budget, _)| BudgetId::from(budget.to_string()))
            .chain(backoff.map(|_| backoff_budget(key)))
            .collect()
    }

    pub(super) fn record_refusal(&mut self, pod: &Key) {
        self.refused.insert(pod.clone());
    }

    pub(super) fn is_refused(&self, pod: &Key) -> bool {
        self.refused.contains(pod)
    }

    pub(super) fn clear_refusal(&mut self, pod: &Key) {
        self.refused.remove(pod);
    }

    /// Protects a pod whose eviction was refused with a budget of its own; each refusal doubles the duration.
    pub(super) fn back_off(&mut self, pod: &Key, engine: &mut EngineLink) {
        let backoff = self.backoffs.entry(pod.clone()).or_default();
        let delay = Span(EVICTION_RETRIES.delay(backoff.refusals).as_millis() as u64);
        backoff.refusals += 1;
        backoff.until = Some(engine.now().after(delay));
        engine.send(Event::BudgetUpdated { id: backoff_budget(pod), allowed: 0 });
    }

    /// Removes the protection of pods whose backoff is over; returns the end of the next backoff.
    pub(super) fn expire_backoffs(&mut self, engine: &mut EngineLink) -> Option<Time> {
        let now = engine.now();
        for (pod, backoff) in &mut self.backoffs {
            if backoff.until.is_some_and(|until| until <= now) {
                backoff.until = None;
                engine.send(Event::BudgetRemoved(backoff_budget(pod)));
            }
        }
        self.backoffs.values().filter_map(|backoff| backoff.until).min()
    }

    /// Records a deletion that is requested now.
    pub(super) fn record_deletion(&mut self, pod: &Key, now: Time) {
        self.deletions.insert(pod.clone(), Time(now.0 + RETRY_AFTER));
    }

    /// Deletes pods again that should be gone: a gang that is torn down waits for them. Returns the time of the next retry.
    pub(super) fn retry_deletions(
        &mut self,
        now: Time,
        pods: &PodIndex,
        actions: &mut Vec<Action>,
    ) -> Option<Time> {
        self.deletions.retain(|key, due| {
            if *due > now {
                return true;
            }
            let Some(entry) = pods.get(key) else { return false };
            let stays =
                |pod: &agentaflow_kube_core::slim::Pod| !is_terminating(pod) && !is_finished(pod);
            if !entry.pod.as_deref().is_some_and(stays) {
                return false;
            }
            actions.push(Action::Delete { pod: entry.reference(key), grace: None });
            *due = Time(now.0 + RETRY_AFTER);
            true
        });
        self.deletions.values().copied().min()
    }

    pub(super) fn pod_removed(&mut self, pod: &Key, engine: &mut EngineLink) {
        self.refused.remove(pod);
        self.deletions.remove(pod);
        if self.backoffs.remove(pod).is_some_and(|backoff| backoff.until.is_some()) {
            engine.send(Event::BudgetRemoved(backoff_budget(pod)));
        }
    }
}

/// The budget of a pod whose eviction was refused. No object can have this name.
fn backoff_budget(pod: &Key) -> BudgetId {
    BudgetId::from(format!("{pod} cannot be evicted"))
}

fn allowed(budget: &DisruptionBudget) -> u32 {
    budget.status.disruptions_allowed.max(0) as u32
}
