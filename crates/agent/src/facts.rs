//! Registration and heartbeat contents: resources of the host, or of the remote node.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use serde_json::{Map, Value};
use url::Url;

use agentaflow_api::node::{Health, Heartbeat, NodeRegistration};
use agentaflow_api::units::Cores;

use crate::gpus::GpuWatch;
use crate::guardian::device_rule::DeviceControl;
use crate::settings::AgentSettings;
use crate::tasks::Tasks;

/// Documentation address, which no host has.
const INTERNET: &str = "192.0.2.1";
const DISCARD: u16 = 9;

pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

pub(crate) fn node_name(settings: &AgentSettings) -> String {
    settings.node_name.clone().unwrap_or_else(hostname)
}

pub(crate) fn registration(
    settings: &AgentSettings,
    gpus: &GpuWatch,
    runtimes: Vec<String>,
    device_control: Option<DeviceControl>,
    private_tmp: bool,
) -> NodeRegistration {
    let host = gpus.host();
    let instances = gpus.instances();
    let hostname = hostname();
    let (memory, _) = memory_mib();
    let (storage, _) = storage_gib(&settings.state_dir);
    let mut node_metadata = Map::new();
    node_metadata.insert("gpu_source".to_owned(), Value::from(host.source));
    if let Some(control) = device_control {
        node_metadata.insert("device_control".to_owned(), Value::from(control.as_str()));
        node_metadata.insert("private_tmp".to_owned(), Value::from(private_tmp));
    }
    if let Some(pod) = &settings.pod_name {
        node_metadata.insert("pod_name".to_owned(), Value::from(pod.clone()));
    }
    let mut registration = NodeRegistration {
        node_name: node_name(settings),
        hostname: Some(hostname),
        ip_address: settings
            .remote_node
            .is_none()
            .then(|| own_address(&settings.server))
            .flatten()
            .map(|address| address.to_string()),
        region: settings.region.clone(),
        zone: settings.zone.clone(),
        gpu_count: Some(instances.len() as u32),
        gpu_type: instances.first().and_then(|gpu| gpu.gpu_type.clone()),
        gpu_memory_total: Some(instances.iter().filter_map(|gpu| gpu.gpu_memory).sum()),
        gpu_driver_version: host.driver,
        gpu_cuda_version: host.cuda,
        cpu_cores: Some(cores()),
        memory_total: Some(memory),
        storage_total: Some(storage),
        max_concurrent_jobs: Some(settings.max_concurrent_jobs.unwrap_or(0)),
        auto_register: Some(true),
        price_per_gpu_hour: settings.prices.gpu,
        price_per_cpu_hour: settings.prices.cpu,
        price_per_memory_gb_hour: settings.prices.memory,
        node_metadata,
        gpu_instances: instances,
        runtimes,
        simulated: gpus.simulated(),
        labels: settings.labels.clone(),
        ..NodeRegistration::default()
    };
    if let Some(node) = &settings.remote_node {
        node.facts.complete_registration(&mut registration);
    }
    registration
}

/// Address at which other hosts reach this one: the source of packets to the server, or to the internet if the server is
/// on this host. Sends no packet.
fn own_address(server: &str) -> Option<IpAddr> {
    let server = Url::parse(server).ok()?;
    let port = server.port_or_known_default()?;
    let host = server.host_str()?.trim_matches(['[', ']']).to_owned();
    let source = |host: &str, port: u16| {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect((host, port)).ok()?;
        let address = socket.local_addr().ok()?.ip();
        Some(address).filter(|address| !address.is_loopback() && !address.is_unspecified())
    };
    source(&host, port).or_else(|| source(INTERNET, DISCARD))
}

pub(crate) fn heartbeat(
    node_id: &str,
    settings: &AgentSettings,
    tasks: &Tasks,
    gpus: &GpuWatch,
) -> Heartbeat {
    let instances = gpus.instances();
    let mut heartbeat = Heartbeat {
        node_id: Some(Value::from(node_id)),
        gpu_memory_available: Some(
            instances.iter().filter_map(|gpu| gpu.gpu_memory_available).sum(),
        ),
        cpu_cores_available: None,
        memory_available: Some(memory_mib().1),
        storage_available: Some(storage_gib(&settings.state_dir).1),
        current_jobs: Some(tasks.live().len() as u32),
        health_status: Some(if gpus.is_unusable() { Health::Unhealthy } else { Health::Healthy }),
        gpu_instances: Some(instances),
        tasks: tasks.uses(),
    };
    if let Some(node) = &settings.remote_node {
        node.facts.complete_heartbeat(&mut heartbeat);
    }
    heartbeat
}

fn cores() -> Cores {
    Cores(std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64 * 1000)
}

/// Total and available memory in MiB.
fn memory_mib() -> (u64, u64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
            / 1024
    };
    (field("MemTotal"), field("MemAvailable"))
}

/// Total and available GiB of the file system of a directory.
fn storage_gib(dir: &Path) -> (u64, u64) {
    rustix::fs::statvfs(dir).map_or((0, 0), |stat| {
        let gib = |blocks: u64| blocks.saturating_mul(stat.f_frsize) >> 30;
        (gib(stat.f_blocks), gib(stat.f_bavail))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_storage_of_the_host_are_not_zero() {
        let (total, free) = memory_mib();
        assert!(total > 0 && free > 0 && free <= total);
        let (total, free) = storage_gib(Path::new("/"));
        assert!(total > 0 && free <= total);
        assert!(!hostname().is_empty());
    }
}
