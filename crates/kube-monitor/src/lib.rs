//! The node monitor: the GPUs of this node, published for everybody.
//!
//! Each turn it looks at the GPUs (`eyes`), asks the kubelet who has them (`kubelet`), makes a report of it
//! (`observe`, with `health` and `conditions`), decides what of it has to be written (`diff`) and writes that
//! (`publish`). Everything between looking and writing is pure.

mod cgroup;
mod conditions;
mod diff;
mod eyes;
mod health;
mod kubelet;
mod line;
mod metrics;
mod observe;
mod publish;
mod run;
mod seen;
mod serve;
mod usage;
mod watch;

pub use diff::{REFRESH, Writes, Written, diff};
pub use eyes::Opener;
pub use health::{CRITICAL, Cause, HEALTHY_SAMPLES, HOT, Health, Look, Trouble};
pub use kubelet::{Kubelet, KubeletError, SOCKET, Told};
pub use line::{DeviceLine, StatusLine};
pub use observe::{Happening, Known, Memory, Report, observe, restore};
pub use run::{Settings, connect, run};
pub use seen::{Allocation, Closed, Gpus, Holders, NodeFacts, PodName, Seen};

use std::net::SocketAddr;

use thiserror::Error;

/// Who writes, as the API server records it.
pub const FIELD_MANAGER: &str = "agentaflow-monitor";

/// Why the monitor cannot work.
#[derive(Debug, Error)]
pub enum MonitorError {
    /// No cluster can be found.
    #[error("cannot find out which cluster to talk to: {0}")]
    Cluster(String),
    /// A port is taken.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The node is not there.
    #[error("the cluster has no node `{0}`; name this machine's node with --node or NODE_NAME")]
    NoNode(String),
    /// Something could not be written or read; it is tried again.
    #[error("cannot {what}")]
    Api {
        /// What.
        what: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("cannot {0}: the API server did not answer in time")]
    Slow(String),
    /// The GPUs could not be looked at.
    #[error("{0}")]
    Gpus(String),
}

#[cfg(test)]
mod kube_tests;
