//! Kubernetes kinds, names, and the translation of Kubernetes objects into engine requests. No I/O except [`server_time`].

pub mod crd;
pub mod gpu_workload;
pub mod names;
pub mod pod_end;
pub mod quota;
mod server_clock;
pub mod settings;
pub mod slim;
pub mod translate;
pub mod unit;

pub use server_clock::server_time;
