//! How the whole cluster is run: strategy, order, and the spans that tune them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::model::error::InvalidInput;
use crate::model::name::{GpuModel, QueueId, ResourceName};
use crate::model::request::limit;
use crate::model::units::{MAX_AMOUNT, Percent, Span};
use crate::model::workload::checked_name;
use crate::strategy::Strategy;

/// Cluster-wide settings. All can change at run time; nothing that waits is lost by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// How GPUs are chosen for workloads that do not say.
    pub strategy: Strategy,
    /// Who is served first; when absent, the strategy says.
    pub order: Option<QueueOrder>,
    /// One level of priority is worth this much waiting. Because waiting counts the same for all,
    /// the order of two workloads never changes while they wait, and nobody waits for ever.
    pub ageing: Span,
    /// Past use counts half as much after this long.
    pub half_life: Span,
    /// Shared placements avoid GPUs busier than this while others fit.
    pub utilization_goal: Option<Percent>,
    /// Work stays once it is placed, so what counts is how full nodes end up: `least_fragmented` then
    /// learns by playing. Where work comes and goes, which is the usual case, that would do harm.
    pub work_stays: bool,
    /// Let smaller workloads pass the blocked head when that does not delay it.
    pub backfill: bool,
    /// A blocked head whose start cannot be foreseen (no durations known) gets GPUs kept free for
    /// it after waiting this long.
    pub patience: Span,
    /// Stop running work for waiting work.
    pub preemption: bool,
    /// Running work is not stopped before this long, unless the workload says otherwise.
    pub min_runtime: Span,
    /// How long freed GPUs are held for the beneficiary of a preemption.
    pub hold: Span,
    /// First wait after a refused placement; doubles up to `max_backoff`.
    pub backoff: Span,
    /// Longest wait after a refused placement.
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
    /// The order in force.
    pub fn order(&self) -> QueueOrder {
        self.order.unwrap_or(match self.strategy {
            Strategy::Priority => QueueOrder::Priority,
            _ => QueueOrder::FairShare,
        })
    }
}

/// Who is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueOrder {
    /// The queue with the smallest share first, then priority with ageing.
    FairShare,
    /// Strictly by priority, then oldest: no ageing, no shares.
    Priority,
    /// Oldest first.
    Fifo,
    /// Shortest expected run first; unknown ones last.
    Shortest,
    /// Least expected GPU time first; unknown ones last.
    LeastService,
}

impl QueueOrder {
    /// Every order, by the name that people write.
    pub const ALL: [(&'static str, Self); 5] = [
        ("fair_share", Self::FairShare),
        ("priority", Self::Priority),
        ("fifo", Self::Fifo),
        ("shortest", Self::Shortest),
        ("least_service", Self::LeastService),
    ];
}

/// A queue: a share of the cluster for some people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Its name.
    pub id: QueueId,
    /// The queue that it is part of.
    #[serde(default = "root")]
    pub parent: QueueId,
    /// Its weight among its siblings when capacity is short.
    #[serde(default = "hundred")]
    pub weight: u32,
    /// What it gets back from borrowers whenever it needs it.
    #[serde(default)]
    pub guaranteed: Quota,
    /// What it never exceeds; what is not named here is not limited.
    #[serde(default)]
    pub limit: Quota,
    /// May use more than guaranteed while others do not need it. Without borrowing, what is
    /// guaranteed is also the limit.
    #[serde(default = "yes")]
    pub borrow: bool,
    /// Its workloads have at most this priority.
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
    /// A queue below the root with no quota.
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

    /// Refuses values that cannot be right; see [`InvalidInput`].
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
