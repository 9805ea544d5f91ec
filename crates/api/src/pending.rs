//! Reasons for which a job is pending, as data.
//!
//! The server renders the message; clients decide on [`PendingReason`] and its code.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use crate::shortfall::{FitSummary, NodesShort, RuntimeNeed, Shortfall};
use crate::units::{Dollars, Stamp};
use crate::wire::wire_enum;

wire_enum! {
    /// Code of a pending reason.
    pub enum PendingCode else Unknown {
        /// The cluster has no nodes.
        NoNodes = "NoNodes",
        /// No node has room now.
        NoRoom = "NoRoom",
        /// No node would have room even when empty.
        NeverFits = "NeverFits",
        /// No node has the runtime that the job needs.
        NoRuntime = "NoRuntime",
        /// Only a part of the gang fits.
        GangIncomplete = "GangIncomplete",
        /// The queue, or one above it, is at its limit.
        QuotaExceeded = "QuotaExceeded",
        /// The free room is reserved for another job.
        Reserved = "Reserved",
        /// Other jobs are being stopped to make room.
        Preempting = "Preempting",
        /// A placement failed and is retried later.
        BackingOff = "BackingOff",
        /// The owner's budget does not cover the job.
        BudgetExceeded = "BudgetExceeded",
        /// The server cannot decrypt the secrets of the job.
        SecretsUnavailable = "SecretsUnavailable",
        /// The driver does not permit a start yet.
        Gated = "Gated",
        /// The Kubernetes driver cannot schedule the pod as it is.
        Parked = "Parked",
        /// A code that this version does not know.
        Unknown = "Unknown",
    }
}

/// Reason for which a job is pending.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "code")]
pub enum PendingReason {
    /// The cluster has no nodes.
    NoNodes {
        /// Registered nodes that no agent has connected.
        #[serde(default, skip_serializing_if = "is_zero")]
        unreachable: u32,
    },
    /// No node has room now.
    NoRoom(FitSummary),
    /// No node would have room even when empty.
    NeverFits(FitSummary),
    /// Only a part of the gang fits.
    GangIncomplete {
        /// Tasks that must start together.
        needs: u32,
        /// Tasks that fit now.
        fits: u32,
        /// True if an empty cluster would fit all tasks.
        fits_when_empty: bool,
        /// Shortfalls for one more task.
        summary: FitSummary,
    },
    /// The queue, or one above it, is at its limit. Amounts are in the unit of the resource.
    QuotaExceeded {
        /// Queue at its limit.
        queue: String,
        resource: QuotaResource,
        limit: u64,
        used: u64,
        /// Amount reserved for jobs that are ahead in the queue.
        #[serde(default)]
        reserved: u64,
        /// Amount that this job adds.
        requested: u64,
    },
    /// The free room is reserved for another job.
    Reserved {
        /// Job that holds the reservation.
        by: String,
        /// Expected start of that job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Stamp>,
    },
    /// Other jobs are being stopped to make room.
    Preempting {
        /// Jobs that are being stopped.
        victims: Vec<String>,
        /// Expiry of the reservation.
        until: Stamp,
    },
    /// A placement failed and is retried later.
    BackingOff {
        /// Time of the next attempt.
        until: Stamp,
        /// Failed placements so far.
        refusals: u32,
    },
    /// The owner's budget does not cover the job.
    BudgetExceeded(BudgetShortfall),
    /// The server cannot decrypt the secrets of the job.
    SecretsUnavailable {
        /// File of the server that lacks their key.
        key_file: String,
    },
    /// The driver does not permit a start yet.
    Gated {
        /// Pods of the gang that exist, where the gang is not complete.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        have: Option<u32>,
        /// Pods that the gang needs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        need: Option<u32>,
        /// Text of the system that closed the gate.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// The Kubernetes driver cannot schedule the pod as it is.
    Parked {
        /// Reason of the pod's condition.
        reason: String,
        /// Message of the pod's condition.
        note: String,
    },
    /// A reason of which only the code and the rendered message were stored.
    Reported { reason: PendingCode, note: String },
    /// A reason that this version does not know.
    #[serde(other)]
    Unknown,
}

impl PendingReason {
    /// Code of the reason. `NoRuntime` is derived: every shortfall is a missing runtime.
    pub fn code(&self) -> PendingCode {
        match self {
            Self::NoNodes { .. } => PendingCode::NoNodes,
            Self::NoRoom(fit)
            | Self::NeverFits(fit)
            | Self::GangIncomplete { summary: fit, .. }
                if fit.lacks_runtime() =>
            {
                PendingCode::NoRuntime
            }
            Self::NoRoom(_) => PendingCode::NoRoom,
            Self::NeverFits(_) => PendingCode::NeverFits,
            Self::GangIncomplete { .. } => PendingCode::GangIncomplete,
            Self::QuotaExceeded { .. } => PendingCode::QuotaExceeded,
            Self::Reserved { .. } => PendingCode::Reserved,
            Self::Preempting { .. } => PendingCode::Preempting,
            Self::BackingOff { .. } => PendingCode::BackingOff,
            Self::BudgetExceeded(_) => PendingCode::BudgetExceeded,
            Self::SecretsUnavailable { .. } => PendingCode::SecretsUnavailable,
            Self::Gated { .. } => PendingCode::Gated,
            Self::Parked { .. } => PendingCode::Parked,
            Self::Reported { reason, .. } => *reason,
            Self::Unknown => PendingCode::Unknown,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Budget of the owner against the expected cost of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BudgetShortfall {
    /// Owner or queue whose budget it is.
    pub owner: String,
    #[serde(default)]
    pub left: Dollars,
    /// Expected cost of the job, at the highest price of any node.
    #[serde(default)]
    pub cost: Dollars,
}

/// Resource that a quota limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuotaResource {
    /// CPU, in thousandths of a core.
    Cpu,
    /// Memory, in MiB.
    Memory,
    /// Local storage, in MiB.
    Storage,
    /// GPUs, in thousandths.
    Gpu,
    /// GPUs of a model, in thousandths.
    GpuModel(String),
    Named(String),
}

/// Change with which the job would start now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "change", content = "value", rename_all = "snake_case")]
pub enum Alternative {
    Gpus(u32),
    /// This share of a GPU, in thousandths.
    GpuShare(u32),
    /// This much GPU memory, in MiB.
    GpuMemory(u64),
    /// This minimum size of a GPU, in MiB.
    MinGpuMemory(u64),
    /// One of these models.
    GpuModels(Vec<String>),
    /// A gang of this many tasks.
    Tasks(u32),
    /// This much CPU, in thousandths of a core.
    Cpu(u64),
    /// This much host memory, in MiB.
    Memory(u64),
    /// No NVLink requirement.
    WithoutNvlink,
    /// Shared instead of exclusive GPUs.
    Shared,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reason with this code; none if the code is derived from the details of another reason.
    fn sample(code: PendingCode) -> Option<PendingReason> {
        let (until, fit) = (Stamp(0), FitSummary::default);
        let (have, need, note) = (None, None, None);
        Some(match code {
            PendingCode::NoNodes => PendingReason::NoNodes { unreachable: 0 },
            PendingCode::NoRoom => PendingReason::NoRoom(fit()),
            PendingCode::NeverFits => PendingReason::NeverFits(fit()),
            PendingCode::NoRuntime => return None,
            PendingCode::GangIncomplete => PendingReason::GangIncomplete {
                needs: 2,
                fits: 1,
                fits_when_empty: true,
                summary: fit(),
            },
            PendingCode::QuotaExceeded => PendingReason::QuotaExceeded {
                queue: "q".to_owned(),
                resource: QuotaResource::Gpu,
                limit: 1,
                used: 1,
                reserved: 0,
                requested: 1,
            },
            PendingCode::Reserved => PendingReason::Reserved { by: "1".to_owned(), until: None },
            PendingCode::Preempting => PendingReason::Preempting { victims: Vec::new(), until },
            PendingCode::BackingOff => PendingReason::BackingOff { until, refusals: 1 },
            PendingCode::BudgetExceeded => {
                PendingReason::BudgetExceeded(BudgetShortfall::default())
            }
            PendingCode::SecretsUnavailable => {
                PendingReason::SecretsUnavailable { key_file: String::new() }
            }
            PendingCode::Gated => PendingReason::Gated { have, need, note },
            PendingCode::Parked => {
                PendingReason::Parked { reason: String::new(), note: String::new() }
            }
            PendingCode::Unknown => PendingReason::Unknown,
        })
    }

    #[test]
    fn the_tag_of_a_reason_is_its_code() {
        for code in PendingCode::ALL.iter().copied() {
            let Some(reason) = sample(code) else { continue };
            assert_eq!(reason.code(), code);
            assert_eq!(serde_json::to_value(&reason).unwrap()["code"], code.as_str());
        }
    }

    #[test]
    fn a_reason_is_tagged_with_its_code() {
        let summary = FitSummary {
            nodes: 2,
            shortfalls: vec![NodesShort {
                count: 2,
                shortfall: Shortfall::FreeGpus { requested: 8, available: 2 },
            }],
        };
        let reason = PendingReason::NoRoom(summary);
        let json = serde_json::to_value(&reason).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "code": "NoRoom",
                "nodes": 2,
                "shortfalls": [{"count": 2, "shortfall": "free_gpus", "requested": 8, "available": 2}],
            })
        );
        assert_eq!(serde_json::from_value::<PendingReason>(json).unwrap(), reason);
        assert_eq!(reason.code().as_str(), "NoRoom");
    }

    #[test]
    fn a_reason_of_a_newer_server_reads_as_unknown() {
        let json = serde_json::json!({"code": "BrandNew", "x": 1});
        assert_eq!(serde_json::from_value::<PendingReason>(json).unwrap(), PendingReason::Unknown);
    }

    #[test]
    fn nodes_that_all_lack_a_runtime_have_a_code_of_their_own() {
        let shortfall = Shortfall::Runtime { runtime: RuntimeNeed::Docker };
        let summary = FitSummary { nodes: 1, shortfalls: vec![NodesShort { count: 1, shortfall }] };
        assert_eq!(PendingReason::NeverFits(summary).code(), PendingCode::NoRuntime);
    }
}
