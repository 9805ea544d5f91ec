//! Alerts: facts in, messages out.
//!
//! [`Alerts`] is pure, like the scheduling engine: it has no clock, file or network, and time is an argument. A driver (the
//! server, or the leading Kubernetes scheduler) feeds [`Facts`], stores [`Alerts::state`] before it delivers the messages
//! that are due, and reports the result of each delivery. [`deliver`] sends one message to one sink.
//!
//! Open `engine.rs` first. `rule.rs` has the built-in rules, `notify.rs` groups, repeats and retries messages, `sink` renders
//! them, and `deliver` is the only part with I/O.

mod config;
pub mod deliver;
mod engine;
mod facts;
mod message;
mod notify;
mod quiet;
mod rule;
mod secret;
pub mod sink;
#[cfg(test)]
mod tests;
mod watch;

pub use config::{Config, ConfigError, EmailConfig, HttpConfig, SinkConfig, SinkKind};
pub use engine::{Alerts, SilenceError, State, Transition, TransitionKind};
pub use facts::{
    BudgetFacts, CertificateFacts, ClusterFacts, DiskFacts, Facts, GpuFacts, JobFacts, NodeFacts,
    QueueFacts, SchedulerFacts,
};
pub use message::Message;
pub use notify::Delivery;
pub use secret::{SecretError, SecretRef, Secrets};
