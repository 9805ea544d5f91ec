//! Types of the REST API and a client.
//!
//! These types are plain data; the server validates them once, when a request enters. Existing clients send floats for
//! integers, nulls for absent fields and unknown fields, so reading is lenient ([`lenient`]) and writing is exact.
//!
//! Programs decide on enums: [`error::ErrorCode`], [`end::EndReason`], [`pending::PendingReason`],
//! [`event::EventKind`]. Messages are human-readable text and may change with any release.

pub mod account;
pub mod agent;
pub mod alert;
pub mod billing;
#[cfg(feature = "client")]
pub mod client;
pub mod end;
pub mod error;
pub mod event;
pub mod explain;
pub mod history;
pub mod ids;
pub mod job;
pub mod job_runtime;
pub mod lenient;
pub mod link;
pub mod node;
pub mod pending;
pub mod queue;
mod shortfall;
pub mod trace;
pub mod units;
mod wire;

pub use ids::{AgentId, CredentialId, EventSeq, JobId, LedgerEntryId, MicroUsd, NodeId, UserId};
pub use units::{Cores, Dollars, GpuAmount, Secret, Stamp};

/// Base path of the worker API.
pub const BASE: &str = "/gpu-workers";

/// Maximum number of rows in a response.
pub const PAGE_MOST: u64 = 1000;
