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
mod original;
mod original_worker;
mod postgres;
mod procs;
mod push;
mod up;
