//! Facts that a driver feeds: the cluster as of one moment.

use std::path::Path;

use agentaflow_api::client::not_after;
use agentaflow_api::units::Stamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// The cluster as of one moment. A part without facts has no alerts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    pub nodes: Vec<NodeFacts>,
    pub gpus: Vec<GpuFacts>,
    pub queues: Vec<QueueFacts>,
    pub cluster: Option<ClusterFacts>,
    pub budgets: Vec<BudgetFacts>,
    pub certificates: Vec<CertificateFacts>,
    pub disks: Vec<DiskFacts>,
    pub scheduler: Option<SchedulerFacts>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    pub name: String,
    /// The node should report and does not.
    pub silent: bool,
    /// Not known yet, as after a restart of the driver: the alert stays as it is.
    pub unknown: bool,
    pub last_report: Option<Stamp>,
}

/// Last reading of a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuFacts {
    pub node: String,
    /// Index or UUID.
    pub gpu: String,
    /// The reading is old, because the node does not report: alerts stay as they are.
    pub stale: bool,
    /// The GPU does not respond or has failed.
    pub lost: bool,
    /// Problem as the node describes it.
    pub problem: Option<String>,
    /// Driver error that keeps the GPU out of use.
    pub xid: Option<u64>,
    /// Uncorrected memory errors since the driver was loaded.
    pub ecc_errors: Option<u64>,
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Watts.
    pub power: Option<f64>,
    /// Watts.
    pub power_limit: Option<f64>,
    /// Percent.
    pub utilization: Option<f64>,
    /// MiB.
    pub memory_used: Option<u64>,
    /// MiB.
    pub memory_total: Option<u64>,
    /// Running job that holds the GPU; the first one of a shared GPU.
    pub job: Option<JobFacts>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFacts {
    /// Number of the job; `namespace/name` in Kubernetes.
    pub job: String,
    /// Owner; the namespace in Kubernetes.
    pub user: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueFacts {
    pub name: String,
    /// Submission time of the oldest job that waits for resources.
    pub oldest_pending: Option<Stamp>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClusterFacts {
    /// Mean of all GPUs, in percent; none without a reading.
    pub utilization: Option<f64>,
    pub pending: u64,
}

/// Budget of a user, in millionths of a dollar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetFacts {
    pub user: String,
    pub spent: i64,
    pub limit: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateFacts {
    pub name: String,
    pub expires: Stamp,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskFacts {
    pub path: String,
    /// Bytes.
    pub free: u64,
    /// Bytes.
    pub total: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerFacts {
    /// Time at which the scheduling loop last began a turn.
    pub last_turn: Stamp,
}

impl CertificateFacts {
    /// The first certificate of a PEM file; none if it cannot be read.
    pub fn of_file(path: &Path) -> Option<Self> {
        let pem = std::fs::read(path).ok()?;
        let first = CertificateDer::pem_slice_iter(&pem).next()?.ok()?;
        let expires = Stamp(not_after(&first)?.as_millisecond());
        Some(Self { name: path.display().to_string(), expires })
    }
}
