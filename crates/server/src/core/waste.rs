//! Waste: allocated GPU time without use, by user, queue or job, and smaller requests. Pure arithmetic.

use std::collections::BTreeMap;

use agentaflow_api::billing::{SmallerRequest, WasteRow};
use agentaflow_api::ids::{JobId, MicroUsd};
use agentaflow_api::units::Dollars;
use agentaflow_explain::waste::{self as text, HEADROOM, ShareNeeded};

use crate::store::GpuAccount;

/// Thousandths × milliseconds of an hour.
const GPU_HOUR: f64 = 3_600_000_000.0;
/// MiB × milliseconds of a GiB hour.
const GIB_HOUR: f64 = 1024.0 * 3_600_000.0;
/// Proposed shares are multiples of this number of thousandths.
const SHARE_STEP: u64 = 50;
/// A proposal saves at least this number of thousandths.
const LEAST_SAVING: u64 = 100;

/// Grouping of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WasteBy {
    User,
    Queue,
    Job,
}

/// A job whose use of GPUs was measured, with the names for the report.
#[derive(Clone, Debug)]
pub(crate) struct WasteJob {
    pub(crate) id: JobId,
    pub(crate) user: String,
    pub(crate) queue: String,
    pub(crate) name: Option<String>,
    pub(crate) running: bool,
    pub(crate) account: GpuAccount,
}

/// Sums of jobs.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    jobs: u64,
    running: u64,
    billed: u64,
    wasted: u64,
    memory_billed: u64,
    memory_used: u64,
    cost: i64,
    lost: i64,
}

impl Sum {
    fn add(&mut self, job: &WasteJob) {
        let account = &job.account;
        self.jobs += 1;
        self.running += u64::from(job.running);
        self.billed = self.billed.saturating_add(account.billed);
        self.wasted = self.wasted.saturating_add(account.wasted());
        self.memory_billed = self.memory_billed.saturating_add(account.memory_billed);
        self.memory_used = self.memory_used.saturating_add(account.memory_used);
        self.cost = self.cost.saturating_add(account.cost.0);
        self.lost = self.lost.saturating_add(account.lost().0);
    }

    fn row(&self, key: String) -> WasteRow {
        WasteRow {
            key,
            jobs: self.jobs,
            running: self.running,
            gpu_hours: self.billed as f64 / GPU_HOUR,
            gpu_hours_used: self.billed.saturating_sub(self.wasted) as f64 / GPU_HOUR,
            gpu_hours_wasted: self.wasted as f64 / GPU_HOUR,
            gpu_memory_gb_hours: self.memory_billed as f64 / GIB_HOUR,
            gpu_memory_gb_hours_used: self.memory_used as f64 / GIB_HOUR,
            micros: MicroUsd(self.cost),
            cost: Dollars(self.cost),
            lost_micros: MicroUsd(self.lost),
            lost: Dollars(self.lost),
            ..WasteRow::default()
        }
    }
}

/// Rows of a report, the most expensive waste first.
pub(crate) fn report(jobs: &[WasteJob], by: WasteBy) -> Vec<WasteRow> {
    let mut rows = match by {
        WasteBy::Job => jobs.iter().map(job_row).collect(),
        WasteBy::User => grouped(jobs, |job| &job.user),
        WasteBy::Queue => grouped(jobs, |job| &job.queue),
    };
    rows.sort_by(|one, other| {
        let rank = |row: &WasteRow| (row.lost_micros, row.gpu_hours_wasted);
        let (one_rank, other_rank) = (rank(one), rank(other));
        other_rank
            .0
            .cmp(&one_rank.0)
            .then(other_rank.1.total_cmp(&one_rank.1))
            .then_with(|| one.key.cmp(&other.key))
    });
    rows
}

fn grouped(jobs: &[WasteJob], key: fn(&WasteJob) -> &String) -> Vec<WasteRow> {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for job in jobs {
        sums.entry(key(job)).or_default().add(job);
    }
    let row = |(key, sum): (&str, Sum)| {
        let row = sum.row(key.to_owned());
        let arithmetic = text::lost_of_jobs(row.jobs, row.gpu_hours, row.gpu_hours_used, row.lost);
        WasteRow { arithmetic, ..row }
    };
    sums.into_iter().map(row).collect()
}

fn job_row(job: &WasteJob) -> WasteRow {
    let mut sum = Sum::default();
    sum.add(job);
    let row = sum.row(job.id.to_string());
    WasteRow {
        name: job.name.clone(),
        user: Some(job.user.clone()),
        arithmetic: text::lost(row.cost, row.gpu_hours, row.gpu_hours_used, row.lost),
        smaller: smaller_request(&job.account),
        ..row
    }
}

/// Smaller request that would have done: fewer GPUs where some were never used, or a smaller share of a single GPU. Low use
/// of several GPUs proves nothing, because their work may not fit on fewer.
pub(crate) fn smaller_request(account: &GpuAccount) -> Option<SmallerRequest> {
    let (gpus, used) = (account.gpus, account.usage.gpus_used);
    if used < gpus {
        let saved = part(account.cost, u64::from(gpus - used), u64::from(gpus));
        return Some(SmallerRequest {
            gpu_count: Some(used),
            gpu_fraction: None,
            arithmetic: text::fewer_gpus(used, gpus, Dollars(account.cost.0), saved),
            saved,
        });
    }
    if gpus != 1 || !account.divisible {
        return None;
    }
    let requested = u64::from(account.milli);
    let needed = share_needed(account, requested)?;
    if needed.proposed + LEAST_SAVING > requested {
        return None;
    }
    let saved = part(account.cost, requested - needed.proposed, requested);
    Some(SmallerRequest {
        gpu_count: None,
        gpu_fraction: Some(needed.proposed as f64 / 1_000.0),
        arithmetic: text::smaller_share(&needed, Dollars(account.cost.0), saved),
        saved,
    })
}

/// Share for the peak memory and the busiest minute, with headroom.
fn share_needed(account: &GpuAccount, requested: u64) -> Option<ShareNeeded> {
    let memory_peak = account.usage.memory_peak?;
    let busiest_minute = account.usage.busiest_minute;
    let memory = account.memory.checked_mul(1_000)?.checked_div(requested)?;
    let by_memory = (memory_peak * 1_000).div_ceil(memory.max(1));
    let by_kernels = (busiest_minute * 10.0).ceil() as u64;
    let with_headroom = by_memory.max(by_kernels) * (100 + HEADROOM);
    let proposed = with_headroom.div_ceil(100 * SHARE_STEP).max(1) * SHARE_STEP;
    Some(ShareNeeded { memory_peak, memory, busiest_minute, proposed, requested })
}

fn part(cost: MicroUsd, of: u64, whole: u64) -> Dollars {
    let micros = i128::from(cost.0) * i128::from(of) / i128::from(whole.max(1));
    Dollars(i64::try_from(micros).unwrap_or(i64::MAX))
}

#[cfg(test)]
#[path = "waste_tests.rs"]
mod tests;
