//! The HTTP layer on a real core and a real database file, from the caller's side.

mod bodies;
mod browser;
mod contract;
mod dashboard;
mod history;
mod hostile;
mod jobs;
mod key_file;
mod limits;
mod metrics;
mod original;
#[path = "../../../../tests/promtool.rs"]
mod promtool;
mod registration;
mod schema;
mod sessions;
mod shots;
mod site;
#[path = "../../../../tests/skip.rs"]
mod skip;
