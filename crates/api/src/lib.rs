//! What goes over the wire: the types of the REST API, and a client for it.
//!
//! Everything here is plain data. What a caller may send and what it means is checked once, where it
//! enters the server; these types only say which shapes exist. Clients of this API send floats for
//! integers, nulls for absent fields and fields nobody knows, so reading is lenient ([`lenient`]) and
//! writing is exact.

pub mod account;
pub mod agent;
pub mod billing;
#[cfg(feature = "client")]
pub mod client;
pub mod end;
pub mod error;
pub mod event;
pub mod explain;
pub mod ids;
pub mod job;
pub mod lenient;
pub mod link;
pub mod node;
pub mod pending;
pub mod queue;
pub mod units;
mod wire;

pub use ids::{AgentId, JobId, MicroUsd, NodeId, UserId};
pub use units::{Cores, Dollars, Secret, Stamp};

/// Base path of the worker API.
pub const BASE: &str = "/gpu-workers";

/// Maximum number of rows in a response.
pub const PAGE_MOST: u64 = 1000;
