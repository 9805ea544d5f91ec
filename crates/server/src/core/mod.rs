//! The core: everything that changes, behind one lock, and one committer that makes it durable.
//!
//! Whoever wants to change something takes the lock, changes the memory (`State`), and waits for the
//! *ticket* of the batch (`Batch`) that the change went into. The committer asks the engine what
//! follows, writes the batch in one transaction, and only then answers tickets, sends messages to agents and
//! publishes events. While it writes, the next batch fills: that is the group commit.
//!
//! Nothing is answered, sent or published that is not durable. If a transaction fails, the memory is thrown away
//! and loaded from the store again; everybody who waited is told to try again.

mod assigning;
mod batch;
mod budgets;
mod calls_agents;
mod calls_jobs;
mod calls_nodes;
mod clock;
mod committer;
mod describe;
mod endings;
mod handle;
mod hub;
mod jobs;
mod leases;
mod money;
mod nodes;
mod placing;
mod pulse;
mod pushes;
mod queues;
mod reports;
mod restore;
mod show;
mod show_nodes;
mod state;
mod waits;

pub use handle::{Caller, Core, DirectoryWrite, Idempotency, Ids, NodeRef, StreamItem, Worker};
pub use waits::Waits;
