//! GPU time of jobs beside its use.

use std::ops::Add;

use agentaflow_api::ids::MicroUsd;
use agentaflow_api::job::GpuUsage;

use super::pricing::{self, Allocation};
use crate::store::{GpuAccount, JobRow, TaskAssignment};

impl GpuAccount {
    /// Account of one task that ran for `ran_ms`.
    pub(crate) fn of_task(
        job: &JobRow,
        task: &TaskAssignment,
        ran_ms: u64,
        usage: GpuUsage,
    ) -> Self {
        let gpus = Allocation { gpu_milli: task.gpu_milli, ..Allocation::default() };
        let granted: u64 = task.grants.iter().map(|grant| grant.memory).sum();
        let first = task.grants.first();
        let measured = |mib: u64| usage.memory_peaks.map_or(0, |_| mib.saturating_mul(ran_ms));
        Self {
            // A busy task does not make up for an idle one.
            usage: GpuUsage { used_ms: usage.used_ms.min(usage.allocated_ms), ..usage },
            billed: task.gpu_milli.saturating_mul(ran_ms),
            cost: pricing::cost(gpus, task.price, ran_ms),
            memory_billed: measured(granted),
            memory_used: measured(usage.memory_peaks.unwrap_or(0).min(granted)),
            gpus: task.grants.len() as u32,
            milli: first.map_or(0, |grant| grant.milli),
            memory: first.map_or(0, |grant| grant.memory),
            divisible: job.spec.mig_profile.is_none() && job.spec.exclusive != Some(true),
        }
    }

    /// Billed thousandths of a GPU × milliseconds in which no kernel ran. The mean use while it was measured counts for
    /// the whole time.
    pub(crate) fn wasted(&self) -> u64 {
        self.idle_part(self.billed)
    }

    /// Cost of the wasted time.
    pub(crate) fn lost(&self) -> MicroUsd {
        let cost = u64::try_from(self.cost.0).unwrap_or(0);
        MicroUsd(i64::try_from(self.idle_part(cost)).unwrap_or(i64::MAX))
    }

    fn idle_part(&self, whole: u64) -> u64 {
        let GpuUsage { allocated_ms, used_ms, .. } = self.usage;
        let idle = allocated_ms.saturating_sub(used_ms);
        (u128::from(whole) * u128::from(idle) / u128::from(allocated_ms.max(1))) as u64
    }
}

impl Add for GpuAccount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (one, two) = (self.usage, other.usage);
        Self {
            usage: GpuUsage {
                allocated_ms: one.allocated_ms.saturating_add(two.allocated_ms),
                used_ms: one.used_ms.saturating_add(two.used_ms),
                gpus_used: one.gpus_used.max(two.gpus_used),
                memory_peak: one.memory_peak.max(two.memory_peak),
                memory_peaks: one.memory_peaks.max(two.memory_peaks),
                busiest_minute: one.busiest_minute.max(two.busiest_minute),
            },
            billed: self.billed.saturating_add(other.billed),
            cost: MicroUsd(self.cost.0.saturating_add(other.cost.0)),
            memory_billed: self.memory_billed.saturating_add(other.memory_billed),
            memory_used: self.memory_used.saturating_add(other.memory_used),
            gpus: self.gpus.max(other.gpus),
            milli: self.milli.max(other.milli),
            memory: self.memory.max(other.memory),
            divisible: other.divisible,
        }
    }
}
