//! Pods on a real kubelet with containers, on the node of `cargo xtask kube up --real-node`. A device plugin
//! simulates the GPUs.

mod commands;
mod device_plugin;
mod jobs;
mod monitor;
mod network_policies;
mod real;
mod rendezvous;
mod workloads;
