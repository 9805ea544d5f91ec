//! Handlers.

pub(crate) mod cluster;
pub(crate) mod events;
pub(crate) mod jobs;
pub(crate) mod pages;
pub(crate) mod session;
