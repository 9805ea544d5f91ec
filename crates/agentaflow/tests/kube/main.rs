//! The program on a real Kubernetes control plane.

mod kube_gangs;
mod kube_manifests;
mod kube_owners;
mod kube_placing;
mod kube_preemption;
mod kube_queues;
mod kube_volumes;
mod kube_words;
mod kube_workloads;
mod plans;
#[path = "../../../kube/tests/support/mod.rs"]
mod support;

/// The program as it was built for these tests.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_agentaflow");
