//! Accounts of users: balance, spending of the month, and entries of the ledger.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use agentaflow_api::billing::{LedgerEntry, LedgerKind};
use agentaflow_api::ids::{LedgerEntryId, MicroUsd, UserId};
use agentaflow_api::units::{Dollars, Stamp};

use super::clock::Clock;
use super::pricing::RunningCost;
use crate::store::{AccountRow, Change, UserRow};

/// Owner of the accounts. Every booking returns the entry to write.
#[derive(Debug)]
pub(crate) struct Ledger {
    accounts: FxHashMap<UserId, Account>,
    clock: Clock,
    last_entry: LedgerEntryId,
    /// Users whose budget or balance changed: their gates need an update.
    stale_budgets: BTreeSet<UserId>,
    /// Users whose account changed since the last publication.
    stale_users: BTreeSet<UserId>,
}

/// Account of a user without the cost of running tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// Credits minus costs.
    balance: MicroUsd,
    /// Costs of `month`.
    spent: MicroUsd,
    /// `2026-11`.
    month: String,
}

/// Published account of a user.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccountView {
    account: Account,
    running: RunningCost,
}

/// Balance of a user and spending of the current month, running tasks included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountSummary {
    pub balance: Dollars,
    pub spent_this_month: Dollars,
}

impl Ledger {
    /// Accounts with their spending in the present month of the clock.
    pub(crate) fn new(rows: Vec<AccountRow>, last_entry: LedgerEntryId, clock: Clock) -> Self {
        let month = clock.month();
        let account = |row: AccountRow| {
            let AccountRow { user, balance, spent } = row;
            (user, Account { balance, spent, month: month.clone() })
        };
        let accounts: FxHashMap<_, _> = rows.into_iter().map(account).collect();
        let stale_users = accounts.keys().copied().collect();
        Self { accounts, clock, last_entry, stale_budgets: BTreeSet::new(), stale_users }
    }

    /// Books the cost of a task. `usage` has every field but its number and amount.
    pub(crate) fn book_usage(&mut self, cost: MicroUsd, usage: LedgerEntry) -> LedgerEntry {
        let account = self.account(usage.user_id, usage.at);
        account.balance = MicroUsd(account.balance.0.saturating_sub(cost.0));
        account.spent = MicroUsd(account.spent.0.saturating_add(cost.0));
        self.number(LedgerEntry {
            kind: LedgerKind::Usage,
            micros: cost,
            amount: Dollars(cost.0),
            ..usage
        })
    }

    /// Books a payment, or, if negative, a withdrawal.
    pub(crate) fn book_credit(
        &mut self,
        user: UserId,
        amount: MicroUsd,
        note: Option<String>,
        at: Stamp,
    ) -> LedgerEntry {
        let account = self.account(user, at);
        account.balance = MicroUsd(account.balance.0.saturating_add(amount.0));
        let negated = MicroUsd(amount.0.saturating_neg());
        self.number(LedgerEntry {
            at,
            kind: LedgerKind::Credit,
            user_id: user,
            micros: negated,
            amount: Dollars(negated.0),
            note,
            ..LedgerEntry::default()
        })
    }

    /// Write of an entry. The month of its day is the one whose budget paid for it.
    pub(crate) fn write_of(&self, entry: LedgerEntry) -> Change {
        let day = self.clock.budget_time(entry.at).day();
        Change::Ledger { day, entry: Box::new(entry) }
    }

    fn number(&mut self, entry: LedgerEntry) -> LedgerEntry {
        self.last_entry = self.last_entry.next();
        self.stale_budgets.insert(entry.user_id);
        self.stale_users.insert(entry.user_id);
        LedgerEntry { id: self.last_entry, ..entry }
    }

    /// Account of the user as of `at`; spending restarts with every month.
    fn account(&mut self, user: UserId, at: Stamp) -> &mut Account {
        let month = self.clock.budget_time(at).month();
        let account = self.accounts.entry(user).or_default();
        if account.start_month(month) {
            self.stale_budgets.insert(user);
        }
        account
    }

    /// Amount that a user may still spend; none without a limit. Running tasks are not subtracted.
    pub(crate) fn remaining(&mut self, user: &UserRow, now: Stamp) -> Option<MicroUsd> {
        self.account(user.id, now).remaining(user.spending_limit, user.prepaid)
    }

    pub(crate) fn view(&self, user: UserId, running: RunningCost) -> AccountView {
        AccountView { account: self.accounts.get(&user).cloned().unwrap_or_default(), running }
    }

    pub(crate) fn mark_budget_stale(&mut self, user: UserId) {
        self.stale_budgets.insert(user);
    }

    pub(crate) fn take_stale_budgets(&mut self) -> BTreeSet<UserId> {
        std::mem::take(&mut self.stale_budgets)
    }

    pub(crate) fn take_stale_users(&mut self) -> BTreeSet<UserId> {
        std::mem::take(&mut self.stale_users)
    }
}

impl Account {
    /// Returns true if a month began.
    fn start_month(&mut self, month: String) -> bool {
        let begins = self.month != month;
        if begins {
            self.month = month;
            self.spent = MicroUsd(0);
        }
        begins
    }

    fn remaining(&self, limit: Option<MicroUsd>, prepaid: bool) -> Option<MicroUsd> {
        let by_limit = limit.map(|limit| MicroUsd(limit.0.saturating_sub(self.spent.0)));
        let by_balance = prepaid.then_some(self.balance);
        by_limit.into_iter().chain(by_balance).min()
    }
}

impl AccountView {
    pub(crate) fn summary(&self, now: Stamp, clock: Clock) -> AccountSummary {
        let running = self.running.at(now).0;
        let same_month = self.account.month == clock.budget_time(now).month();
        let spent = if same_month { self.account.spent.0 } else { 0 };
        AccountSummary {
            balance: Dollars(self.account.balance.0.saturating_sub(running)),
            spent_this_month: Dollars(spent.saturating_add(running)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::WallClock;
    use super::*;

    #[test]
    fn the_smaller_of_limit_and_balance_decides() {
        let account = Account { balance: MicroUsd(50), spent: MicroUsd(70), month: String::new() };
        assert_eq!(account.remaining(None, false), None);
        assert_eq!(account.remaining(Some(MicroUsd(100)), false), Some(MicroUsd(30)));
        assert_eq!(account.remaining(Some(MicroUsd(200)), true), Some(MicroUsd(50)));
    }

    #[test]
    fn spending_of_an_earlier_month_is_not_shown() {
        let account = Account { month: "2020-01".into(), spent: MicroUsd(7), ..Account::default() };
        let view = AccountView { account, running: RunningCost::default() };
        assert_eq!(
            view.summary(Stamp(1_800_000_000_000), Clock::start(&WallClock::default()))
                .spent_this_month,
            Dollars(0)
        );
    }
}
