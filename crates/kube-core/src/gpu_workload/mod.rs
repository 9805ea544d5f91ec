//! Spec of a `GPUWorkload`: validation, conversion to an engine request, and pods from its template.

mod affinity;
mod gpu_limit;
mod hostfile;
mod name;
mod overrides;
mod rendezvous;
mod request;
mod template;
#[cfg(test)]
mod tests;

pub use name::{label_value, pod_name};
pub use overrides::distinct_tasks;
pub use rendezvous::service;
pub use request::{
    BadSpec, MAX_GANG, MAX_TEMPLATE, apply_gpu_requirements, check, estimate, fill,
    preferred_topology, strategy, topology,
};
pub use template::{BadTemplate, Identity, memory, names_class, pod, priority_class};
