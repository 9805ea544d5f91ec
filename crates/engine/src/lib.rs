//! Decides where GPU work runs: events in, decisions out, deterministic.
//!
//! The engine is pure: no I/O, no threads, no clock, no randomness. A body (server, Kubernetes
//! scheduler, simulator) tells it what happens with [`Scheduler::apply`], asks what to do with
//! [`Scheduler::decide`], and carries the decisions out. Time is an argument.
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
//! Where to look first: `decide.rs` is one pass from beginning to end.

mod adopt;
mod apply;
mod apply_node;
mod cluster;
mod common;
mod decide;
mod decision;
mod demand;
mod describe;
mod error;
mod event;
mod explain;
mod facts;
mod fault;
mod find;
mod forecast;
pub mod frag;
mod gang;
mod head;
mod hold;
mod index;
pub mod labels;
mod lack;
mod limits;
mod lint;
pub mod mig;
mod name;
mod node;
mod nominate;
mod pending;
mod place;
mod policy;
mod preempt;
mod prices;
mod queues;
mod quota;
mod ranking;
mod reason;
mod reasons;
mod request;
mod reserve;
mod rights;
mod save;
mod scheduler;
mod snapshot;
mod strategy;
mod tally;
mod task;
mod terms;
mod tree;
mod units;
mod view;
mod wait;
mod workload;

pub use adopt::{AdoptedTask, AdoptedWorkload};
pub use decision::{
    Decision, Fault, GpuAllocation, GpuAssignment, GpuShare, Placement, Plan, PreemptionReason,
    Victim,
};
pub use error::{InvalidInput, Rejected};
pub use event::{Demand, Event};
pub use explain::{Alternative, Explanation};
pub use facts::{
    DemandSnapshot, HoldSnapshot, NodeSnapshot, QueueSnapshot, Snapshot, TaskSnapshot,
    WorkloadPhase, WorkloadSnapshot,
};
pub use forecast::{Eta, WhatIf};
pub use lint::Violation;
pub use name::{
    BudgetId, ForeignId, GpuId, GpuModel, NodeId, QueueId, ResourceName, TokenName, WorkloadId,
};
pub use node::{
    DeviceSelection, ForeignGpu, ForeignUse, Gpu, GpuHealth, MAX_NODE_GPUS, MigMode, Node, Price,
};
pub use policy::{Policy, Queue, QueueOrder, Quota};
pub use prices::list_price;
pub use ranking::NodeRanking;
pub use reasons::WaitReasons;
pub use request::{
    AffinityKind, GpuRequest, MigProfile, NodePreference, Request, TaskAffinity, TokenAccess,
    TopologySpread,
};
pub use scheduler::{RoundRobinCursor, Scheduler};
pub use strategy::Strategy;
pub use units::{MiB, MicroDollars, MilliCpu, MilliGpu, Percent, Span, Time};
pub use view::{GpuView, NodeView, QueueView, TaskView, WorkloadState, WorkloadView};
pub use wait::{FitSummary, QuotaResource, Shortfall, UnavailableGpus, WaitReason};
pub use workload::{Gate, OnFault, Role, Topology, Workload};
