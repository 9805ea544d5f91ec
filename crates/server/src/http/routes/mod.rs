//! Handlers, one module per resource.

pub(crate) mod agents;
pub(crate) mod alerts;
pub(crate) mod auth;
pub(crate) mod billing;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod link;
pub(crate) mod logs;
pub(crate) mod nodes;
pub(crate) mod proof;
pub(crate) mod queues;
pub(crate) mod system;
pub(crate) mod users;
