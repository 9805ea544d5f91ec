//! The Kubernetes body: CRDs, a second scheduler, a node monitor and an admission webhook.
//!
//! Pure parts translate and keep account (`translate`, `world`, `workload`); the edge watches and writes
//! (`scheduler`, `monitor`, `webhook`). Decisions are the engine's alone.

pub mod client;
pub mod crd;
pub mod monitor;
pub mod names;
pub mod scheduler;
pub mod slim;
pub mod translate;
pub mod webhook;
pub mod workload;
pub mod world;
