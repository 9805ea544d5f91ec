//! Worker on a GPU host: registers the node, receives assignments from the server over a long-lived stream, runs
//! them as containers or processes, and reports logs, results and resource usage.
//!
//! Three rules keep a job from running twice at once: every assignment has an epoch; the agent renews a lease
//! with every answered heartbeat; and a *guardian*, a small process that outlives the agent, stops leased tasks when
//! the lease is not renewed for two heartbeat intervals.
//!
//! [`run`] starts one loop per concern: `register.rs` keeps the agent registered, `heartbeat.rs` renews the lease,
//! `link.rs` receives messages, `tasks/` executes them, `report/` sends task updates and logs.

mod backoff;
mod clock;
mod docker_daemon;
mod facts;
pub mod gpus;
pub mod guardian;
mod heartbeat;
mod identity;
mod lease;
mod link;
mod memory;
mod metrics;
mod port;
mod register;
mod report;
mod run;
pub mod runtime;
mod session;
mod settings;
#[cfg(test)]
#[path = "../../../tests/skip.rs"]
mod skip;
mod storage;
mod tasks;
mod trust;
mod usage;

pub use memory::release_start_pages;
pub use metrics::AgentMetrics;
pub use run::{AgentError, run};
pub use settings::{AgentSettings, NodeFacts, Prices, RemoteNode};
