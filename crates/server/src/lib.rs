//! The server of the standalone body: takes jobs over a REST API, keeps them in a store, lets the engine
//! decide where they run, tells agents, and keeps accounts.
//!
//! Open `core/mod.rs` first. One task, the *core*, owns everything that changes: it takes commands, changes
//! its memory, asks the engine, writes all that happened in one transaction, and only then answers and tells
//! agents. The store is the truth and the core's memory a cache of it: if a transaction fails, the memory is
//! thrown away and loaded again.

mod api_error;
pub mod auth;
pub mod core;
pub mod directory;
pub mod http;
pub mod logs;
pub mod push;
pub mod secrets;
pub mod serve;
pub mod settings;
pub mod store;

pub use api_error::ApiError;
