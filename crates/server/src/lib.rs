//! The standalone driver: REST API, store, accounts, and the core that runs the engine and assigns jobs to agents.
//!
//! Open `core/mod.rs` first. The *core* owns all state that changes. It writes every change in a transaction before it
//! answers the caller or notifies agents. Its memory is a cache of the store: after a failed transaction the core reloads
//! it.

pub mod alerts;
mod api_error;
pub mod auth;
pub mod core;
pub mod directory;
mod history;
pub mod http;
pub mod logs;
pub mod push;
pub mod retention;
pub mod secrets;
pub mod serve;
pub mod settings;
pub mod storage;
pub mod store;
pub mod tls;
pub mod traces;

pub use api_error::ApiError;
