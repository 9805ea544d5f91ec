//! The standalone body as its users meet it: real processes, real HTTP, real signals.

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
mod up;
