//! Queues: usage, shares, guarantees and limits.
//!
//! Open `queues.rs` first: it owns the queue tree. `charge.rs` computes the quota that a claim uses, `limits.rs`
//! checks limits and pledges, `savings.rs` pledges quota to pending workloads. This folder reads the cluster's
//! resource names and capacity and books nothing on nodes.

pub(crate) mod charge;
pub(crate) mod limits;
pub(crate) mod queues;
pub(crate) mod savings;
