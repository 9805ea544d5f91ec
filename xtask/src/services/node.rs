//! A real node of the control plane that was started for the tests of Kubernetes.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{Service, Started};
use crate::kube;

/// Adds the node; it ends with its control plane.
pub(super) fn start(others: &[Service]) -> Result<Started> {
    let plane = others.iter().find(|service| service.kind.prefix == "kube_");
    let plane = plane.and_then(|service| service.started.as_ref().ok());
    let plane = plane.context("there is no control plane that it could join")?;
    let dir = Path::new(&plane.place).parent().context("its folder is not known")?;
    let folder = match kube::real_node(dir)? {
        Some(folder) => folder,
        None if plane.daemon.is_some() => kube::add_real_node(dir)?,
        None => bail!(
            "AGENTAFLOW_TEST_KUBE names a control plane of somebody else's; `cargo xtask kube up --real-node` \
             makes one that has a node"
        ),
    };
    Ok(Started::elsewhere(folder.display().to_string()))
}
