//! Budgets: jobs that would exceed one stay pending, running jobs that exceed one are warned about, then stopped.

use std::collections::BTreeSet;

use agentaflow_api::account::Role;
use agentaflow_api::error::ResourceKind;
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{JobId, MicroUsd, UserId};
use agentaflow_api::job::{JobStatus, TaskState};
use agentaflow_api::link::StopCause;
use agentaflow_api::pending::BudgetShortfall;
use agentaflow_api::units::{Dollars, Stamp};
use agentaflow_engine::{Event, Gate};

use super::budget_book::{BudgetedJob, GateChange};
use super::job::workload::{expected_ms, workload, workload_id};
use super::pricing::{self, RunningCost};
use super::state::State;
use super::stop::requeues;
use crate::api_error::ApiError;
use crate::store::{JobRow, UserRow};

impl State {
    /// Updates the gates of pending jobs whose owners have a budget. In the order of submission, each job passes while
    /// the budget covers its expected cost, which is then reserved.
    pub(super) fn update_budget_gates(&mut self) {
        let moved = self.jobs.take_moved();
        let mut users = self.ledger.take_stale_budgets();
        users.extend(moved.keys());
        let price = self.nodes.highest_price(self.settings.default_price);
        users.extend(self.budgets.set_price(price));
        for id in users {
            let user =
                self.directory.read().users.get(&id).filter(|user| has_budget(user)).cloned();
            let Some(user) = user else {
                self.budgets.close(id);
                // Jobs of owners whose budget was removed pass.
                for job in self.jobs.gated_of(id) {
                    self.set_gate(job, None);
                }
                continue;
            };
            self.enter_budget(id, moved.get(&id));
            for GateChange { job, short } in self.check_budget(&user) {
                let gate = short.map(|(left, cost)| BudgetShortfall {
                    owner: user.username.clone(),
                    left: Dollars(left),
                    cost: Dollars(cost),
                });
                self.set_gate(job, gate);
            }
        }
    }

    fn users_with_budget(&self) -> Vec<UserRow> {
        let directory = self.directory.read();
        directory.users.values().filter(|user| has_budget(user)).cloned().collect()
    }

    /// Brings the book of a user up to date. `moved` are the jobs that became pending, or no longer are.
    fn enter_budget(&mut self, user: UserId, moved: Option<&BTreeSet<JobId>>) {
        let entries: Vec<(JobId, Option<(BudgetedJob, bool)>)> =
            if self.budgets.user(user).is_some() {
                moved.into_iter().flatten().map(|id| (*id, self.budgeted_job(*id))).collect()
            } else {
                self.jobs.of_user(user).map(|job| (job.id, self.budgeted_job(job.id))).collect()
            };
        let book = self.budgets.open(user);
        for (id, entry) in entries {
            match entry {
                Some((job, gated)) => book.insert(id, job, gated),
                None => book.remove(id),
            }
        }
    }

    /// Entry of a pending job; true if a budget keeps it pending now.
    fn budgeted_job(&self, id: JobId) -> Option<(BudgetedJob, bool)> {
        let job = self.jobs.get(id).filter(|job| job.state.status == JobStatus::Pending)?;
        let workload = workload(job).ok()?;
        let requested = pricing::expected(&workload.request, workload.tasks);
        let entry = BudgetedJob::new(requested, self.budgeted_ms(job));
        Some((entry, job.state.gate.is_some()))
    }

    fn check_budget(&mut self, user: &UserRow) -> Vec<GateChange> {
        let now = self.now();
        let Some(MicroUsd(mut left)) = self.ledger.remaining(user, now) else { return Vec::new() };
        for job in self.jobs.placed_of(user.id) {
            left = left.saturating_sub(self.reserved_cost(job, now).0);
        }
        self.budgets.open(user.id).check(left, user.prepaid)
    }

    /// Run time that a budget must cover: the expected one, at least the grace for which a job may run after its budget
    /// is exhausted.
    fn budgeted_ms(&self, job: &JobRow) -> u64 {
        expected_ms(job).max(self.settings.budget_grace.0)
    }

    /// Expected cost of a placed job that is not billed yet.
    fn reserved_cost(&self, job: &JobRow, now: Stamp) -> MicroUsd {
        let live = job.state.tasks.iter().filter(|task| task.state != TaskState::Ended);
        let expected = pricing::tasks_cost(job, live, self.budgeted_ms(job));
        expected.max(RunningCost::of_job(job).at(now))
    }

    fn set_gate(&mut self, id: JobId, gate: Option<BudgetShortfall>) {
        let Some(job) = self.jobs.get(id) else { return };
        if job.state.gate == gate {
            return;
        }
        let changes_start = job.state.gate.is_some() != gate.is_some();
        self.jobs.update(id, |state| state.gate.clone_from(&gate));
        // The engine knows no amounts.
        if !changes_start {
            return;
        }
        let gate = gate.map(|short| Gate::Budget(short.owner));
        self.engine.apply(Event::GateChanged { workload: workload_id(id), gate });
    }

    /// Warns owners whose running jobs exceed their budget, and stops the jobs after the grace period.
    pub(super) fn enforce_budgets(&mut self) {
        let now = self.now();
        for user in self.users_with_budget() {
            let running = self.jobs.running_cost(user.id).at(now);
            let exceeded = self.ledger.remaining(&user, now).is_some_and(|left| running > left);
            let is_running = |job: &&JobRow| job.state.status == JobStatus::Running;
            let jobs = self.jobs.placed_of(user.id).filter(is_running).map(|job| job.id);
            for job in jobs.collect::<Vec<_>>() {
                self.warn_or_stop(job, exceeded);
            }
        }
    }

    fn warn_or_stop(&mut self, id: JobId, exceeded: bool) {
        let (grace, now) = (self.settings.budget_grace, self.now());
        let Some(state) = self.jobs.get(id).map(|job| &job.state) else { return };
        match (exceeded, state.warned_at) {
            (false, None) => {}
            (false, Some(_)) => {
                self.jobs.update(id, |state| state.warned_at = None);
                self.job_event(id, EventKind::BudgetRestored, "Budget restored; job resumes");
            }
            (true, None) => {
                self.jobs.update(id, |state| state.warned_at = Some(now));
                let delay = agentaflow_explain::span(grace);
                let message =
                    format!("the budget of the owner is exhausted; the job is stopped in {delay}");
                self.job_event(id, EventKind::BudgetWarning, message);
            }
            (true, Some(since)) => {
                let elapsed = now.0.saturating_sub(since.0);
                if elapsed >= grace.0 as i64 && state.stopping.is_none_or(requeues) {
                    let message = "the job is stopped: the budget of the owner is exhausted";
                    self.job_event(id, EventKind::BudgetExceeded, message);
                    self.stop_tasks(id, StopCause::BudgetExceeded, None);
                }
            }
        }
    }

    /// Books a payment, or a withdrawal if negative.
    pub(super) fn credit_account(
        &mut self,
        user: UserId,
        amount: MicroUsd,
        note: Option<String>,
    ) -> Result<(), ApiError> {
        if !self.directory.read().users.contains_key(&user) {
            return Err(ApiError::not_found(ResourceKind::User, user));
        }
        if amount.0 == 0 {
            return Err(ApiError::invalid("amount", "the amount must not be 0"));
        }
        let now = self.now();
        let entry = self.ledger.book_credit(user, amount, note, now);
        self.journal.write(self.ledger.write_of(entry));
        Ok(())
    }
}

fn has_budget(user: &UserRow) -> bool {
    user.prepaid || user.spending_limit.is_some() && user.role != Role::Viewer
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use agentaflow_api::job::JobSpec;
    use rustix::time::{ClockId, clock_gettime};

    use super::super::clock::{Clock, WallClock};
    use super::*;
    use crate::directory::SharedDirectory;
    use crate::secrets::Keyring;
    use crate::settings::Settings;
    use crate::store::Loaded;

    const ANA: UserId = UserId(1);
    const JOBS: i64 = 20_000;

    fn job(id: i64) -> JobRow {
        let spec = JobSpec { gpu_count: Some(1), ..JobSpec::default() };
        JobRow { id: JobId(id), user_id: ANA, queue: "root".into(), spec, ..JobRow::default() }
    }

    /// Time of the processor, which does not depend on other programs.
    fn busy() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    fn state(dir: &std::path::Path) -> State {
        let user = UserRow { id: ANA, prepaid: true, active: true, ..UserRow::default() };
        let jobs = (1..=JOBS).map(job).collect();
        let loaded = Loaded { users: vec![user], jobs, ..Loaded::default() };
        State::load(
            Arc::new(Settings::new("127.0.0.1:0".parse().unwrap(), dir.to_owned())),
            Arc::new(Keyring::load(&dir.join("secret-key")).unwrap()),
            SharedDirectory::default(),
            loaded,
            Clock::start(&WallClock::default()),
            None,
        )
    }

    /// A check of all jobs takes more than 100 ms here.
    #[test]
    fn a_change_beside_many_budgeted_jobs_takes_little_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = state(dir.path());
        state.update_budget_gates();
        assert_eq!(state.jobs.gated_of(ANA).len(), JOBS as usize);
        let start = busy();
        let changes = 50;
        for id in JOBS + 1..=JOBS + changes {
            state.engine.apply(Event::Submitted(Box::new(workload(&job(id)).unwrap())));
            state.jobs.insert(job(id), 100);
            state.update_budget_gates();
        }
        let each = busy().saturating_sub(start) / changes as u32;
        assert!(each < Duration::from_millis(10), "{each:?}");
        assert_eq!(state.jobs.gated_of(ANA).len(), (JOBS + changes) as usize);
        state.credit_account(ANA, MicroUsd(i64::MAX / 2), None).unwrap();
        state.update_budget_gates();
        assert_eq!(state.jobs.gated_of(ANA), []);
    }
}
