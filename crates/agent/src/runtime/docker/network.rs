//! Networks of containers: one per job and attempt. Tasks of a gang on one host share it; other jobs cannot reach it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use bollard::errors::Error as DockerError;
use bollard::models::{
    EndpointSettings, HostConfig, Ipam, IpamConfig, Network, NetworkCreateRequest,
    NetworkingConfig, PortBinding,
};
use bollard::query_parameters::ListNetworksOptions;

use agentaflow_api::link::{Assignment, Gang, TaskKey};
use agentaflow_units::hash64;

use super::connect::by_labels;
use super::settings::NetworkMode;
use super::{AGENT, Docker, fault};

/// Label of networks and containers.
const NETWORK: &str = "agentaflow.network";

/// Name of the container of task 0 in the network of a gang.
pub(super) const MASTER: &str = "agentaflow-master";

pub(super) const MASTER_ADDR: &str = "MASTER_ADDR";

/// Attempts to find a subnet that no other network uses.
const ATTEMPTS: usize = 8;

/// Prefixes of the names of bridges: rules of the firewall match `CLOSED`.
pub(super) const CLOSED: &str = "aafc";
const OPEN: &str = "aafo";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ContainerNetwork {
    Host,
    /// Name of a network of the job.
    Job(String),
}

impl ContainerNetwork {
    pub(super) fn label(&self) -> Option<(String, String)> {
        match self {
            Self::Host => None,
            Self::Job(name) => Some((NETWORK.to_owned(), name.clone())),
        }
    }

    /// Connects a container; publishes the port at which the tasks of a gang meet if other hosts need it, at `address` if
    /// this host has it.
    pub(super) fn configure(
        &self,
        assignment: &Assignment,
        address: Option<IpAddr>,
        host: &mut HostConfig,
    ) -> (Option<NetworkingConfig>, Option<Vec<String>>) {
        let Self::Job(name) = self else {
            host.network_mode = Some("host".to_owned());
            return (None, None);
        };
        host.network_mode = Some(name.clone());
        let master = assignment.gang.filter(|_| assignment.key.task == 0);
        let aliases = master.map(|_| vec![MASTER.to_owned()]);
        let endpoint = EndpointSettings { aliases, ..EndpointSettings::default() };
        let config =
            NetworkingConfig { endpoints_config: Some(HashMap::from([(name.clone(), endpoint)])) };
        let Some(Gang { master_port, .. }) = master.filter(|gang| gang.spans_nodes) else {
            return (Some(config), None);
        };
        let port = format!("{master_port}/tcp");
        let host_ip = address.filter(|address| is_own(*address)).map(|address| address.to_string());
        let binding = PortBinding { host_ip, host_port: Some(master_port.to_string()) };
        host.port_bindings = Some(HashMap::from([(port.clone(), Some(vec![binding]))]));
        (Some(config), Some(vec![port]))
    }

    /// Address of task 0 for a task on the same node.
    pub(super) fn master_address(&self, assignment: &Assignment) -> Option<&'static str> {
        let here = assignment.gang.is_some_and(|gang| gang.master_here);
        (here && matches!(self, Self::Job(_))).then_some(MASTER)
    }
}

impl Docker {
    /// Creates the network of a job. The caller holds `networks` until the container exists: a network without
    /// containers is removed.
    pub(super) async fn ensure_network(
        &self,
        key: TaskKey,
    ) -> Result<ContainerNetwork, DockerError> {
        if self.settings.network == NetworkMode::Host {
            return Ok(ContainerNetwork::Host);
        }
        let name = self.network_name(key);
        let all = self.client.list_networks(None::<ListNetworksOptions>).await?;
        if all.iter().any(|network| network.name.as_deref() == Some(&*name)) {
            return Ok(ContainerNetwork::Job(name));
        }
        let free = self.settings.subnets.free(&used(&all), hash64(name.as_bytes()));
        let mut last = None;
        for subnet in free.into_iter().take(ATTEMPTS) {
            match self.client.create_network(self.request(&name, subnet)).await {
                Ok(_) => return Ok(ContainerNetwork::Job(name)),
                // Another program took the subnet, or a route of the host overlaps.
                Err(error) => last = Some(error),
            }
        }
        let error = format!("no free subnet in {} for the network of a job", self.settings.subnets);
        Err(last.unwrap_or(DockerError::DockerStreamError { error }))
    }

    fn request(&self, name: &str, subnet: String) -> NetworkCreateRequest {
        let prefix = if self.settings.allow_host_access { OPEN } else { CLOSED };
        let bridge = format!("{prefix}{:011x}", hash64(name.as_bytes()) & 0xfff_ffff_ffff);
        let config = IpamConfig { subnet: Some(subnet), ..IpamConfig::default() };
        NetworkCreateRequest {
            name: name.to_owned(),
            driver: Some("bridge".to_owned()),
            ipam: Some(Ipam { config: Some(vec![config]), ..Ipam::default() }),
            options: Some(HashMap::from([("com.docker.network.bridge.name".to_owned(), bridge)])),
            labels: Some(HashMap::from([
                (AGENT.to_owned(), self.agent.clone()),
                (NETWORK.to_owned(), name.to_owned()),
            ])),
            ..NetworkCreateRequest::default()
        }
    }

    fn network_name(&self, key: TaskKey) -> String {
        format!("agentaflow-{}-{}-{}", self.agent, key.job, key.epoch)
    }

    /// Removes the network of a job after its last container on this host.
    pub(super) async fn remove_network(&self, key: TaskKey) {
        if self.settings.network != NetworkMode::Host {
            let _guard = self.networks.lock().await;
            self.remove_unused(&self.network_name(key)).await;
        }
    }

    /// Removes networks that an earlier agent left.
    pub(super) async fn sweep_networks(&self) {
        let _guard = self.networks.lock().await;
        let label = format!("{AGENT}={}", self.agent);
        let filters = Some(HashMap::from([("label".to_owned(), vec![label])]));
        let found = self.client.list_networks(Some(ListNetworksOptions { filters })).await;
        for name in found.unwrap_or_default().into_iter().filter_map(|network| network.name) {
            self.remove_unused(&name).await;
        }
    }

    async fn remove_unused(&self, name: &str) {
        let users = by_labels(vec![format!("{NETWORK}={name}")]);
        match self.client.list_containers(Some(users)).await {
            Ok(users) if users.is_empty() => {}
            _ => return,
        }
        match self.client.remove_network(name).await {
            Err(error) if !fault::is_missing(&error) => {
                tracing::warn!("cannot remove network {name}: {error}");
            }
            _ => {}
        }
    }
}

/// False behind a translation of addresses.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn used(networks: &[Network]) -> Vec<String> {
    let configs = networks.iter().filter_map(|network| network.ipam.as_ref()?.config.as_ref());
    configs.flatten().filter_map(|config| config.subnet.clone()).collect()
}

/// First and last address of an IPv4 subnet such as `10.0.0.0/8`.
pub(super) fn range(subnet: &str) -> Option<(u32, u32)> {
    let (address, bits) = subnet.split_once('/')?;
    let address = u32::from(address.parse::<Ipv4Addr>().ok()?);
    let bits: u32 = bits.parse().ok().filter(|bits| *bits <= 32)?;
    let host = u32::MAX.checked_shr(bits).unwrap_or(0);
    Some((address & !host, address | host))
}

#[cfg(test)]
mod tests {
    use super::super::Subnets;
    use super::*;

    #[test]
    fn subnets_of_other_networks_are_not_used() {
        let pool: Subnets = "10.9.0.0/24".parse().unwrap();
        let free = pool.free(&[], 0);
        assert_eq!((free.len(), free[0].as_str()), (8, "10.9.0.0/27"));
        let used = ["10.9.0.0/26".to_owned(), "10.0.0.0/16".to_owned(), "fd00::/8".to_owned()];
        let free = pool.free(&used, 7);
        assert_eq!((free.len(), free[0].as_str()), (6, "10.9.0.224/27"));
        assert!(pool.free(&["10.0.0.0/8".to_owned()], 3).is_empty());
        for text in ["10.9.0.0", "10.9.0.0/28", "a/24", "10.9.0.0/33", "10.0.0.0/4"] {
            assert!(text.parse::<Subnets>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_port_of_the_master_is_published_at_the_address_that_the_host_has() {
        let mut assignment = super::super::tests::launch().assignment;
        assignment.gang = Some(Gang { master_port: 29_501, master_here: true, spans_nodes: true });
        let network = ContainerNetwork::Job("net".to_owned());
        let published = |address: &str| {
            let mut host = HostConfig::default();
            network.configure(&assignment, Some(address.parse().unwrap()), &mut host);
            let bindings = host.port_bindings.unwrap().into_values().flatten().flatten();
            bindings.map(|binding| binding.host_ip).collect::<Vec<_>>()
        };
        assert_eq!(published("127.0.0.1"), [Some("127.0.0.1".to_owned())]);
        assert_eq!(published("192.0.2.9"), [None]);
    }

    #[test]
    fn only_the_master_of_a_gang_on_several_nodes_publishes_its_port() {
        let mut assignment = super::super::tests::launch().assignment;
        let network = ContainerNetwork::Job("net".to_owned());
        let published = |assignment: &Assignment| {
            let mut host = HostConfig::default();
            let (_, exposed) = network.configure(assignment, None, &mut host);
            assert_eq!(exposed.is_some(), host.port_bindings.is_some());
            exposed.is_some()
        };
        assert!(!published(&assignment));
        let mut gang = Gang { master_port: 29_501, master_here: true, spans_nodes: false };
        assignment.gang = Some(gang);
        assert!(!published(&assignment));
        assert_eq!(network.master_address(&assignment), Some(MASTER));
        gang.spans_nodes = true;
        assignment.gang = Some(gang);
        assert!(published(&assignment));
        assignment.key.task = 1;
        assert!(!published(&assignment));
        gang.master_here = false;
        assignment.gang = Some(gang);
        assert_eq!(network.master_address(&assignment), None);
    }
}
