//! Gangs and jobs under a `ResourceQuota` take turns; see [`super::turns`].

use agentaflow_engine::WorkloadId;
use agentaflow_kube_core::slim::Pod;

use super::ClusterState;
use super::action::Key;
use super::parked::Parked;
use super::pod_entry::{engine_time, is_finished};
use super::turns::{Contender, namespace_of};
use super::unit_table::Unit;
use super::work_queue::WorkItem;
use crate::controller::QuotaTurn;

impl ClusterState {
    /// A quota refused a pod of a gang.
    pub(super) fn record_quota_refusal(&mut self, key: &Key) {
        let contenders = self.quota_contenders(&key.namespace);
        if !contenders.iter().any(|one| one.workload == *key) {
            return;
        }
        let job_holds_turn = self.units.awaiting_pods(&key.namespace, None).is_some();
        self.turns.record_refusal(key, &contenders, job_holds_turn, self.engine.now());
        self.requeue_contenders(&key.namespace);
        self.pass_turn_on(&key.namespace);
    }

    /// Incomplete gangs of a namespace that can give back their pods.
    fn quota_contenders(&self, namespace: &str) -> Vec<Contender> {
        let pods = |key: &Key, wanted: fn(&Pod) -> bool| {
            self.pods.of_workload(key).any(|pod| {
                let pod = self.pods.get(pod).and_then(|entry| entry.pod.as_deref());
                pod.is_some_and(|pod| !is_finished(pod) && wanted(pod))
            })
        };
        let contender = |key: &Key| {
            let object = self.workloads.object(key)?;
            let created = object.metadata.creation_timestamp.as_ref();
            let is_bound = pods(key, |pod| pod.spec.node_name.is_some());
            (!is_bound).then(|| Contender {
                workload: key.clone(),
                priority: self.workload_priority(key),
                created: created.map_or(self.engine.now(), |time| engine_time(time.0)),
                has_pods: pods(key, |_| true),
            })
        };
        self.workloads.incomplete_gangs(namespace).filter_map(contender).collect()
    }

    /// Enqueues the incomplete gangs of a namespace with turns.
    pub(super) fn requeue_contenders(&mut self, namespace: &str) {
        if !self.turns.are_taken(namespace) {
            return;
        }
        for key in self.workloads.incomplete_gangs(namespace) {
            self.work.push(WorkItem::ReconcileWorkload(key.clone()));
        }
    }

    pub(super) fn end_quota_turn(&mut self, key: &Key) {
        if !self.turns.are_taken(&key.namespace) {
            return;
        }
        let contenders = self.quota_contenders(&key.namespace);
        let (goes_on, jobs) = self.turns.end_turn(key, &contenders, self.engine.now());
        self.sync_gangs(jobs);
        if goes_on {
            self.requeue_contenders(&key.namespace);
            self.pass_turn_on(&key.namespace);
        }
    }

    /// Pods that counted in quotas ended: gangs and jobs of the namespace end their backoffs.
    pub(super) fn quota_freed(&mut self, namespace: &str) {
        let now = self.engine.now();
        if self.turns.quota_freed(namespace, now) {
            self.requeue_contenders(namespace);
        }
        let jobs = self.turns.short_jobs(namespace).cloned().collect::<Vec<WorkloadId>>();
        let retried = jobs.into_iter().filter(|id| self.units.end_backoff(id, now));
        let retried: Vec<WorkloadId> = retried.collect();
        self.sync_gangs(retried);
    }

    /// Turn of a workload among the gangs of its namespace; a gang with bound pods needs none.
    pub(super) fn quota_turn(&self, key: &Key) -> QuotaTurn {
        let is_gang = self.workloads.spec(key).is_some_and(|spec| spec.gang_size > 1);
        if !is_gang || !self.turns.are_taken(&key.namespace) {
            return QuotaTurn::Free;
        }
        let contenders = self.quota_contenders(&key.namespace);
        let is_new = !self.workloads.is_incomplete(key);
        if !is_new && !contenders.iter().any(|one| one.workload == *key) {
            return QuotaTurn::Free;
        }
        if !self.turns.is_holder(key)
            && let Some(job) = self.units.awaiting_pods(&key.namespace, None)
        {
            return QuotaTurn::Wait { holder: job.name() };
        }
        let others = contenders.iter().any(|one| one.workload != *key && one.has_pods);
        self.turns.turn(key, others, self.engine.now())
    }

    /// Ok if a job may be resumed now; else the gang that gets its pods first.
    pub(super) fn job_turn(&mut self, id: &WorkloadId) -> Result<(), Parked> {
        let namespace = namespace_of(id);
        let suspended = self.units.get(id).is_some_and(|unit| unit.spec.suspended);
        if !suspended || !self.turns.are_taken(namespace) {
            return Ok(());
        }
        let job = || self.units.awaiting_pods(namespace, Some(id)).map(Unit::name);
        let Some(holder) = self.turns.holder(namespace).or_else(job) else { return Ok(()) };
        self.turns.wait(id);
        Err(Parked::StartTurn { holder })
    }

    /// A job runs, or is gone.
    pub(super) fn forget_turn_of(&mut self, id: &WorkloadId) {
        let namespace = namespace_of(id);
        // Without turns, gangs that wait create their pods.
        self.requeue_contenders(namespace);
        let jobs = self.turns.forget_job(id);
        self.sync_gangs(jobs);
    }

    /// Enqueues the gangs and jobs of a namespace that may get their pods, unless one holds the turn.
    pub(super) fn pass_turn_on(&mut self, namespace: &str) {
        if !self.turns.are_taken(namespace)
            || self.units.awaiting_pods(namespace, None).is_some()
            || self.turns.holder(namespace).is_some()
        {
            return;
        }
        let waiting = self.turns.take_waiting_jobs(namespace);
        if waiting.is_empty() {
            let contenders = self.quota_contenders(namespace);
            self.turns.choose(namespace, &contenders, self.engine.now());
            self.requeue_contenders(namespace);
        }
        self.sync_gangs(waiting);
    }

    fn sync_gangs(&mut self, ids: impl IntoIterator<Item = WorkloadId>) {
        for id in ids {
            self.work.push(WorkItem::SyncGang(id));
        }
    }
}
