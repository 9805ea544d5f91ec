//! Cluster-wide policy and queues.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::model::error::InvalidInput;
use crate::model::name::{GpuModel, QueueId, ResourceName};
use crate::model::request::limit;
use crate::model::units::{MAX_AMOUNT, Percent, Priority, Span};
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
    /// Priority points that pending workloads gain with time.
    pub ageing: Ageing,
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
    pub preemption: bool,
    /// Minimum run time before preemption, unless the workload sets its own.
    pub min_runtime: Span,
    /// Time after a victim's grace period during which freed GPUs stay reserved for the preemptor.
    pub hold: Span,
    /// First delay after a refused placement; doubles with each refusal up to `max_backoff`.
    pub backoff: Span,
    pub max_backoff: Span,
    /// Time during which the place of a lost task of a running workload stays reserved for a replacement, unless
    /// the workload sets its own. Afterwards the workload restarts as a whole.
    pub replacement_wait: Span,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            strategy: Strategy::LeastUtilized,
            order: None,
            ageing: Ageing::one_point_per(Span::minutes(30)),
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
            replacement_wait: Span::minutes(5),
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

/// Priority points that a pending workload gains in a span of time. Points change the order of pending workloads and give
/// no right to preempt.
///
/// Ageing is linear, so the order of two pending workloads never changes, and every workload becomes the head of its queue
/// eventually. Without ageing the order is strict: higher priorities may starve lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ageing {
    /// 0 turns ageing off.
    pub points: u32,
    pub per: Span,
}

impl Ageing {
    pub const OFF: Self = Self { points: 0, per: Span(0) };

    pub const fn one_point_per(per: Span) -> Self {
        Self { points: 1, per }
    }

    pub const fn points_per_minute(points: u32) -> Self {
        Self { points, per: Span::minutes(1) }
    }

    pub const fn is_off(self) -> bool {
        self.points == 0
    }

    /// Pending time in milliseconds that equals a difference in priority; at most about 36,000 years.
    pub(crate) fn time_of(self, priority: i64) -> i64 {
        const MOST: i128 = 1 << 60;
        let time = i128::from(priority) * i128::from(self.per.0) / i128::from(self.points.max(1));
        time.clamp(-MOST, MOST) as i64
    }
}

/// Order in which pending workloads are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueOrder {
    /// The queue with the smallest share first, then priority, with ageing if the policy has it.
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
    #[serde(default = "no_limit")]
    pub max_priority: Priority,
}

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
            max_priority: no_limit(),
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

fn no_limit() -> Priority {
    Priority::MAX
}

fn yes() -> bool {
    true
}
