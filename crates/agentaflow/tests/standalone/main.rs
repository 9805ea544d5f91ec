//! The standalone driver with real processes, HTTP and signals.

mod agents;
mod chaos;
mod cluster;
mod docker;
mod documents;
mod harness;
mod http;
mod image;
mod losses;
mod postgres;
mod procs;
mod push;
mod terminal;
mod up;
