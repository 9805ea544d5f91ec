//! The HTTP side against a real core and a real database file: what callers see, and that no request of any shape gets
//! anything else.

mod bodies;
mod browser;
mod contract;
mod hostile;
mod jobs;
mod limits;
mod sessions;
mod shots;
mod site;
