//! One scheduling pass: `Scheduler::decide` and the search for nodes and devices.
//!
//! Open `decide.rs` first: it is one pass from beginning to end. `place.rs` books a workload's tasks, `find.rs`
//! picks the node of one task, `index/` keeps node scores up to date. A pass calls `quota` for limits, `hold`
//! for reservations and preemption, `strategy` for scores, and books through `state`.

pub(crate) mod decide;
pub(crate) mod find;
pub(crate) mod gang;
pub(crate) mod head;
pub(crate) mod index;
pub(crate) mod place;
pub(crate) mod preemption;
pub(crate) mod report;
