//! Cluster-wide policy and queues.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::model::error::InvalidInput;
use crate::model::name::{GpuModel, QueueId, ResourceName};
use crate::model::request::limit;
use crate::model::units::{MAX_AMOUNT, Percent, Span};
use crate::model::workload::checked_name;
use crate::strategy::Strategy;

/// Cluster-wide settings. Every setting can change at run time without loss of pending workloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Strategy of workloads without their own.
    pub strategy: Strategy,
    /// Order of pending workloads; defaults to the strategy's.
    pub order: Option<QueueOrder>,
    /// Waiting time that equals one priority level. Ageing is linear, so the order of two pending
    /// workloads never changes, and every workload becomes the head of its queue eventually.
    pub ageing: Span,
    /// Half-life of past usage in the fair share.
    pub half_life: Span,
    /// Shared placements avoid GPUs above this utilization while any other GPU fits.
    pub utilization_goal: Option<Percent>,
    /// Placed workloads rarely end, so the final packing matters: `least_fragmented` then learns by
    /// simulated placements. With short-lived workloads, the usual case, this setting increases
    /// fragmentation.
    pub work_stays: bool,
    /// Let other workloads start before the blocked head when they do not delay the head.
    pub backfill: bool,
    /// Waiting time after which a blocked head without a known start time (no estimates) gets a
    /// reservation.
    pub patience: Span,
    /// Allow preemption.
    pub preemption: bool,
    /// Minimum run time before preemption, unless the workload sets its own.
    pub min_runtime: Span,
    /// Time after a victim's grace period during which freed GPUs stay reserved for the preemptor.
    pub hold: Span,
    /// First delay after a refused placement; doubles with each refusal up to `max_backoff`.
    pub backoff: Span,
    pub max_backoff: Span,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            strategy: Strategy::LeastUtilized,
            order: None,
            ageing: Span::minutes(30),
            half_life: Span::minutes(24 * 60),
            utilization_goal: None,
            work_stays: false,
            backfill: true,
            patience: Span::minutes(10),
            preemption: true,
            min_runtime: Span(0),
            hold: Span::minutes(5),
            backoff: Span::seconds(1),
            max_backoff: Span::minutes(5),
        }
    }
}

impl Policy {
    /// The explicit order, or the default of the strategy.
    pub fn order(&self) -> QueueOrder {
        self.order.unwrap_or(match self.strategy {
            Strategy::Priority => QueueOrder::Priority,
            _ => QueueOrder::FairShare,
        })
    }
}

/// Order in which pending workloads are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueOrder {
    /// The queue with the smallest share first, then priority with ageing.
    FairShare,
    /// Strict priority, then oldest; no ageing and no shares.
    Priority,
    /// Oldest first.
    Fifo,
    /// Shortest estimate first; workloads without one last.
    Shortest,
    /// Least expected GPU time first; workloads without an estimate last.
    LeastService,
}

impl QueueOrder {
    /// Every order with its name in settings.
    pub const ALL: [(&'static str, Self); 5] = [
        ("fair_share", Self::FairShare),
        ("priority", Self::Priority),
        ("fifo", Self::Fifo),
        ("shortest", Self::Shortest),
        ("least_service", Self::LeastService),
    ];
}

/// A queue: a share of the cluster for a team or project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    pub id: QueueId,
    #[serde(default = "root")]
    pub parent: QueueId,
    /// Weight of the fair share among siblings.
    #[serde(default = "hundred")]
    pub weight: u32,
    /// Quota that the queue can reclaim from borrowers at any time.
    #[serde(default)]
    pub guaranteed: Quota,
    /// Maximum usage; resources without an entry are unlimited.
    #[serde(default)]
    pub limit: Quota,
    /// Allow usage beyond the guarantee while other queues leave quota unused. Without borrowing, the
    /// guarantee is also the limit.
    #[serde(default = "yes")]
    pub borrow: bool,
    /// Highest priority of the queue's workloads.
    #[serde(default = "ten")]
    pub max_priority: u8,
}

/// Amounts of resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Thousandths of a CPU core.
    pub cpu: Option<u64>,
    /// MiB of host memory.
    pub memory: Option<u64>,
    /// MiB of local storage.
    pub storage: Option<u64>,
    /// Thousandths of a GPU, any model.
    pub gpu: Option<u64>,
    /// Thousandths of a GPU by model.
    pub models: BTreeMap<GpuModel, u64>,
    /// Countable resources by name.
    pub resources: BTreeMap<ResourceName, u64>,
}

impl Queue {
    /// A child of the root without quota.
    pub fn new(id: impl Into<QueueId>) -> Self {
        Self {
            id: id.into(),
            parent: root(),
            weight: hundred(),
            guaranteed: Quota::default(),
            limit: Quota::default(),
            borrow: true,
            max_priority: ten(),
        }
    }

    /// Rejects out-of-range values; see [`InvalidInput`].
    pub fn validate(&self) -> Result<(), InvalidInput> {
        checked_name("the queue's name", self.id.as_str())?;
        if self.weight == 0 {
            return Err(InvalidInput::Zero("the queue's weight"));
        }
        limit("the queue's weight", self.weight.into(), 1_000_000)?;
        self.guaranteed.validate()?;
        self.limit.validate()
    }
}

impl Quota {
    fn validate(&self) -> Result<(), InvalidInput> {
        let plain = [self.cpu, self.memory, self.storage, self.gpu].into_iter().flatten();
        let named = self.models.values().chain(self.resources.values()).copied();
        plain.chain(named).try_for_each(|amount| limit("a quota", amount, MAX_AMOUNT))
    }
}

fn root() -> QueueId {
    QueueId::from("root")
}

fn hundred() -> u32 {
    100
}

fn ten() -> u8 {
    10
}

fn yes() -> bool {
    true
}
