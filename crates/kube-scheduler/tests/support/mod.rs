//! A real control plane for tests: each test has a share, so that all tests run concurrently.
//!
//! A share is a namespace with nodes. Every node carries the label [`OWNER`] with the share's id, and the namespace adds a
//! selector for that label to every pod. A scheduler under test runs with [`Share::scheduler_name`] and
//! [`Share::node_selector`], so that it ignores objects of other tests.
//!
//! ```ignore
//! let share = Share::new().await;
//! share.node("a", &NodePlan::gpus(8)).await;
//! share.create_pod(&PodPlan::new("train").gpus(2)).await;
//! let node = share.bound("train").await;
//! ```

// Each test binary uses a part of this module.
#![allow(dead_code, unused_imports)]

mod apply;
mod clean;
mod http;
mod nodes;
mod pods;
#[path = "../../../../tests/ports.rs"]
mod ports;
mod program;
mod proxy;
mod scheduler;
mod share;
mod wait;

pub(crate) use http::{HttpResponse, get};
pub(crate) use nodes::NodePlan;
pub(crate) use pods::{Binder, PodPlan, state};
pub(crate) use ports::free_port;
pub(crate) use program::Program;
pub(crate) use proxy::Proxy;
pub(crate) use scheduler::Scheduler;
pub(crate) use share::{Cluster, OWNER, Share, repository};
pub(crate) use wait::{SOON, wait_for, wait_within};
