//! Holds: room on nodes reserved for one pending workload, either the head's reservation or the room that
//! preemption victims leave.
//!
//! Open `holds.rs` first. `reserve.rs` computes the earliest start of the head, `preempt.rs` chooses victims,
//! `eligibility.rs` decides which workloads may be victims, `nominate.rs` restores preemptions after a driver
//! restart, `replace.rs` keeps the places of lost tasks of running workloads, `foreign_demand.rs` counts pending tasks of
//! other schedulers. This folder calls `pass::place` to test placements and books through `state`.

pub(crate) mod eligibility;
pub(crate) mod foreign_demand;
pub(crate) mod holds;
pub(crate) mod nominate;
pub(crate) mod preempt;
pub(crate) mod replace;
pub(crate) mod reserve;
