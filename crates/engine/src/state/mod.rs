//! Scheduler state: the workloads, the cluster's nodes and bookings, the pending groups, and the snapshots
//! that save and restore all of them.
//!
//! Open `scheduler.rs` first: its `Scheduler` struct owns every part of the state. Code here books, releases
//! and looks up; the choice of a node or a victim belongs to `pass` and `hold`.

pub(crate) mod cluster;
pub(crate) mod pending;
pub(crate) mod scheduler;
pub(crate) mod snapshot;
pub(crate) mod terms;
pub(crate) mod workloads;
