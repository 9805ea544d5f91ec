//! A node with a kubelet, added to the control plane of the tests.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{RunningService, Service};
use crate::kube;

/// Adds the node; it stops with its control plane.
pub(super) fn start(others: &[Service]) -> Result<RunningService> {
    let plane = others.iter().find(|service| service.kind.prefix == "kube_");
    let plane = plane.and_then(|service| service.running.as_ref().ok());
    let plane = plane.context("no control plane is running")?;
    let dir = Path::new(&plane.address).parent().context("the kubeconfig has no folder")?;
    let folder = match kube::real_node(dir)? {
        Some(folder) => folder,
        None if plane.daemon.is_some() => kube::add_real_node(dir)?,
        None => bail!(
            "AGENTAFLOW_TEST_KUBE names an external control plane; `cargo xtask kube up --real-node` starts one \
             with a node"
        ),
    };
    Ok(RunningService::external(folder.display().to_string()))
}
