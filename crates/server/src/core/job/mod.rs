//! Live jobs: records, indexes and counters.

mod attempt;
mod idempotency;
pub(crate) mod workload;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, hash_map};
use std::hash::BuildHasher as _;

use rustc_hash::{FxBuildHasher, FxHashMap};

use agentaflow_api::ids::{JobId, NodeId, UserId};
use agentaflow_api::job::{JobStatus, TaskState};
use agentaflow_api::link::TaskKey;
use agentaflow_api::pending::{PendingCode, PendingReason};
use agentaflow_api::units::Stamp;
use agentaflow_engine::Workload;

use self::idempotency::RecentKeys;
use self::workload::workload;
use super::pricing::RunningCost;
use crate::store::{Change, JobRow, JobState, TaskAssignment};

/// Owner of every job that has not ended. All changes of a job's state pass through [`JobTable::update`], which keeps
/// the indexes and counters and remembers the job for the next transaction.
#[derive(Debug, Default)]
pub(crate) struct JobTable {
    jobs: BTreeMap<JobId, LiveJob>,
    users: FxHashMap<UserId, UserJobs>,
    queues: FxHashMap<String, QueueJobs>,
    reasons: PendingReasons,
    /// Cost of all running tasks.
    running: RunningCost,
    /// Jobs that became pending, or no longer are, since the last call of [`JobTable::take_moved`].
    moved: BTreeMap<UserId, BTreeSet<JobId>>,
    keys: RecentKeys,
    unsaved: Unsaved,
    last_id: JobId,
    /// Users whose running cost changed since the last publication.
    stale_users: BTreeSet<UserId>,
    /// A queue's counters changed since the last publication.
    stale_queues: bool,
}

#[derive(Debug)]
struct LiveJob {
    row: JobRow,
    /// Size of the spec as JSON.
    bytes: usize,
    request: RequestHash,
}

/// Hash of the properties of a job by which the engine groups pending jobs.
type RequestHash = u64;

#[derive(Debug, Default)]
struct UserJobs {
    ids: BTreeSet<JobId>,
    /// Jobs that are not pending.
    placed: BTreeSet<JobId>,
    /// Jobs that a budget keeps pending.
    gated: BTreeSet<JobId>,
    /// Number of jobs with each request.
    requests: FxHashMap<RequestHash, u32>,
    bytes: usize,
    running: RunningCost,
}

/// Number and size of a user's live jobs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LiveJobs {
    pub(crate) count: usize,
    /// Size of all specs as JSON, and of all sealed secrets.
    pub(crate) bytes: usize,
    /// Number of different requests.
    pub(crate) requests: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueJobs {
    pub(crate) pending: u32,
    pub(crate) scheduled: u32,
    pub(crate) running: u32,
}

impl QueueJobs {
    /// Scheduled or running.
    pub(crate) fn placed(self) -> u32 {
        self.scheduled + self.running
    }

    /// A live job that is neither pending nor scheduled counts as running.
    fn counter(&mut self, status: JobStatus) -> &mut u32 {
        match status {
            JobStatus::Pending => &mut self.pending,
            JobStatus::Scheduled => &mut self.scheduled,
            _ => &mut self.running,
        }
    }
}

/// Number of pending jobs by queue and reason.
pub(crate) type PendingReasons = BTreeMap<(String, PendingCode), u32>;

/// Jobs that differ from the store.
#[derive(Debug, Default)]
struct Unsaved {
    new: BTreeSet<JobId>,
    changed: BTreeSet<JobId>,
    ended: BTreeMap<JobId, JobRow>,
}

/// Contribution of a job to the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Contribution {
    status: JobStatus,
    reason: Option<PendingCode>,
    gated: bool,
    running: RunningCost,
}

impl Contribution {
    fn of(row: &JobRow) -> Self {
        let running = row.state.tasks.iter().filter(|task| task.state == TaskState::Running);
        let reason = row.state.pending_reason.as_ref().map(PendingReason::code);
        Self {
            status: row.state.status,
            reason: reason.filter(|_| row.state.status == JobStatus::Pending),
            gated: row.state.gate.is_some(),
            running: running.map(|task| RunningCost::of_task(row, task)).sum(),
        }
    }
}

impl JobTable {
    pub(crate) fn new(rows: Vec<JobRow>, last_id: JobId) -> Self {
        let mut table = Self { last_id, ..Self::default() };
        for row in rows {
            let bytes = job_bytes(&row);
            table.index(row, bytes);
        }
        table
    }

    pub(crate) fn get(&self, id: JobId) -> Option<&JobRow> {
        self.jobs.get(&id).map(|job| &job.row)
    }

    /// A live job, or one that ended since the last transaction.
    pub(crate) fn get_unsaved(&self, id: JobId) -> Option<&JobRow> {
        self.get(id).or_else(|| self.unsaved.ended.get(&id))
    }

    /// All live jobs by id. For rare operations only: an account may have 100,000.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &JobRow> {
        self.jobs.values().map(|job| &job.row)
    }

    /// Live jobs of a user. For rare operations only: an account may have 100,000.
    pub(crate) fn of_user(&self, user: UserId) -> impl Iterator<Item = &JobRow> {
        let ids = self.users.get(&user).into_iter().flat_map(|jobs| &jobs.ids);
        ids.filter_map(|id| self.get(*id))
    }

    /// Scheduled and running jobs of a user.
    pub(crate) fn placed_of(&self, user: UserId) -> impl Iterator<Item = &JobRow> {
        let ids = self.users.get(&user).into_iter().flat_map(|jobs| &jobs.placed);
        ids.filter_map(|id| self.get(*id))
    }

    /// Jobs of a user that a budget keeps pending.
    pub(crate) fn gated_of(&self, user: UserId) -> Vec<JobId> {
        self.users.get(&user).map_or_else(Vec::new, |jobs| jobs.gated.iter().copied().collect())
    }

    /// Jobs of each user that became pending, or no longer are, since the last call; all jobs after a load.
    pub(crate) fn take_moved(&mut self) -> BTreeMap<UserId, BTreeSet<JobId>> {
        std::mem::take(&mut self.moved)
    }

    pub(crate) fn live_jobs(&self, user: UserId) -> LiveJobs {
        let jobs = self.users.get(&user);
        jobs.map_or_else(LiveJobs::default, |jobs| LiveJobs {
            count: jobs.ids.len(),
            bytes: jobs.bytes,
            requests: jobs.requests.len(),
        })
    }

    /// Returns true if the owner of this job has a live job with the same request.
    pub(crate) fn has_request_of(&self, row: &JobRow) -> bool {
        let jobs = self.users.get(&row.user_id);
        jobs.is_some_and(|jobs| jobs.requests.contains_key(&request_hash(row)))
    }

    /// Cost of a user's running tasks that is not in the ledger yet.
    pub(crate) fn running_cost(&self, user: UserId) -> RunningCost {
        self.users.get(&user).map_or_else(RunningCost::default, |jobs| jobs.running)
    }

    /// Cost of all running tasks that is not in the ledger yet.
    pub(crate) fn total_running_cost(&self) -> RunningCost {
        self.running
    }

    pub(crate) fn queue_jobs(&self, queue: &str) -> QueueJobs {
        self.queues.get(queue).copied().unwrap_or_default()
    }

    /// Names of the queues with pending jobs.
    pub(crate) fn pending_queues(&self) -> impl Iterator<Item = &str> {
        let pending = self.queues.iter().filter(|(_, jobs)| jobs.pending > 0);
        pending.map(|(queue, _)| queue.as_str())
    }

    /// Task of the current attempt, if it is assigned to this node.
    pub(crate) fn task_on(&self, key: TaskKey, node: NodeId) -> Option<&TaskAssignment> {
        let job = self.get(key.job).filter(|job| job.task_key(key.task) == key)?;
        job.state.tasks.iter().find(|task| task.task == key.task && task.node == node)
    }

    pub(crate) fn last_id(&self) -> JobId {
        self.last_id
    }

    /// Id of the next job. An id that is not used is taken again.
    pub(crate) fn next_id(&self) -> JobId {
        JobId(self.last_id.0 + 1)
    }

    /// Adds a job with the id from [`JobTable::next_id`].
    pub(crate) fn insert(&mut self, row: JobRow, bytes: usize) {
        self.last_id = self.last_id.max(row.id);
        self.unsaved.new.insert(row.id);
        self.index(row, bytes);
    }

    fn index(&mut self, row: JobRow, bytes: usize) {
        let (id, user) = (row.id, row.user_id);
        let jobs = self.users.entry(user).or_default();
        jobs.ids.insert(id);
        jobs.bytes += bytes;
        let request = request_hash(&row);
        *jobs.requests.entry(request).or_default() += 1;
        let contribution = Contribution::of(&row);
        let none = Contribution { status: contribution.status, ..Contribution::default() };
        let queue = self.queues.entry(row.queue.clone()).or_default();
        *queue.counter(contribution.status) += 1;
        self.stale_queues = true;
        self.count_reason(row.queue.clone(), None, contribution.reason);
        self.jobs.insert(id, LiveJob { row, bytes, request });
        self.place(id, user, Some(contribution.status));
        self.count(id, user, none, contribution);
    }

    /// Changes the state of a job and returns the result of `change`; none if the job is not live.
    pub(crate) fn update<T>(
        &mut self,
        id: JobId,
        change: impl FnOnce(&mut JobState) -> T,
    ) -> Option<T> {
        let job = self.jobs.get_mut(&id)?;
        let before = Contribution::of(&job.row);
        let result = change(&mut job.row.state);
        job.row.state.updated_at = Stamp::now();
        let after = Contribution::of(&job.row);
        self.unsaved.changed.insert(id);
        if before.status != after.status {
            let queue = self.queues.entry(job.row.queue.clone()).or_default();
            *queue.counter(before.status) -= 1;
            *queue.counter(after.status) += 1;
            self.stale_queues = true;
        }
        let user = job.row.user_id;
        if before.reason != after.reason {
            let queue = job.row.queue.clone();
            self.count_reason(queue, before.reason, after.reason);
        }
        if before.status != after.status {
            self.place(id, user, Some(after.status));
        }
        self.count(id, user, before, after);
        Some(result)
    }

    /// Changes one task of the current attempt.
    pub(crate) fn update_task<T>(
        &mut self,
        key: TaskKey,
        change: impl FnOnce(&mut TaskAssignment) -> T,
    ) -> Option<T> {
        self.update(key.job, |state| {
            let task = state.tasks.iter_mut().find(|task| task.task == key.task);
            task.map(change)
        })
        .flatten()
    }

    /// Removes a job that has ended; the next transaction writes its last state.
    pub(crate) fn remove(&mut self, id: JobId) -> Option<&JobRow> {
        let LiveJob { row, bytes, request } = self.jobs.remove(&id)?;
        let before = Contribution::of(&row);
        let none = Contribution { status: before.status, ..Contribution::default() };
        if let Some(queue) = self.queues.get_mut(&row.queue) {
            *queue.counter(before.status) -= 1;
            if *queue == QueueJobs::default() {
                self.queues.remove(&row.queue);
            }
        }
        self.stale_queues = true;
        self.count_reason(row.queue.clone(), before.reason, None);
        self.place(id, row.user_id, None);
        self.count(id, row.user_id, before, none);
        if let Some(user) = self.users.get_mut(&row.user_id) {
            user.ids.remove(&id);
            user.bytes = user.bytes.saturating_sub(bytes);
            if let hash_map::Entry::Occupied(mut jobs) = user.requests.entry(request) {
                *jobs.get_mut() -= 1;
                if *jobs.get() == 0 {
                    jobs.remove();
                }
            }
            if user.ids.is_empty() {
                self.users.remove(&row.user_id);
            }
        }
        self.unsaved.changed.insert(id);
        Some(self.unsaved.ended.entry(id).or_insert(row))
    }

    /// Records that a job has this status; none if it is no longer live.
    fn place(&mut self, id: JobId, user: UserId, status: Option<JobStatus>) {
        self.moved.entry(user).or_default().insert(id);
        let jobs = self.users.entry(user).or_default();
        if status.is_some_and(|status| status != JobStatus::Pending) {
            jobs.placed.insert(id);
        } else {
            jobs.placed.remove(&id);
        }
    }

    fn count(&mut self, id: JobId, user: UserId, before: Contribution, after: Contribution) {
        if before.gated != after.gated {
            let gated = &mut self.users.entry(user).or_default().gated;
            if after.gated {
                gated.insert(id);
            } else {
                gated.remove(&id);
            }
        }
        if before.running != after.running {
            let jobs = self.users.entry(user).or_default();
            jobs.running = jobs.running - before.running + after.running;
            self.running = self.running - before.running + after.running;
            self.stale_users.insert(user);
            // The engine releases the resources of each task of a gang when the task ends.
            self.stale_queues = true;
        }
    }

    fn count_reason(
        &mut self,
        queue: String,
        before: Option<PendingCode>,
        after: Option<PendingCode>,
    ) {
        if let Some(code) = before
            && let Entry::Occupied(mut count) = self.reasons.entry((queue.clone(), code))
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if let Some(code) = after {
            *self.reasons.entry((queue, code)).or_default() += 1;
        }
        self.stale_queues |= before != after;
    }

    pub(crate) fn pending_reasons(&self) -> &PendingReasons {
        &self.reasons
    }

    pub(crate) fn keys(&self) -> &RecentKeys {
        &self.keys
    }

    pub(crate) fn keys_mut(&mut self) -> &mut RecentKeys {
        &mut self.keys
    }

    pub(crate) fn has_unsaved(&self) -> bool {
        !(self.unsaved.new.is_empty() && self.unsaved.changed.is_empty())
    }

    /// Writes that bring the store up to date, each job once.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        let Unsaved { new, changed, ended } = std::mem::take(&mut self.unsaved);
        let row = |id: &JobId| self.get(*id).or_else(|| ended.get(id));
        let inserts = new.iter().filter_map(row).map(|row| Change::NewJob(Box::new(row.clone())));
        let updates = changed.difference(&new).filter_map(row);
        let updates = updates.map(|row| Change::Job(row.id, Box::new(row.state.clone())));
        inserts.chain(updates).collect()
    }

    pub(crate) fn take_stale_users(&mut self) -> BTreeSet<UserId> {
        std::mem::take(&mut self.stale_users)
    }

    pub(crate) fn take_stale_queues(&mut self) -> bool {
        std::mem::take(&mut self.stale_queues)
    }
}

/// Size of a job's spec as JSON and of its sealed secrets, the measure of its memory.
pub(crate) fn job_bytes(row: &JobRow) -> usize {
    let spec = serde_json::to_vec(&row.spec).map_or(0, |json| json.len());
    spec + row.state.sealed.as_ref().map_or(0, String::len)
}

/// Jobs that the engine would reject have the hash of an empty request.
fn request_hash(row: &JobRow) -> RequestHash {
    let workload = workload(row).ok();
    let of = |workload: &Workload| {
        let Workload { queue, request, tasks, priority, .. } = workload;
        FxBuildHasher.hash_one((queue, request, tasks, priority))
    };
    workload.as_ref().map_or(0, of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANA: UserId = UserId(1);

    fn job(id: i64) -> JobRow {
        JobRow { id: JobId(id), user_id: ANA, queue: "root".into(), ..JobRow::default() }
    }

    #[test]
    fn counters_follow_the_status_of_jobs() {
        let mut table = JobTable::default();
        table.insert(job(1), 10);
        table.insert(job(2), 20);
        assert_eq!(table.queue_jobs("root"), QueueJobs { pending: 2, ..QueueJobs::default() });
        table.update(JobId(1), |state| state.status = JobStatus::Running);
        assert_eq!(
            table.queue_jobs("root"),
            QueueJobs { pending: 1, running: 1, ..QueueJobs::default() }
        );
        assert_eq!((table.live_jobs(ANA).count, table.live_jobs(ANA).bytes), (2, 30));
        table.remove(JobId(1));
        assert_eq!(table.queue_jobs("root"), QueueJobs { pending: 1, ..QueueJobs::default() });
        table.remove(JobId(2));
        assert_eq!(table.queue_jobs("root"), QueueJobs::default());
        assert_eq!((table.live_jobs(ANA).count, table.live_jobs(ANA).bytes), (0, 0));
    }

    #[test]
    fn jobs_with_the_same_request_count_once_and_a_request_until_its_last_job_ends() {
        let mut table = JobTable::default();
        let needs = |id, cores| {
            let mut row = job(id);
            row.spec.cpu_cores_required = Some(agentaflow_api::units::Cores(cores));
            row.spec.job_name = Some(format!("job {id}"));
            row
        };
        for (id, cores) in [(1, 1000), (2, 1000), (3, 2000)] {
            table.insert(needs(id, cores), 0);
        }
        assert_eq!(table.live_jobs(ANA).requests, 2);
        assert!(table.has_request_of(&needs(9, 2000)) && !table.has_request_of(&needs(9, 3000)));
        table.remove(JobId(1));
        assert_eq!(table.live_jobs(ANA).requests, 2);
        table.remove(JobId(2));
        assert_eq!(table.live_jobs(ANA).requests, 1);
    }

    #[test]
    fn pending_jobs_are_counted_by_queue_and_reason_without_leftovers() {
        let mut table = JobTable::default();
        table.insert(job(1), 0);
        table.insert(job(2), 0);
        assert!(table.pending_reasons().is_empty());
        for id in [1, 2] {
            let reason = PendingReason::NoNodes { unreachable: 0 };
            table.update(JobId(id), |state| state.pending_reason = Some(reason));
        }
        let reasons = |code, count| PendingReasons::from([(("root".to_owned(), code), count)]);
        assert_eq!(*table.pending_reasons(), reasons(PendingCode::NoNodes, 2));
        table.update(JobId(1), |state| state.status = JobStatus::Scheduled);
        assert_eq!(*table.pending_reasons(), reasons(PendingCode::NoNodes, 1));
        table.remove(JobId(2));
        assert!(table.pending_reasons().is_empty());
        let restored = JobTable::new(vec![job(3)], JobId(3));
        assert!(restored.pending_reasons().is_empty());
    }

    #[test]
    fn a_job_is_written_once_however_often_it_changed() {
        let mut table = JobTable::default();
        table.insert(job(1), 0);
        table.update(JobId(1), |state| state.epoch = 1);
        assert!(matches!(&table.take_changes()[..], [Change::NewJob(row)] if row.state.epoch == 1));
        table.update(JobId(1), |state| state.epoch = 2);
        table.update(JobId(1), |state| state.epoch = 3);
        table.remove(JobId(1));
        assert!(table.get(JobId(1)).is_none() && table.get_unsaved(JobId(1)).is_some());
        assert!(matches!(&table.take_changes()[..], [Change::Job(_, state)] if state.epoch == 3));
        assert!(!table.has_unsaved());
    }

    #[test]
    fn a_running_task_adds_to_the_cost_of_its_user_until_the_task_ends() {
        let mut table = JobTable::default();
        table.insert(job(1), 0);
        let price = agentaflow_engine::Price {
            gpu_hour: agentaflow_engine::MicroDollars(3_600_000),
            ..Default::default()
        };
        let task = TaskAssignment {
            state: TaskState::Running,
            started_at: Some(Stamp(1000)),
            gpu_milli: 1000,
            price,
            ..TaskAssignment::default()
        };
        table.update(JobId(1), |state| state.tasks = vec![task]);
        assert_eq!(table.running_cost(ANA).at(Stamp(3000)).0, 2000);
        let key = TaskKey { job: JobId(1), epoch: 0, incarnation: 0, task: 0 };
        table.update_task(key, |task| task.state = TaskState::Ended);
        assert_eq!(table.running_cost(ANA), RunningCost::default());
    }
}
