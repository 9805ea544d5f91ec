//! Pods that really run: a kubelet and containers, on the node of `cargo xtask kube up --real-node`. Only the GPUs are
//! played, by a device plugin.

mod commands;
mod device_plugin;
mod jobs;
mod monitor;
mod real;
mod workloads;
