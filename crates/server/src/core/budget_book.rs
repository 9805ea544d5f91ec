//! Pending jobs of users with a budget: their costs in the order of submission, and the ones that the budget covers.
//!
//! An account may have 100,000 pending jobs, and a check follows every transaction that changes one of them. A check stops
//! at the first job after which nothing can change.

use std::collections::{BTreeMap, BTreeSet};

use agentaflow_api::ids::{JobId, UserId};
use agentaflow_engine::Price;

use super::pricing::{self, Allocation};

/// Gated jobs whose reasons show the amounts of the last check. All other jobs show the amounts of their own last change.
const SHOWN: usize = 100;

/// Owner of the budgeted jobs of all users.
#[derive(Debug, Default)]
pub(crate) struct BudgetBook {
    users: BTreeMap<UserId, UserBook>,
    price: Price,
}

/// Pending jobs of one user.
#[derive(Debug, Default)]
pub(crate) struct UserBook {
    jobs: BTreeMap<JobId, BudgetedJob>,
    /// Jobs that passed the last check, and jobs that no check saw.
    covered: BTreeSet<JobId>,
    /// Sum of all costs.
    total: i64,
    /// No job costs less.
    cheapest: i64,
    /// Price of the costs.
    price: Price,
}

/// Cost that a budget must cover.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BudgetedJob {
    pub(crate) requested: Allocation,
    /// Expected run time.
    pub(crate) ms: u64,
    cost: i64,
}

/// Result of a check for one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GateChange {
    pub(crate) job: JobId,
    /// Amount that is left for the job, and its cost; none if the budget covers the job.
    pub(crate) short: Option<(i64, i64)>,
}

impl BudgetedJob {
    pub(crate) fn new(requested: Allocation, ms: u64) -> Self {
        Self { requested, ms, cost: 0 }
    }
}

impl BudgetBook {
    /// Jobs of a user; none before [`BudgetBook::open`].
    pub(crate) fn user(&mut self, user: UserId) -> Option<&mut UserBook> {
        self.users.get_mut(&user)
    }

    pub(crate) fn open(&mut self, user: UserId) -> &mut UserBook {
        let price = self.price;
        self.users.entry(user).or_insert_with(|| UserBook { price, ..UserBook::default() })
    }

    /// Sets the price of all costs. Returns the users whose costs changed.
    pub(crate) fn set_price(&mut self, price: Price) -> Vec<UserId> {
        if self.price == price {
            return Vec::new();
        }
        self.price = price;
        self.users.values_mut().for_each(|book| book.set_price(price));
        self.users.keys().copied().collect()
    }

    /// Removes the jobs of a user without a budget.
    pub(crate) fn close(&mut self, user: UserId) {
        self.users.remove(&user);
    }
}

impl UserBook {
    pub(crate) fn insert(&mut self, id: JobId, job: BudgetedJob, gated: bool) {
        self.remove(id);
        let cost = pricing::cost(job.requested, self.price, job.ms).0;
        self.total = self.total.saturating_add(cost);
        self.cheapest = if self.jobs.is_empty() { cost } else { self.cheapest.min(cost) };
        self.jobs.insert(id, BudgetedJob { cost, ..job });
        if !gated {
            self.covered.insert(id);
        }
    }

    pub(crate) fn remove(&mut self, id: JobId) {
        if let Some(job) = self.jobs.remove(&id) {
            self.total = self.total.saturating_sub(job.cost);
            self.covered.remove(&id);
        }
    }

    fn set_price(&mut self, price: Price) {
        self.price = price;
        let covered = std::mem::take(&mut self.covered);
        for (id, job) in std::mem::take(&mut self.jobs) {
            self.insert(id, job, !covered.contains(&id));
        }
    }

    /// Lets each job pass while `left` covers its cost, which is then reserved. Returns the jobs whose gate may change.
    pub(crate) fn check(&mut self, mut left: i64, prepaid: bool) -> Vec<GateChange> {
        if self.covered.len() == self.jobs.len() && left > self.total {
            return Vec::new();
        }
        let mut changes = Vec::new();
        let (mut gated, mut cheapest) = (0, i64::MAX);
        for (id, job) in &self.jobs {
            // A prepaid account starts nothing on credit, not even jobs that cost nothing.
            let exhausted = left < self.cheapest || (prepaid && left <= 0);
            if exhausted && gated >= SHOWN {
                let rest = self.covered.split_off(id);
                let cost = |id: &JobId| self.jobs.get(id).map_or(0, |job| job.cost);
                changes.extend(
                    rest.iter().map(|id| GateChange { job: *id, short: Some((left, cost(id))) }),
                );
                return changes;
            }
            cheapest = cheapest.min(job.cost);
            if job.cost <= left && (left > 0 || !prepaid) {
                left -= job.cost;
                if self.covered.insert(*id) {
                    changes.push(GateChange { job: *id, short: None });
                }
                continue;
            }
            gated += 1;
            if self.covered.remove(id) || gated <= SHOWN {
                changes.push(GateChange { job: *id, short: Some((left, job.cost)) });
            }
        }
        self.cheapest = cheapest;
        changes
    }
}

#[cfg(test)]
mod tests {
    use agentaflow_engine::MicroDollars;

    use super::*;

    fn book(costs: &[i64]) -> UserBook {
        let mut book = UserBook::default();
        let gpu_hour = MicroDollars(1_000_000);
        book.set_price(Price { gpu_hour, ..Price::default() });
        for (index, cost) in costs.iter().enumerate() {
            let requested = Allocation { gpu_milli: 1000, ..Allocation::default() };
            // A job costs one micro dollar for each 3.6 milliseconds.
            let ms = (*cost as u64 * 36).div_ceil(10);
            book.insert(JobId(index as i64 + 1), BudgetedJob::new(requested, ms), false);
        }
        book
    }

    fn gated(changes: &[GateChange]) -> Vec<(i64, Option<(i64, i64)>)> {
        changes.iter().map(|change| (change.job.0, change.short)).collect()
    }

    #[test]
    fn each_job_passes_while_the_budget_covers_it_in_the_order_of_submission() {
        let mut book = book(&[50, 100, 30]);
        assert_eq!(gated(&book.check(1000, false)), []);
        assert_eq!(gated(&book.check(90, false)), [(2, Some((40, 100)))]);
        assert_eq!(gated(&book.check(60, false)), [(2, Some((10, 100))), (3, Some((10, 30)))]);
        assert_eq!(gated(&book.check(180, false)), [(2, None), (3, None)]);
    }

    #[test]
    fn an_account_without_a_balance_starts_no_job_that_costs_nothing() {
        let mut book = book(&[0, 0]);
        assert_eq!(gated(&book.check(0, false)), []);
        assert_eq!(gated(&book.check(0, true)), [(1, Some((0, 0))), (2, Some((0, 0)))]);
        assert_eq!(gated(&book.check(1, true)), [(1, None), (2, None)]);
    }

    #[test]
    fn a_check_of_an_exhausted_budget_gates_a_job_at_the_end_and_leaves_the_rest_as_it_is() {
        let mut book = book(&[10; 1000]);
        assert_eq!(book.check(5, false).len(), 1000);
        let job = BudgetedJob::new(Allocation { gpu_milli: 1000, ..Allocation::default() }, 36);
        book.insert(JobId(2000), job, false);
        let changes = gated(&book.check(5, false));
        assert_eq!(changes.last(), Some(&(2000, Some((5, 10)))));
        assert_eq!(changes.len(), SHOWN + 1);
        assert_eq!(gated(&book.check(15, false))[0], (1, None));
    }

    #[test]
    fn a_new_price_changes_all_costs() {
        let mut book = book(&[50, 50]);
        assert_eq!(gated(&book.check(101, false)), []);
        book.set_price(Price { gpu_hour: MicroDollars(2_000_000), ..Price::default() });
        assert_eq!(gated(&book.check(101, false)), [(2, Some((1, 100)))]);
        book.remove(JobId(1));
        assert_eq!(gated(&book.check(101, false)), [(2, None)]);
    }
}
