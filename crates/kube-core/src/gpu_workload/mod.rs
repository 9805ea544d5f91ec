//! Spec of a `GPUWorkload`: validation, conversion to an engine request, and pods from its template.

mod affinity;
mod gpu_limit;
mod name;
mod request;
mod template;
#[cfg(test)]
mod tests;

pub use name::{label_value, pod_name};
pub use request::{
    BadSpec, MAX_GANG, MAX_TEMPLATE, ask, check, estimate, fill, priority, strategy, topology,
};
pub use template::{BadTemplate, Identity, memory, names_class, pod};
