//! The worker on a GPU host: registers the machine, takes assignments from the server over a stream that it
//! holds open, runs them as containers or processes, and reports logs, results and use.
//!
//! Three rules keep a job from running twice at once: every assignment has an epoch; the agent renews a lease
//! with every heartbeat that is answered; and a *guardian*, a small process that outlives the agent, stops leased
//! work when the lease is not renewed for two intervals.
//!
//! [`run`] puts everything together; each part then does one thing for ever: `register.rs` keeps the agent known,
//! `heart.rs` renews the lease, `link.rs` takes messages, `tasks/` carries them out, `report/` tells what happened.

mod backoff;
mod clock;
mod engine;
mod facts;
pub mod gpus;
pub mod guardian;
mod heart;
mod identity;
mod lease;
mod link;
mod port;
mod register;
mod report;
mod run;
pub mod runtime;
mod session;
mod settings;
mod tasks;

pub use run::{AgentError, run};
pub use settings::{AgentSettings, Elsewhere, Machine, Prices};
