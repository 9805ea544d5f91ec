//! The Kubernetes driver: a second scheduler beside kube-scheduler, and the controller of `GPUWorkload`s.
//!
//! [`state`] and [`controller`] are pure; [`driver`] watches and writes. The engine alone decides on placement.

pub mod controller;
pub mod driver;
pub mod state;

pub use driver::{ClusterReader, LeaseTimes, LeaseTimesError, Options, Replica, SchedulerError};
pub use state::{ClusterSnapshot, NodeSnapshot};
