//! GPU scheduler core: events in, decisions out, deterministic.
//!
//! The engine is pure: no I/O, no threads, no clock, no randomness. A driver (server, Kubernetes scheduler,
//! simulator) sends events with [`Scheduler::apply`], calls [`Scheduler::decide`], and executes the
//! decisions. Time is an argument.
//!
//! ```
//! use agentaflow_engine::{Decision, Event, Gpu, GpuRequest, MiB, Node, Request, Scheduler, Time, Workload};
//!
//! let mut scheduler = Scheduler::default();
//! let mut node = Node::new("rack1-7");
//! node.gpus.push(Gpu {
//!     id: "0".into(),
//!     model: "NVIDIA H200".into(),
//!     memory: MiB(143_771),
//!     nvlink: None,
//!     mig: Default::default(),
//! });
//! scheduler.apply(Time(0), Event::NodeUpdated(Box::new(node)))?;
//!
//! let request = Request { gpu: GpuRequest::Whole(1), ..Request::default() };
//! scheduler.apply(Time(0), Event::Submitted(Box::new(Workload::new("train", request))))?;
//!
//! let plan = scheduler.decide(Time(0));
//! assert!(matches!(&plan.decisions[..], [Decision::Place(p)] if p.node.as_str() == "rack1-7"));
//! # Ok::<(), agentaflow_engine::Rejected>(())
//! ```
//!
//! Open `pass/decide.rs` first: it is one scheduling pass from beginning to end.

mod apply;
mod explain;
mod hold;
mod lint;
mod model;
mod pass;
mod quota;
mod state;
mod strategy;

pub use explain::explanation::{Alternative, Explanation};
pub use explain::forecast::{Eta, WhatIf};
pub use explain::ranking::NodeRanking;
pub use explain::view::{
    GpuView, LostTaskView, NodeRoom, NodeView, QueueView, ResourceTotals, TaskView, WorkloadState,
    WorkloadView,
};
pub use lint::Violation;
pub use model::adopted::{AdoptedLoss, AdoptedTask, AdoptedWorkload};
pub use model::decision::{
    Decision, Fault, GpuAllocation, GpuAssignment, GpuShare, Placement, Plan, PreemptionReason,
    Victim,
};
pub use model::error::{InvalidInput, Rejected};
pub use model::event::{Demand, Event, ForeignDemand};
pub use model::name::{
    BudgetId, ForeignId, GpuId, GpuModel, NodeId, QueueId, ResourceName, TokenName, WorkloadId,
};
pub use model::node::{
    DeviceSelection, ForeignGpu, ForeignUse, Gpu, GpuHealth, MAX_NODE_GPUS, MigMode, Node, Price,
};
pub use model::policy::{Ageing, Policy, Queue, QueueOrder, Quota};
pub use model::prices::{list_memory, list_price};
pub use model::request::{
    AffinityKind, GpuRequest, MigProfile, NodePreference, Request, TaskAffinity, TokenAccess,
    TopologySpread,
};
pub use model::units::{MiB, MicroDollars, MilliCpu, MilliGpu, Percent, Priority, Span, Time};
pub use model::wait::{
    FitSummary, QuotaResource, Shortfall, UnavailableGpus, WaitClass, WaitReason,
};
pub use model::workload::{Gate, OnFault, Role, Topology, Workload};
pub use model::{labels, mig};
pub use state::scheduler::{RoundRobinCursor, Scheduler};
pub use state::snapshot::records::{
    DemandSnapshot, HoldSnapshot, LostTaskSnapshot, NodeSnapshot, QueueSnapshot, Snapshot,
    TaskSnapshot, WorkloadSnapshot,
};
pub use state::workloads::{Replacement, WorkloadPhase};
pub use strategy::Strategy;
