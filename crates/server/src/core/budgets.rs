//! Who may still spend: jobs that would break a limit wait, running ones that cross it are warned, then stopped.

use rustc_hash::FxHashMap;

use agentaflow_api::account::Role;
use agentaflow_api::billing::{LedgerEntry, LedgerKind};
use agentaflow_api::event::EventKind;
use agentaflow_api::job::JobStatus;
use agentaflow_api::link::StopCause;
use agentaflow_api::units::{Dollars, Stamp};
use agentaflow_engine::{Event, Gate, Price};

use super::describe::price;
use super::money::{self, Account};
use super::reports::allocation;
use super::state::{State, workload_id};
use crate::api_error::ApiError;
use crate::store::{Change, JobRow, SeatState, UserRow};

/// A job that says nothing about its duration is expected to run this long.
const UNKNOWN_DURATION_MS: u64 = 3_600_000;

impl State {
    /// An account as of now.
    pub(crate) fn account(&mut self, user: i64) -> &mut Account {
        let account = self.accounts.entry(user).or_default();
        account.turn(Stamp::now());
        account
    }

    /// Costs of a user's running jobs that are not in the ledger yet.
    pub(crate) fn accrued(&self, user: i64) -> i64 {
        let now = Stamp::now();
        let jobs = self.jobs.values().filter(|job| job.user_id == user);
        jobs.map(|job| accrued(job, now)).fold(0, i64::saturating_add)
    }

    /// Opens and closes the gates of waiting jobs whose owners have a limit. In the order in which jobs were
    /// handed in, each is let through while the money lasts, with what it is expected to cost set aside.
    pub(crate) fn look_at_gates(&mut self) {
        self.money_moved = false;
        let limited: Vec<UserRow> =
            self.directory.users.values().filter(|user| is_limited(user)).cloned().collect();
        if limited.is_empty() && self.jobs.values().all(|job| job.state.gate.is_none()) {
            return;
        }
        let dearest = self.dearest();
        let mut by_user: FxHashMap<i64, Vec<i64>> = FxHashMap::default();
        for job in self.jobs.values() {
            by_user.entry(job.user_id).or_default().push(job.id);
        }
        for user in &limited {
            let jobs = by_user.remove(&user.id).unwrap_or_default();
            self.gate_jobs_of(user, &jobs, dearest);
        }
        // Whoever is no longer limited is let through.
        let free: Vec<i64> = self
            .jobs
            .values()
            .filter(|job| {
                job.state.gate.is_some() && !limited.iter().any(|user| user.id == job.user_id)
            })
            .map(|job| job.id)
            .collect();
        for job in free {
            self.set_gate(job, None);
        }
    }

    fn gate_jobs_of(&mut self, user: &UserRow, jobs: &[i64], dearest: Price) {
        let Some(mut left) = self.account(user.id).left(user.spending_limit, user.prepaid) else {
            return;
        };
        let now = Stamp::now();
        let mut gates = Vec::new();
        let jobs: Vec<&JobRow> = jobs.iter().filter_map(|job| self.jobs.get(job)).collect();
        for job in jobs.iter().filter(|job| job.state.status != JobStatus::Pending) {
            left = left.saturating_sub(committed(job, now));
        }
        for job in jobs.iter().filter(|job| job.state.status == JobStatus::Pending) {
            let Some(view) = self.engine.workload(&workload_id(job.id)) else { continue };
            let asked = money::expected(&view.workload.request, view.workload.tasks);
            let cost = money::cost(asked, dearest, expected_ms(job));
            let fits = cost <= left;
            if fits {
                left -= cost;
            }
            let why = format!(
                "{} has {} left, and it is expected to cost up to {}",
                user.username,
                Dollars(left),
                Dollars(cost)
            );
            gates.push((job.id, (!fits).then_some(why)));
        }
        for (job, gate) in gates {
            self.set_gate(job, gate);
        }
    }

    fn set_gate(&mut self, id: i64, why: Option<String>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state.gate.is_some() == why.is_some() {
            return;
        }
        job.state.gate.clone_from(&why);
        self.touch(id);
        let gate = why.map(Gate::Budget);
        self.tell(Event::GateChanged { workload: workload_id(id), gate });
    }

    /// The highest price of any node, so that an estimate is never too low.
    pub(crate) fn dearest(&self) -> Price {
        let mut dearest = self.settings.default_price;
        let prices: Vec<Price> = self.nodes.values().map(|node| price(&node.row.spec)).collect();
        if let Some(first) = prices.first() {
            dearest = prices.iter().fold(*first, |most, price| Price {
                gpu_hour: most.gpu_hour.max(price.gpu_hour),
                cpu_hour: most.cpu_hour.max(price.cpu_hour),
                gib_hour: most.gib_hour.max(price.gib_hour),
            });
        }
        dearest
    }

    /// Warns owners whose running jobs crossed their limit, and stops those jobs after the grace.
    pub(crate) fn watch_spending(&mut self) {
        let limited: Vec<UserRow> =
            self.directory.users.values().filter(|user| is_limited(user)).cloned().collect();
        for user in limited {
            let accrued = self.accrued(user.id);
            let left = self.account(user.id).left(user.spending_limit, user.prepaid);
            let crossed = left.is_some_and(|left| accrued > left);
            let running: Vec<i64> = self
                .jobs
                .values()
                .filter(|job| job.user_id == user.id && job.state.status == JobStatus::Running)
                .map(|job| job.id)
                .collect();
            for job in running {
                self.warn_or_stop(job, crossed);
            }
        }
    }

    fn warn_or_stop(&mut self, id: i64, crossed: bool) {
        let grace = self.settings.budget_grace;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let now = Stamp::now();
        match (crossed, job.state.warned_at) {
            (false, None) => {}
            (false, Some(_)) => {
                job.state.warned_at = None;
                self.touch(id);
                self.job_event(id, EventKind::BudgetRestored, "there is money again; it goes on");
            }
            (true, None) => {
                job.state.warned_at = Some(now);
                self.touch(id);
                let when = agentaflow_explain::span(grace);
                let words = format!(
                    "its owner's money is used up; it is stopped in {when} unless there is more"
                );
                self.job_event(id, EventKind::BudgetWarning, words);
            }
            (true, Some(since)) => {
                let over = now.0.saturating_sub(since.0) >= grace.0 as i64;
                if over && job.state.stopping.is_none_or(super::jobs::moves) {
                    self.job_event(
                        id,
                        EventKind::BudgetExceeded,
                        "it is stopped: its owner's money is used up",
                    );
                    self.stop_tasks(id, StopCause::BudgetExceeded, None);
                }
            }
        }
    }

    /// Money paid in or taken back.
    pub(crate) fn credit(
        &mut self,
        user: i64,
        amount: Dollars,
        note: Option<String>,
    ) -> Result<(), ApiError> {
        if !self.directory.users.contains_key(&user) {
            return Err(ApiError::not_found("there is no such user"));
        }
        if amount.0 == 0 {
            return Err(ApiError::invalid("amount", "an amount of money other than 0 is needed"));
        }
        let at = Stamp::now();
        self.ids.0.ledger += 1;
        self.account(user).book(-amount.0, false, at);
        self.money_moved = true;
        self.batch.changes.push(Change::Ledger(Box::new(LedgerEntry {
            id: self.ids.0.ledger,
            at,
            kind: LedgerKind::Credit,
            user_id: user,
            micros: -amount.0,
            amount: Dollars(-amount.0),
            note,
            ..LedgerEntry::default()
        })));
        Ok(())
    }
}

fn is_limited(user: &UserRow) -> bool {
    user.prepaid || user.spending_limit.is_some() && user.role != Role::Viewer
}

/// What a job's running tasks have cost since they began.
pub(crate) fn accrued(job: &JobRow, now: Stamp) -> i64 {
    let running = job.state.seats.iter().filter(|seat| seat.state == SeatState::Running);
    running
        .filter_map(|seat| {
            let ms = now.0.saturating_sub(seat.started_at?.0).max(0) as u64;
            Some(money::cost(allocation(job, seat), seat.price, ms))
        })
        .fold(0, i64::saturating_add)
}

/// What a placed job is expected to cost from now to its end, what it has cost already and is not billed
/// included.
fn committed(job: &JobRow, now: Stamp) -> i64 {
    let expected = expected_ms(job);
    let seats = job.state.seats.iter().filter(|seat| seat.state != SeatState::Ended);
    let whole = seats
        .map(|seat| money::cost(allocation(job, seat), seat.price, expected))
        .fold(0, i64::saturating_add);
    whole.max(accrued(job, now))
}

/// How long a job is expected to run: as it says, else its time-out, else an hour.
pub(crate) fn expected_ms(job: &JobRow) -> u64 {
    let seconds = job.spec.estimated_duration_seconds.or(job.spec.timeout_seconds);
    seconds.map_or(UNKNOWN_DURATION_MS, |seconds| seconds.saturating_mul(1000))
}
