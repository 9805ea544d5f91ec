//! Node monitor: publishes the GPUs of its node.
//!
//! Each interval it samples the GPUs (`gpu_sampler`), queries their owners from the kubelet (`kubelet`), builds a
//! report (`observe`, with `conditions` and the health of `agentaflow_gpu`), selects the changes (`diff`) and writes them (`publish`).
//! Everything between sampling and writing is pure.

mod cgroup;
mod conditions;
mod diff;
mod gpu_sampler;
mod kubelet;
mod line;
mod metrics;
mod observation;
mod observe;
mod publish;
mod run;
mod serve;
mod usage;
mod watch;

pub use diff::{LastWrites, PendingWrites, REFRESH, diff};
pub use gpu_sampler::Opener;
pub use kubelet::{Kubelet, KubeletDevices, KubeletError, SOCKET};
pub use line::{DeviceLine, StatusLine};
pub use observation::{
    Allocation, Gpus, NodeFacts, Observation, PodDevices, PodName, Unschedulable,
};
pub use observe::{DeviceRecord, MonitorState, NodeEvent, Report, observe, restore};
pub use run::{Settings, connect, run};

use std::net::SocketAddr;

use thiserror::Error;

/// Field manager of server-side apply.
pub const FIELD_MANAGER: &str = "agentaflow-monitor";

/// Fatal error of the monitor.
#[derive(Debug, Error)]
pub enum MonitorError {
    /// No valid cluster configuration.
    #[error("cannot load the cluster configuration: {0}")]
    Cluster(String),
    /// The port is in use.
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    /// The node does not exist.
    #[error("the cluster has no node `{0}`; set this machine's node with --node or NODE_NAME")]
    NoNode(String),
    /// A read or write failed and is retried.
    #[error("cannot {what}")]
    Api { what: String, source: Box<kube::Error> },
    /// The API server did not answer in time.
    #[error("cannot {0}: the API server did not answer in time")]
    Slow(String),
    #[error("{0}")]
    Gpus(String),
}

#[cfg(test)]
mod kube_tests;
