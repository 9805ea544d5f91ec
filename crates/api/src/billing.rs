//! Money: what was used and what it cost.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::units::{Cores, Dollars, Stamp};

/// One line of the ledger, which only grows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LedgerEntry {
    /// Counts up.
    pub id: i64,
    /// When it was written.
    pub at: Stamp,
    pub kind: LedgerKind,
    /// Who pays or paid.
    pub user_id: i64,
    /// The job.
    pub job_id: Option<i64>,
    /// Which try of it.
    pub attempt: Option<u32>,
    /// Which task of it.
    pub task: Option<u32>,
    /// The queue.
    pub queue: Option<String>,
    /// The `gpu-…` name of the node.
    pub node_id: Option<String>,
    /// GPUs, to a thousandth.
    pub gpus: Cores,
    /// CPU cores.
    pub cpu_cores: Cores,
    /// MiB of memory.
    pub memory: u64,
    /// Milliseconds.
    pub duration_ms: u64,
    /// Millionths of a dollar: positive is cost, negative is credit.
    pub micros: i64,
    /// The same in dollars.
    pub amount: Dollars,
    /// In words.
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

    /// Kind of a word of the store.
    pub fn from_word(word: &str) -> Self {
        match word {
            "credit" => Self::Credit,
            "correction" => Self::Correction,
            _ => Self::Usage,
        }
    }
}

/// Use of the system, summed up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageRow {
    /// The user's name, the queue, the node, the day or the job's number.
    pub key: String,
    /// The job's name, where jobs are told apart and it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Jobs that used something.
    pub jobs: u64,
    /// GPU hours.
    pub gpu_hours: f64,
    /// CPU core hours.
    pub cpu_hours: f64,
    /// GiB hours of memory.
    pub memory_gb_hours: f64,
    /// Millionths of a dollar.
    pub micros: i64,
    /// The same in dollars.
    pub cost: Dollars,
}

/// Money paid in (or taken back, when negative) by an admin.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Credit {
    /// Dollars.
    pub amount: Dollars,
    /// In words.
    pub note: Option<String>,
}
