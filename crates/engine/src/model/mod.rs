//! Data exchanged with drivers: events in, decisions and wait reasons out, and the types of their fields.
//!
//! Open `event.rs` first, then `decision.rs` and `wait.rs`. Types here validate themselves and hold no
//! scheduler state. This folder calls no other folder of the engine.

pub(crate) mod adopted;
pub(crate) mod decision;
pub(crate) mod error;
pub(crate) mod event;
pub mod labels;
pub mod mig;
pub(crate) mod name;
pub(crate) mod node;
pub(crate) mod policy;
pub(crate) mod prices;
pub(crate) mod request;
pub(crate) mod units;
pub(crate) mod wait;
pub(crate) mod workload;
