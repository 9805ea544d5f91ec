//! Turns of gangs whose pods the API server admits only in part, as under a `ResourceQuota`.
//!
//! Two gangs that each got a part of a quota would wait for each other forever. After a refusal, one gang of the namespace
//! creates its pods at a time, and every other incomplete gang without bound pods gives its pods back. A gang that fails in
//! its turn gives its pods back, too, and backs off behind the others.

use agentaflow_backoff::BackoffPolicy;
use agentaflow_engine::{Span, Time};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::action::Key;
use crate::controller::QuotaTurn;

/// Delays between the attempts of one turn: the API server counts deleted pods with a delay.
const ATTEMPTS: BackoffPolicy = BackoffPolicy::new(Duration::from_secs(1), Duration::from_secs(4));
/// Attempts of one turn.
const MAX_ATTEMPTS: u32 = 3;
/// Time for the other gangs to give back their pods. A pod may terminate for longer, because of a finalizer.
const GIVE_BACK_LIMIT: Span = Span(30_000);
/// Delays between the turns of one gang.
const TURNS: BackoffPolicy = BackoffPolicy::new(Duration::from_secs(10), Duration::from_mins(5));

/// An incomplete gang without bound pods.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) workload: Key,
    /// Value of the priority class of its pods.
    pub(super) priority: i32,
    pub(super) created: Time,
    /// Some of its pods exist.
    pub(super) has_pods: bool,
}

#[derive(Debug, Default)]
pub(super) struct QuotaTurns {
    namespaces: BTreeMap<Arc<str>, Namespace>,
}

#[derive(Debug, Default)]
struct Namespace {
    holder: Option<Holder>,
    /// Gangs with refused pods.
    refused: BTreeMap<Key, Refused>,
}

#[derive(Debug)]
struct Holder {
    workload: Key,
    /// Start of the turn.
    since: Time,
    /// Refused attempts of this turn.
    attempts: u32,
    retry_at: Time,
}

#[derive(Debug, Default)]
struct Refused {
    /// Failed turns.
    turns: u32,
    until: Time,
}

impl QuotaTurns {
    /// The turn of a gang. `others_have_pods`: other contenders have not given back their pods yet.
    pub(super) fn turn(&self, workload: &Key, others_have_pods: bool, now: Time) -> QuotaTurn {
        let Some(namespace) = self.namespaces.get(&workload.namespace) else {
            return QuotaTurn::Free;
        };
        match &namespace.holder {
            Some(holder) if holder.workload != *workload => {
                QuotaTurn::Wait { holder: holder.workload.name.to_string() }
            }
            Some(holder) => {
                let at = holder.attempt_at(others_have_pods);
                QuotaTurn::Own { ready: at <= now, at: super::workload_table::timestamp(at) }
            }
            None => match namespace.refused.get(workload) {
                Some(refused) if refused.until > now => {
                    QuotaTurn::BackOff { until: super::workload_table::timestamp(refused.until) }
                }
                Some(_) => {
                    let at = super::workload_table::timestamp(now);
                    QuotaTurn::Own { ready: !others_have_pods, at }
                }
                None => QuotaTurn::Free,
            },
        }
    }

    /// Gangs of the namespace take turns.
    pub(super) fn are_taken(&self, namespace: &str) -> bool {
        self.namespaces.contains_key(namespace)
    }

    /// Records a refused pod of a contender.
    pub(super) fn record_refusal(&mut self, workload: &Key, contenders: &[Contender], now: Time) {
        let namespace = self.namespaces.entry(workload.namespace.clone()).or_default();
        namespace.refused.entry(workload.clone()).or_default();
        let others_have_pods =
            contenders.iter().any(|other| other.workload != *workload && other.has_pods);
        match &mut namespace.holder {
            None => namespace.choose(contenders, now),
            Some(holder) if holder.workload != *workload => {}
            // Further refusals of the same attempt, or pods of others still count.
            Some(holder) if holder.attempt_at(others_have_pods) > now => {}
            Some(holder) => {
                holder.attempts += 1;
                holder.retry_at = now.after(span(ATTEMPTS.delay(holder.attempts - 1)));
                if holder.attempts >= MAX_ATTEMPTS {
                    namespace.fail_turn(now);
                    namespace.choose(contenders, now);
                }
            }
        }
    }

    /// A gang has all its pods, or needs none any more; returns true if other gangs of its namespace may go on.
    pub(super) fn end_turn(&mut self, workload: &Key, contenders: &[Contender], now: Time) -> bool {
        let Some(namespace) = self.namespaces.get_mut(&workload.namespace) else { return false };
        let was_refused = namespace.refused.remove(workload).is_some();
        let held = namespace.holder.as_ref().is_some_and(|holder| holder.workload == *workload);
        if held {
            namespace.holder = None;
            namespace.choose_refused(contenders, now);
        }
        if namespace.refused.is_empty() && namespace.holder.is_none() {
            self.namespaces.remove(&workload.namespace);
        }
        held || was_refused
    }

    /// Pods of the namespace ended: gangs that back off may try at once.
    pub(super) fn quota_freed(&mut self, namespace: &str, now: Time) -> bool {
        let Some(namespace) = self.namespaces.get_mut(namespace) else { return false };
        let mut freed = false;
        for refused in namespace.refused.values_mut().filter(|refused| refused.until > now) {
            refused.until = now;
            freed = true;
        }
        freed
    }
}

impl Holder {
    /// Time of the next attempt.
    fn attempt_at(&self, others_have_pods: bool) -> Time {
        let given_back = self.since.after(GIVE_BACK_LIMIT);
        if others_have_pods { self.retry_at.max(given_back) } else { self.retry_at }
    }
}

impl Namespace {
    fn choose(&mut self, contenders: &[Contender], now: Time) {
        let order = |one: &&Contender| {
            let turns = self.refused.get(&one.workload).map_or(0, |refused| refused.turns);
            (turns, Reverse(one.priority), one.created, one.workload.clone())
        };
        let may_try = |one: &&Contender| {
            self.refused.get(&one.workload).is_none_or(|refused| refused.until <= now)
        };
        let next = contenders.iter().filter(may_try).min_by_key(order);
        let holder = |next: &Contender| {
            let workload = next.workload.clone();
            Holder { workload, since: now, attempts: 0, retry_at: now }
        };
        self.holder = next.map(holder);
    }

    /// Without a refused gang that waits, no gang needs a turn.
    fn choose_refused(&mut self, contenders: &[Contender], now: Time) {
        if self.refused.values().any(|refused| refused.until <= now) {
            self.choose(contenders, now);
        }
    }

    fn fail_turn(&mut self, now: Time) {
        let Some(holder) = self.holder.take() else { return };
        let refused = self.refused.entry(holder.workload).or_default();
        refused.until = now.after(span(TURNS.delay(refused.turns)));
        refused.turns += 1;
    }
}

fn span(delay: Duration) -> Span {
    Span(delay.as_millis() as u64)
}
