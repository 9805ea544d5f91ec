//! Host ports as tokens.

use agentaflow_engine::{TokenAccess, TokenName};
use std::collections::BTreeMap;

use super::resources::is_sidecar;
use crate::slim::Pod;

/// Wildcard address.
const EVERY_ADDRESS: &str = "0.0.0.0";

/// Host ports of a pod.
///
/// A port on all addresses excludes every other use of that port; a port on one address excludes that address and the use
/// on all addresses, so it shares the port itself with other addresses only.
pub(super) fn tokens(pod: &Pod) -> BTreeMap<TokenName, TokenAccess> {
    let sidecars =
        pod.spec.init_containers.iter().flatten().filter(|container| is_sidecar(container));
    let containers = pod.spec.containers.iter().chain(sidecars);
    let mut tokens = BTreeMap::new();
    for port in containers.flat_map(|container| container.ports.iter().flatten()) {
        let host = port.host_port.filter(|number| *number > 0);
        let own = Some(port.container_port).filter(|_| pod.spec.host_network == Some(true));
        let Some(number) = host.or(own).filter(|number| *number > 0) else { continue };
        let protocol = port.protocol.as_deref().filter(|name| !name.is_empty()).unwrap_or("TCP");
        let address = port.host_ip.as_deref().filter(|address| !address.is_empty());
        let everywhere = format!("port/{protocol}/{number}");
        match address.filter(|address| *address != EVERY_ADDRESS) {
            None => {
                tokens.insert(everywhere.into(), TokenAccess::Exclusive);
            }
            Some(address) => {
                tokens.insert(format!("{everywhere}/{address}").into(), TokenAccess::Exclusive);
                tokens.entry(everywhere.into()).or_insert(TokenAccess::Shared);
            }
        }
    }
    tokens
}
