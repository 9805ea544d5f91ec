//! Deletion of old jobs, events and logs, and the storage that each account may use. The ledger is kept.
//!
//! A pass runs at start, then every few minutes, and soon after an account came near its storage limit. It deletes ended
//! jobs and events by age; then logs of ended jobs: by age, of accounts near their limit, and, while all logs together are
//! too large or the disk is nearly full, of the account with the most logs. The oldest log of an account goes first. If the
//! logs of an account near its limit are not enough, its oldest ended jobs and their events go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agentaflow_api::ids::{JobId, UserId};
use agentaflow_api::units::Stamp;
use tokio_util::sync::CancellationToken;

use crate::core::Core;
use crate::logs::{JobLogs, LogStore};
use crate::storage::crowded_above;
use crate::store::{EndedFilter, StoreError};

const INTERVAL: Duration = Duration::from_mins(5);
/// Minimum interval of passes that an account near its limit causes.
const CROWDED_INTERVAL: Duration = Duration::from_secs(30);
/// Jobs deleted in one transaction.
const JOBS_PER_TRANSACTION: u64 = 500;
/// Jobs whose owners are looked up at once.
const OWNERS_PER_QUERY: usize = 64;

/// Limits of stored data; `None` keeps everything.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Age of ended jobs, with their events and logs, and of events of nodes.
    pub jobs: Option<Duration>,
    /// Age of logs of ended jobs.
    pub logs: Option<Duration>,
    /// Size of all logs in bytes.
    pub log_bytes: Option<u64>,
    /// Size of the records, events and logs of one account in bytes.
    pub account_bytes: Option<u64>,
}

impl Default for Retention {
    fn default() -> Self {
        let days = |days: u64| Some(Duration::from_hours(24 * days));
        Self { jobs: days(90), logs: days(30), log_bytes: None, account_bytes: Some(20 << 30) }
    }
}

/// Runs passes until the server stops.
pub(crate) async fn run(
    core: Core,
    logs: Arc<LogStore>,
    retention: Retention,
    stopping: CancellationToken,
) {
    let passes = async {
        loop {
            if let Err(error) = pass(&core, &logs, retention, core.now()).await {
                tracing::warn!(%error, "Cannot delete old data; retrying later");
            }
            tokio::time::sleep(CROWDED_INTERVAL).await;
            let rest = INTERVAL.saturating_sub(CROWDED_INTERVAL);
            let _ = tokio::time::timeout(rest, core.storage().crowded()).await;
        }
    };
    stopping.run_until_cancelled(passes).await;
}

/// Failure of a pass.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot list the logs")]
    Logs(#[from] std::io::Error),
    /// The core accepts no changes now.
    #[error("the server cannot write to its database")]
    Core,
}

/// Deletes data beyond its limits, and publishes the storage of each account.
pub async fn pass(
    core: &Core,
    logs: &LogStore,
    retention: Retention,
    now: Stamp,
) -> Result<(), RetentionError> {
    if let Some(age) = retention.jobs {
        delete_jobs(core, logs, before(now, age)).await?;
    }
    let additions = core.storage().begin_measurement();
    let records = core.store().stored_bytes().await?;
    let mut accounts: BTreeMap<UserId, Account> = BTreeMap::new();
    for stored in records {
        accounts.entry(stored.user).or_default().records = stored.bytes;
    }
    let all = logs.list().await?;
    let owners = owners(core, &all).await?;
    let live: BTreeSet<JobId> = core.live_jobs();
    for log in all {
        // A job without a record was deleted, and its logs with it.
        let Some(owner) = owners.get(&log.job) else { continue };
        let account = accounts.entry(*owner).or_default();
        account.log_bytes += log.bytes;
        if !live.contains(&log.job) {
            account.ended.push(log);
        }
    }
    let mut plan = Plan { accounts, doomed: Vec::new() };
    plan.drop_old(retention.logs.map(|age| before(now, age)));
    plan.drop_above_storage(retention.account_bytes);
    plan.drop_noisiest(retention.log_bytes, logs.missing_space());
    for log in &plan.doomed {
        delete_log(logs, log.job).await;
    }
    if !plan.doomed.is_empty() {
        tracing::info!(jobs = plan.doomed.len(), "Deleted old logs");
    }
    delete_jobs_above_storage(core, logs, &mut plan.accounts, retention.account_bytes).await?;
    let bytes = plan.accounts.iter().map(|(user, account)| (*user, account.bytes())).collect();
    core.storage().finish_measurement(&additions, &bytes);
    Ok(())
}

fn before(now: Stamp, age: Duration) -> Stamp {
    Stamp(now.0.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX)))
}

async fn delete_jobs(core: &Core, logs: &LogStore, cutoff: Stamp) -> Result<(), RetentionError> {
    let mut after = JobId::default();
    loop {
        let filter = EndedFilter { created_before: cutoff, after, limit: JOBS_PER_TRANSACTION };
        let rows = core.store().ended_jobs(&filter).await?;
        let Some(last) = rows.last() else { break };
        after = last.id;
        let expired = rows.iter().filter(|row| row.state.completed_at.is_none_or(|at| at < cutoff));
        let expired: Vec<JobId> = expired.map(|row| row.id).collect();
        forget_jobs(core, logs, expired).await?;
    }
    core.forget_events(cutoff).await.map_err(|_| RetentionError::Core)
}

/// Deletes ended jobs with their events and logs.
async fn forget_jobs(core: &Core, logs: &LogStore, jobs: Vec<JobId>) -> Result<(), RetentionError> {
    core.forget_jobs(jobs.clone()).await.map_err(|_| RetentionError::Core)?;
    for job in jobs {
        delete_log(logs, job).await;
    }
    Ok(())
}

async fn delete_log(logs: &LogStore, job: JobId) {
    if let Err(error) = logs.delete(job).await {
        tracing::warn!(%error, "Cannot delete a log");
    }
}

/// Deletes the oldest ended jobs of accounts whose logs were not enough.
async fn delete_jobs_above_storage(
    core: &Core,
    logs: &LogStore,
    accounts: &mut BTreeMap<UserId, Account>,
    limit: Option<u64>,
) -> Result<(), RetentionError> {
    let Some(limit) = limit else { return Ok(()) };
    for (user, account) in accounts {
        let mut excess = account.excess(limit);
        let mut after = JobId::default();
        while excess > 0 {
            let oldest = core.store().ended_bytes(*user, after, JOBS_PER_TRANSACTION).await?;
            let Some((last, _)) = oldest.last() else { break };
            after = *last;
            let mut doomed = Vec::new();
            for (job, bytes) in oldest {
                if excess == 0 {
                    break;
                }
                doomed.push(job);
                excess = excess.saturating_sub(bytes);
                account.records = account.records.saturating_sub(bytes);
            }
            tracing::info!(%user, jobs = doomed.len(), "Deleted the oldest jobs of an account");
            forget_jobs(core, logs, doomed).await?;
        }
    }
    Ok(())
}

async fn owners(core: &Core, logs: &[JobLogs]) -> Result<BTreeMap<JobId, UserId>, StoreError> {
    let jobs: Vec<JobId> = logs.iter().map(|log| log.job).collect();
    let mut owners = BTreeMap::new();
    for some in jobs.chunks(OWNERS_PER_QUERY) {
        owners.extend(core.store().owners(some).await?);
    }
    Ok(owners)
}

/// Stored data of an account.
#[derive(Debug, Default)]
struct Account {
    /// Bytes of jobs and events.
    records: u64,
    log_bytes: u64,
    ended: Vec<JobLogs>,
}

impl Account {
    fn bytes(&self) -> u64 {
        self.records + self.log_bytes
    }

    /// Bytes to delete so that the account has room again; 0 unless it is nearly full.
    fn excess(&self, limit: u64) -> u64 {
        let bytes = self.bytes();
        if bytes > crowded_above(limit) { bytes - (limit - limit / 10) } else { 0 }
    }

    /// Removes the oldest log of an ended job.
    fn take_oldest(&mut self) -> Option<JobLogs> {
        let oldest = self.ended.iter().enumerate().min_by_key(|(_, log)| log.written)?.0;
        let log = self.ended.swap_remove(oldest);
        self.log_bytes -= log.bytes;
        Some(log)
    }
}

#[derive(Debug)]
struct Plan {
    accounts: BTreeMap<UserId, Account>,
    doomed: Vec<JobLogs>,
}

impl Plan {
    fn drop_old(&mut self, cutoff: Option<Stamp>) {
        let Some(cutoff) = cutoff else { return };
        for account in self.accounts.values_mut() {
            let old = account.ended.extract_if(.., |log| log.written < cutoff);
            for log in old.collect::<Vec<_>>() {
                account.log_bytes -= log.bytes;
                self.doomed.push(log);
            }
        }
    }

    fn drop_above_storage(&mut self, limit: Option<u64>) {
        let Some(limit) = limit else { return };
        for account in self.accounts.values_mut() {
            let mut excess = account.excess(limit);
            while excess > 0 {
                let Some(log) = account.take_oldest() else { break };
                excess = excess.saturating_sub(log.bytes);
                self.doomed.push(log);
            }
        }
    }

    /// Deletes logs of the account with the most logs until all logs fit and the disk has space.
    fn drop_noisiest(&mut self, limit: Option<u64>, missing_space: u64) {
        let total: u64 = self.accounts.values().map(|account| account.log_bytes).sum();
        let excess = limit.map_or(0, |limit| total.saturating_sub(limit)).max(missing_space);
        let mut freed = 0;
        while freed < excess {
            let with_ended = self.accounts.values_mut().filter(|account| !account.ended.is_empty());
            let noisiest = with_ended.max_by_key(|account| account.log_bytes);
            let Some(log) = noisiest.and_then(Account::take_oldest) else { break };
            freed += log.bytes;
            self.doomed.push(log);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(job: i64, bytes: u64, written: i64) -> JobLogs {
        JobLogs { job: JobId(job), bytes, written: Stamp(written) }
    }

    fn plan(accounts: &[(u64, &[JobLogs])]) -> Plan {
        let account = |(number, (records, logs)): (i64, &(u64, &[JobLogs]))| {
            let log_bytes = logs.iter().map(|log| log.bytes).sum();
            (UserId(number), Account { records: *records, log_bytes, ended: logs.to_vec() })
        };
        Plan { accounts: (1..).zip(accounts).map(account).collect(), doomed: Vec::new() }
    }

    fn doomed(plan: &Plan) -> Vec<i64> {
        plan.doomed.iter().map(|log| log.job.0).collect()
    }

    #[test]
    fn logs_go_by_age() {
        let mut plan = plan(&[(0, &[log(1, 5, 10), log(2, 5, 30)]), (0, &[log(3, 5, 19)])]);
        plan.drop_old(Some(Stamp(20)));
        assert_eq!(doomed(&plan), [1, 3]);
        assert_eq!(plan.accounts[&UserId(1)].log_bytes, 5);
    }

    #[test]
    fn an_account_near_its_storage_limit_loses_its_oldest_logs_down_to_nine_tenths() {
        let logs = [log(1, 50, 2), log(2, 50, 1), log(3, 50, 3)];
        let mut plan = plan(&[(10, &logs), (200, &[]), (46, &logs[..1])]);
        plan.drop_above_storage(Some(100));
        assert_eq!(doomed(&plan), [2, 1, 1]);
        assert_eq!(plan.accounts[&UserId(2)].excess(100), 110);
        let nearly = Account { records: 95, ..Account::default() };
        assert_eq!(nearly.excess(100), 0);
    }

    #[test]
    fn on_a_full_disk_the_noisiest_account_loses_its_logs_first() {
        let quiet = [log(1, 10, 1)];
        let noisy = [log(2, 40, 3), log(3, 40, 2), log(4, 40, 4)];
        let mut by_disk = plan(&[(0, &quiet), (0, &noisy)]);
        by_disk.drop_noisiest(None, 70);
        assert_eq!(doomed(&by_disk), [3, 2]);
        let mut by_size = plan(&[(0, &quiet), (0, &noisy)]);
        by_size.drop_noisiest(Some(5), 0);
        assert_eq!(doomed(&by_size), [3, 2, 4, 1]);
    }
}
