//! Events applied to the state: `Scheduler::apply` and one function for each event.
//!
//! Open `events.rs` first: it validates and dispatches every event. Code here changes `state`, releases holds
//! and queues decisions for the next plan. It never chooses a node; the next pass does.

pub(crate) mod adopt;
pub(crate) mod displace;
pub(crate) mod events;
pub(crate) mod lifecycle;
pub(crate) mod node;
pub(crate) mod node_spec;
pub(crate) mod submit;
