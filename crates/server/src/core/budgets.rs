//! Budgets: jobs that would exceed one stay pending, running jobs that exceed one are warned about, then stopped.

use agentaflow_api::account::Role;
use agentaflow_api::error::ResourceKind;
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{JobId, MicroUsd, UserId};
use agentaflow_api::job::{JobStatus, TaskState};
use agentaflow_api::link::StopCause;
use agentaflow_api::pending::BudgetShortfall;
use agentaflow_api::units::{Dollars, Stamp};
use agentaflow_engine::{Event, Gate, Price};

use super::job::workload::{expected_ms, workload_id};
use super::pricing::{self, RunningCost};
use super::state::State;
use super::stop::requeues;
use crate::api_error::ApiError;
use crate::store::{Change, JobRow, UserRow};

/// Gate of a pending job after a check of its owner's budget.
struct GateChange {
    job: JobId,
    /// None if the budget covers the job.
    gate: Option<BudgetShortfall>,
}

impl State {
    /// Updates the gates of pending jobs whose owners have a budget. In the order of submission, each job passes while
    /// the budget covers its expected cost, which is then reserved.
    pub(super) fn update_budget_gates(&mut self) {
        if !self.ledger.take_gates_stale() {
            return;
        }
        let limited = self.users_with_budget();
        if !limited.is_empty() {
            let price = self.nodes.highest_price(self.settings.default_price);
            for user in &limited {
                for GateChange { job, gate } in self.check_budget(user, price) {
                    self.set_gate(job, gate);
                }
            }
        }
        // Jobs of owners whose budget was removed pass.
        let has_budget = |job: &&JobRow| limited.iter().any(|user| user.id == job.user_id);
        let open = self.jobs.gated().filter(|job| !has_budget(job)).map(|job| job.id);
        for job in open.collect::<Vec<_>>() {
            self.set_gate(job, None);
        }
    }

    fn users_with_budget(&self) -> Vec<UserRow> {
        let directory = self.directory.read();
        directory.users.values().filter(|user| has_budget(user)).cloned().collect()
    }

    fn check_budget(&mut self, user: &UserRow, price: Price) -> Vec<GateChange> {
        let now = self.now();
        let Some(MicroUsd(mut left)) = self.ledger.remaining(user, now) else { return Vec::new() };
        let is_pending = |job: &&JobRow| job.state.status == JobStatus::Pending;
        for job in self.jobs.of_user(user.id).filter(|job| !is_pending(job)) {
            left = left.saturating_sub(self.reserved_cost(job, now).0);
        }
        let mut gates = Vec::new();
        for job in self.jobs.of_user(user.id).filter(is_pending) {
            let Some(view) = self.engine.scheduler().workload(&workload_id(job.id)) else {
                continue;
            };
            let requested = pricing::expected(&view.workload.request, view.workload.tasks);
            let cost = pricing::cost(requested, price, self.budgeted_ms(job)).0;
            // A prepaid account starts nothing on credit, not even jobs that cost nothing.
            let covered = cost <= left && (left > 0 || !user.prepaid);
            if covered {
                left -= cost;
            }
            let gate = (!covered).then(|| BudgetShortfall {
                owner: user.username.clone(),
                left: Dollars(left),
                cost: Dollars(cost),
            });
            gates.push(GateChange { job: job.id, gate });
        }
        gates
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
            let jobs = self.jobs.of_user(user.id).filter(is_running).map(|job| job.id);
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
        self.journal.write(Change::Ledger(Box::new(entry)));
        Ok(())
    }
}

fn has_budget(user: &UserRow) -> bool {
    user.prepaid || user.spending_limit.is_some() && user.role != Role::Viewer
}
