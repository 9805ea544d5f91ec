//! Turns of gangs and jobs whose pods the API server admits only in part, as under a `ResourceQuota`.
//!
//! Two gangs that each got a part of a quota would wait for each other forever. After a refused pod of a `GPUWorkload`, or a
//! start of a job without all its pods, one gang of the namespace gets its pods at a time. Every other incomplete gang of a
//! `GPUWorkload` without bound pods gives its pods back, and other jobs stay suspended. A gang that fails in its turn gives
//! its pods back, too, and backs off behind the other gangs; a job is suspended again.
//!
//! A job holds the turn from its resumption until all its pods exist or it is suspended, which the table of units knows.

use agentaflow_backoff::BackoffPolicy;
use agentaflow_engine::{Span, Time, WorkloadId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
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
pub(super) struct Turns {
    namespaces: BTreeMap<Arc<str>, Namespace>,
}

#[derive(Debug, Default)]
struct Namespace {
    holder: Option<Holder>,
    /// Gangs with refused pods.
    refused: BTreeMap<Key, Refused>,
    /// Jobs whose pods did not come.
    short_jobs: BTreeSet<WorkloadId>,
    /// Jobs that wait for their turn.
    waiting_jobs: BTreeSet<WorkloadId>,
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

impl Turns {
    /// The turn of a gang. `others_have_pods`: other contenders have not given back their pods yet.
    pub(super) fn turn(&self, workload: &Key, others_have_pods: bool, now: Time) -> QuotaTurn {
        let Some(namespace) = self.namespaces.get(&workload.namespace) else {
            return QuotaTurn::Free;
        };
        match &namespace.holder {
            Some(holder) if holder.workload != *workload => {
                QuotaTurn::Wait { holder: holder.name() }
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

    /// Gangs and jobs of the namespace take turns.
    pub(super) fn are_taken(&self, namespace: &str) -> bool {
        self.namespaces.contains_key(namespace)
    }

    /// Name of the gang that holds the turn, for users.
    pub(super) fn holder(&self, namespace: &str) -> Option<String> {
        Some(self.namespaces.get(namespace)?.holder.as_ref()?.name())
    }

    pub(super) fn is_holder(&self, workload: &Key) -> bool {
        let namespace = self.namespaces.get(&workload.namespace);
        let holder = namespace.and_then(|namespace| namespace.holder.as_ref());
        holder.is_some_and(|holder| holder.workload == *workload)
    }

    pub(super) fn record_missing_pods(&mut self, job: &WorkloadId) {
        let namespace = self.namespaces.entry(namespace_of(job).into()).or_default();
        namespace.short_jobs.insert(job.clone());
    }

    /// Jobs of a namespace whose pods did not come.
    pub(super) fn short_jobs(&self, namespace: &str) -> impl Iterator<Item = &WorkloadId> {
        let namespace = self.namespaces.get(namespace);
        namespace.into_iter().flat_map(|namespace| &namespace.short_jobs)
    }

    /// A job waits for its turn in a namespace with turns.
    pub(super) fn wait(&mut self, job: &WorkloadId) {
        if let Some(namespace) = self.namespaces.get_mut(namespace_of(job)) {
            namespace.waiting_jobs.insert(job.clone());
        }
    }

    /// Removes and returns the jobs of a namespace that wait for their turn.
    pub(super) fn take_waiting_jobs(&mut self, namespace: &str) -> BTreeSet<WorkloadId> {
        let waiting = self.namespaces.get_mut(namespace);
        waiting.map(|namespace| std::mem::take(&mut namespace.waiting_jobs)).unwrap_or_default()
    }

    /// The job runs, or is gone; returns the jobs that wait if no gang of the namespace needs a turn any more.
    pub(super) fn forget_job(&mut self, job: &WorkloadId) -> BTreeSet<WorkloadId> {
        let Some(namespace) = self.namespaces.get_mut(namespace_of(job)) else {
            return BTreeSet::new();
        };
        namespace.short_jobs.remove(job);
        namespace.waiting_jobs.remove(job);
        self.remove_settled(namespace_of(job))
    }

    /// Removes a namespace in which no gang needs a turn; returns the jobs that wait.
    fn remove_settled(&mut self, namespace: &str) -> BTreeSet<WorkloadId> {
        if self.namespaces.get(namespace).is_some_and(Namespace::is_settled) {
            return self.namespaces.remove(namespace).unwrap_or_default().waiting_jobs;
        }
        BTreeSet::new()
    }

    /// Gives the turn to a gang with refused pods if no gang holds it.
    pub(super) fn choose(&mut self, namespace: &str, contenders: &[Contender], now: Time) {
        let namespace = self.namespaces.get_mut(namespace);
        if let Some(namespace) = namespace.filter(|namespace| namespace.holder.is_none()) {
            namespace.choose_refused(contenders, now);
        }
    }

    /// Records a refused pod of a contender. While a job holds the turn, no gang gets it.
    pub(super) fn record_refusal(
        &mut self,
        workload: &Key,
        contenders: &[Contender],
        job_holds_turn: bool,
        now: Time,
    ) {
        let namespace = self.namespaces.entry(workload.namespace.clone()).or_default();
        namespace.refused.entry(workload.clone()).or_default();
        let others_have_pods =
            contenders.iter().any(|other| other.workload != *workload && other.has_pods);
        match &mut namespace.holder {
            None if job_holds_turn => {}
            None => namespace.choose(contenders, now),
            Some(holder) if holder.workload != *workload => {}
            // Further refusals of the same attempt, or pods of other gangs still count.
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

    /// A gang has all its pods, or needs none any more; returns true if other gangs of its namespace may go on, and the jobs
    /// that need no turn any more.
    pub(super) fn end_turn(
        &mut self,
        workload: &Key,
        contenders: &[Contender],
        now: Time,
    ) -> (bool, BTreeSet<WorkloadId>) {
        let Some(namespace) = self.namespaces.get_mut(&workload.namespace) else {
            return (false, BTreeSet::new());
        };
        let was_refused = namespace.refused.remove(workload).is_some();
        let held = namespace.holder.as_ref().is_some_and(|holder| holder.workload == *workload);
        if held {
            namespace.holder = None;
            namespace.choose_refused(contenders, now);
        }
        (held || was_refused, self.remove_settled(&workload.namespace))
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
    fn name(&self) -> String {
        format!("GPUWorkload {}", self.workload.name)
    }

    /// Time of the next attempt.
    fn attempt_at(&self, others_have_pods: bool) -> Time {
        let given_back = self.since.after(GIVE_BACK_LIMIT);
        if others_have_pods { self.retry_at.max(given_back) } else { self.retry_at }
    }
}

impl Namespace {
    fn is_settled(&self) -> bool {
        self.holder.is_none() && self.refused.is_empty() && self.short_jobs.is_empty()
    }

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

/// The namespace in the id of a job.
pub(super) fn namespace_of(job: &WorkloadId) -> &str {
    job.as_str().split('/').next().unwrap_or_default()
}
