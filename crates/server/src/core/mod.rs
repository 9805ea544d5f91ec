//! The core: all state that changes, behind one lock, and one committer that makes it durable.
//!
//! A change takes the lock, changes the parts of `State`, and waits for the *ticket* of its batch (`Journal`). The
//! committer runs the engine, writes the batch in one transaction, and then publishes views, sends messages to agents,
//! publishes events and answers tickets. While it writes, the next batch fills: group commit.
//!
//! The core answers, sends and publishes a change only once the change is durable. After a failed transaction it reloads
//! the state from the store, and callers receive an error that permits a retry.
//!
//! Reads that do not need the engine come from `Published`, without the lock.

mod activity;
mod admin;
mod alerts;
mod assignment;
mod budget_book;
mod budgets;
mod claims;
mod clock;
mod committer;
mod engine_link;
mod explain;
mod finish;
mod gpu_account;
mod handle;
mod handle_agents;
mod handle_jobs;
mod handle_nodes;
mod job;
mod job_view;
mod journal;
mod ledger;
mod liveness;
#[cfg(test)]
mod lock_tests;
mod metrics;
mod node;
mod outbox;
mod pending_reasons;
mod place;
mod planner;
mod pricing;
mod published;
mod push_agents;
#[cfg(test)]
mod push_tests;
mod queue_table;
mod registration;
mod restore;
mod samples;
mod sealed;
mod state;
mod stop;
mod submit;
mod task_updates;
mod waste;

pub(crate) use alerts::AlertFacts;
pub use clock::WallClock;
pub use handle::{
    Caller, Core, DirectoryWrite, Idempotency, Ids, NodeRef, Registrant, StreamItem, Worker,
};
pub use journal::AgentMessage;
pub use ledger::AccountSummary;
pub(crate) use node::{JobAnswer, PushReach};
pub(crate) use push_agents::PushNode;
pub(crate) use samples::JobSample;
pub(crate) use waste::{WasteBy, WasteJob, report};
