//! Billing: usage and cost.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{JobId, LedgerEntryId, MicroUsd, UserId};
use crate::units::{Cores, Dollars, GpuAmount, Stamp};

/// An entry of the append-only ledger.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LedgerEntry {
    /// Increases with every entry.
    pub id: LedgerEntryId,
    pub at: Stamp,
    pub kind: LedgerKind,
    pub user_id: UserId,
    pub job_id: Option<JobId>,
    /// Attempt of the job, from 1.
    pub attempt: Option<u32>,
    /// Number of the task, from 0.
    pub task: Option<u32>,
    pub queue: Option<String>,
    /// `gpu-…` name of the node.
    pub node_id: Option<String>,
    /// To a thousandth of a GPU.
    pub gpus: GpuAmount,
    pub cpu_cores: Cores,
    /// In MiB.
    pub memory: u64,
    pub duration_ms: u64,
    /// Millionths of a dollar: positive is cost, negative is credit.
    pub micros: MicroUsd,
    /// The same amount in dollars.
    pub amount: Dollars,
    pub note: Option<String>,
}

/// Kind of a ledger entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LedgerKind {
    /// Cost of a job.
    #[default]
    Usage,
    /// Payment by an admin.
    Credit,
    /// Correction of an earlier entry.
    Correction,
}

impl LedgerKind {
    /// Word in JSON and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Credit => "credit",
            Self::Correction => "correction",
        }
    }

    /// Kind for a stored word.
    pub fn from_word(word: &str) -> Self {
        match word {
            "credit" => Self::Credit,
            "correction" => Self::Correction,
            _ => Self::Usage,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageRow {
    /// User name, queue, node, day or job number, depending on the grouping.
    pub key: String,
    /// Name of the job, when grouped by job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number of jobs with usage.
    pub jobs: u64,
    pub gpu_hours: f64,
    pub cpu_hours: f64,
    pub memory_gb_hours: f64,
    /// Millionths of a dollar.
    pub micros: MicroUsd,
    /// The same amount in dollars.
    pub cost: Dollars,
}

/// Allocated and really used GPU time, and the difference in money. Only time in which the use was measured counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WasteRow {
    /// User name, queue or job number, depending on the grouping.
    pub key: String,
    /// Name of the job, when grouped by job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Owner of the job, when grouped by job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Number of jobs whose use was measured.
    pub jobs: u64,
    /// Number of them that still run.
    pub running: u64,
    /// Allocated GPU hours.
    pub gpu_hours: f64,
    /// GPU hours in which kernels ran.
    pub gpu_hours_used: f64,
    /// Allocated GPU hours in which no kernel ran.
    pub gpu_hours_wasted: f64,
    /// Allocated GiB hours of GPU memory of the jobs whose memory was measured.
    pub gpu_memory_gb_hours: f64,
    /// The same with the peak of each job.
    pub gpu_memory_gb_hours_used: f64,
    /// Cost of the allocated GPUs in millionths of a dollar.
    pub micros: MicroUsd,
    /// The same amount in dollars.
    pub cost: Dollars,
    /// Cost of the wasted GPU hours in millionths of a dollar.
    pub lost_micros: MicroUsd,
    /// The same amount in dollars.
    pub lost: Dollars,
    /// Calculation of the lost amount.
    pub arithmetic: String,
    /// Smaller request that would have done, when grouped by job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smaller: Option<SmallerRequest>,
}

/// Request with which a job would have run as well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SmallerRequest {
    /// GPUs of a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_count: Option<u32>,
    /// Share of one GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_fraction: Option<f64>,
    /// Calculation of the request.
    pub arithmetic: String,
    /// Dollars that the job would have cost less.
    pub saved: Dollars,
}

/// Credit by an admin; a negative amount withdraws credit.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Credit {
    pub amount: Dollars,
    pub note: Option<String>,
}
