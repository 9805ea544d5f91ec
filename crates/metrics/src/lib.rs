//! Counters, histograms, and the workspace's only writer of metrics: Prometheus text and `OpenMetrics`.
//!
//! A response is built from current values on each scrape: series of deleted objects end without bookkeeping. Values of
//! labels that users choose are bounded by [`Bounded`].

mod bounded;
mod dcgm;
mod decisions;
mod device;
mod endpoint;
mod exposition;
mod values;

pub use bounded::Bounded;
pub use dcgm::write_dcgm;
pub use decisions::{Decisions, PreemptionRight};
pub use device::{
    DeviceReading, JOB_NAMES, POD_NAMES, WorkloadNames, WorkloadReading, write_devices,
    write_workloads,
};
pub use endpoint::{Access, Endpoint, MetricSource};
pub use exposition::{Exposition, Format, Labels, MetricType};
pub use values::{Counter, Histogram, HistogramFamily};
