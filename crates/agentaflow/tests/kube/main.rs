//! The program on a real Kubernetes control plane.

mod kube_placing;
#[path = "../../../kube/tests/support/mod.rs"]
mod support;

/// The program as it was built for these tests.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_agentaflow");
