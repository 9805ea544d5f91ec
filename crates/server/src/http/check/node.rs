//! Nodes and agents: registrations, heartbeats and changes.

use std::collections::BTreeMap;

use serde_json::Value;

use agentaflow_api::agent::{AgentRegistration, AgentUpdate};
use agentaflow_api::node::{GpuInstance, Heartbeat, NodeRegistration, NodeStatus, NodeUpdate};
use agentaflow_api::units::{Cores, Dollars};

use super::{Checked, anything, at_most, few, name, object, plain, plain_option, refuse};
use crate::http::limits;

/// Validates the registration of a node.
pub fn check_node(node: &NodeRegistration) -> Checked {
    plain("node_name", &node.node_name, limits::NAME)?;
    if node.node_name.trim().is_empty() {
        return refuse("node_name", "is missing: the name of the machine");
    }
    let texts = [
        ("hostname", &node.hostname),
        ("ip_address", &node.ip_address),
        ("region", &node.region),
        ("zone", &node.zone),
        ("cluster_name", &node.cluster_name),
        ("gpu_type", &node.gpu_type),
        ("gpu_driver_version", &node.gpu_driver_version),
        ("gpu_cuda_version", &node.gpu_cuda_version),
        ("k8s_node_name", &node.k8s_node_name),
        ("k8s_cluster", &node.k8s_cluster),
        ("k8s_namespace", &node.k8s_namespace),
        ("node_id", &node.node_id),
    ];
    texts.iter().try_for_each(|(field, text)| plain_option(field, text.as_ref(), limits::NAME))?;
    node_id(node.node_id.as_ref())?;
    at_most("gpu_count", node.gpu_count, limits::GPUS)?;
    at_most("gpu_memory_total", node.gpu_memory_total, limits::SIZE)?;
    at_most("memory_total", node.memory_total, limits::SIZE)?;
    at_most("storage_total", node.storage_total, limits::SIZE)?;
    at_most("max_concurrent_jobs", node.max_concurrent_jobs, 100_000)?;
    cores("cpu_cores", node.cpu_cores)?;
    price("price_per_gpu_hour", node.price_per_gpu_hour)?;
    price("price_per_cpu_hour", node.price_per_cpu_hour)?;
    price("price_per_memory_gb_hour", node.price_per_memory_gb_hour)?;
    endpoints(node)?;
    free_form(node)?;
    gpus(&node.gpu_instances)
}

fn node_id(id: Option<&String>) -> Checked {
    let Some(id) = id else { return Ok(()) };
    let hex = id.strip_prefix("gpu-").is_some_and(|rest| {
        rest.len() == 12 && rest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    });
    if hex {
        return Ok(());
    }
    refuse(
        "node_id",
        "must be `gpu-` and twelve hexadecimal digits, as assigned by the server; omit it for a new node",
    )
}

fn endpoints(node: &NodeRegistration) -> Checked {
    web("api_endpoint", node.api_endpoint.as_ref())?;
    plain_option("ssh_endpoint", node.ssh_endpoint.as_ref(), limits::PLACE)?;
    plain_option("vnc_endpoint", node.vnc_endpoint.as_ref(), limits::PLACE)
}

/// Validates a URL that the server may call.
fn web(field: &str, endpoint: Option<&String>) -> Checked {
    let Some(endpoint) = endpoint.filter(|text| !text.is_empty()) else { return Ok(()) };
    plain(field, endpoint, limits::PLACE)?;
    let read = url::Url::parse(endpoint).ok();
    let fits = read.is_some_and(|url| {
        matches!(url.scheme(), "http" | "https" | "ws" | "wss")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
    });
    if fits {
        return Ok(());
    }
    refuse(field, "must be an address like `http://10.0.0.7:8080`, without a user name")
}

fn free_form(node: &NodeRegistration) -> Checked {
    few("node_metadata", node.node_metadata.len(), limits::ENTRIES)?;
    object("node_metadata", &node.node_metadata)?;
    for (field, value) in [("k8s_labels", &node.k8s_labels), ("k8s_taints", &node.k8s_taints)] {
        value.as_ref().map_or(Ok(()), |value| anything(field, value))?;
    }
    few("runtimes", node.runtimes.len(), 16)?;
    for runtime in &node.runtimes {
        name("runtimes", runtime, limits::NAME)?;
    }
    labels(&node.labels)
}

fn labels(labels: &BTreeMap<String, String>) -> Checked {
    few("labels", labels.len(), limits::ENTRIES)?;
    labels.iter().try_for_each(|(key, value)| {
        plain("labels", key, limits::NAME)?;
        plain("labels", value, limits::NAME)
    })
}

fn gpus(gpus: &[GpuInstance]) -> Checked {
    few("gpu_instances", gpus.len(), limits::GPUS as usize)?;
    for (at, gpu) in gpus.iter().enumerate() {
        let here = |field: &str| format!("gpu_instances[{at}].{field}");
        let texts = [
            ("gpu_uuid", &gpu.gpu_uuid),
            ("gpu_name", &gpu.gpu_name),
            ("gpu_type", &gpu.gpu_type),
            ("pci_bus_id", &gpu.pci_bus_id),
        ];
        texts.iter().try_for_each(|(field, text)| {
            plain_option(&here(field), text.as_ref(), limits::NAME)
        })?;
        at_most(&here("gpu_index"), gpu.gpu_index, limits::GPUS)?;
        at_most(&here("gpu_memory"), gpu.gpu_memory, limits::SIZE)?;
        at_most(&here("gpu_memory_available"), gpu.gpu_memory_available, limits::SIZE)?;
        at_most(&here("gpu_memory_foreign"), gpu.gpu_memory_foreign, limits::SIZE)?;
        readings(gpu, &here)?;
        slices(gpu, &here)?;
        let twice =
            gpu.gpu_uuid.is_some() && gpus[..at].iter().any(|other| other.gpu_uuid == gpu.gpu_uuid);
        if twice {
            return refuse(&here("gpu_uuid"), "is the UUID of an earlier GPU");
        }
    }
    Ok(())
}

fn readings(gpu: &GpuInstance, here: &impl Fn(&str) -> String) -> Checked {
    let values = [
        ("utilization", gpu.utilization, 0.0..=100.0),
        ("temperature", gpu.temperature, -273.0..=1000.0),
        ("power_usage", gpu.power_usage, 0.0..=100_000.0),
    ];
    for (field, value, range) in values {
        if value.is_some_and(|value| !range.contains(&value)) {
            let (low, high) = (range.start(), range.end());
            return refuse(&here(field), format!("must be {low} to {high}"));
        }
    }
    few(&here("throttled"), gpu.throttled.len(), 64)?;
    gpu.throttled.iter().try_for_each(|why| plain(&here("throttled"), why, limits::NAME))
}

fn slices(gpu: &GpuInstance, here: &impl Fn(&str) -> String) -> Checked {
    let Some(slices) = &gpu.mig else { return Ok(()) };
    few(&here("mig"), slices.len(), limits::SLICES)?;
    slices.iter().try_for_each(|slice| {
        plain(&here("mig"), &slice.profile, limits::NAME)?;
        plain(&here("mig"), &slice.uuid, limits::NAME)
    })
}

fn cores(field: &str, cores: Option<Cores>) -> Checked {
    if cores.is_some_and(|cores| cores.0 > limits::CPU_MILLI) {
        return refuse(field, "is more than any machine has");
    }
    Ok(())
}

fn price(field: &str, price: Option<Dollars>) -> Checked {
    if price.is_some_and(|price| !(0..=limits::PRICE).contains(&price.0)) {
        return refuse(field, "must be 0 or more, in dollars");
    }
    Ok(())
}

/// Validates a heartbeat. The caller compares the node in the body, if any.
pub fn check_heartbeat(beat: &Heartbeat) -> Checked {
    match &beat.node_id {
        None | Some(Value::Null | Value::Number(_)) => {}
        Some(Value::String(text)) => plain("node_id", text, limits::NAME)?,
        Some(_) => return refuse("node_id", "must be a `gpu-…` name or a number"),
    }
    at_most("gpu_memory_available", beat.gpu_memory_available, limits::SIZE)?;
    at_most("memory_available", beat.memory_available, limits::SIZE)?;
    at_most("storage_available", beat.storage_available, limits::SIZE)?;
    at_most("current_jobs", beat.current_jobs, 1_000_000)?;
    cores("cpu_cores_available", beat.cpu_cores_available)?;
    gpus(beat.gpu_instances.as_deref().unwrap_or_default())
}

/// Validates a change of a node.
pub fn check_node_update(update: &NodeUpdate) -> Checked {
    if update
        .status
        .is_some_and(|status| !matches!(status, NodeStatus::Active | NodeStatus::Maintenance))
    {
        return refuse(
            "status",
            "must be `maintenance` (no new jobs) or `active`; the node reports every other status",
        );
    }
    at_most("max_concurrent_jobs", update.max_concurrent_jobs, 100_000)?;
    price("price_per_gpu_hour", update.price_per_gpu_hour)?;
    price("price_per_cpu_hour", update.price_per_cpu_hour)?;
    price("price_per_memory_gb_hour", update.price_per_memory_gb_hour)?;
    plain_option("hostname", update.hostname.as_ref(), limits::NAME)?;
    plain_option("ip_address", update.ip_address.as_ref(), limits::NAME)?;
    plain_option("region", update.region.as_ref(), limits::NAME)?;
    plain_option("zone", update.zone.as_ref(), limits::NAME)?;
    update.labels.as_ref().map_or(Ok(()), labels)?;
    update.node_metadata.as_ref().map_or(Ok(()), |data| {
        few("node_metadata", data.len(), limits::ENTRIES)?;
        object("node_metadata", data)
    })
}

/// Validates the registration of an agent.
pub fn check_agent(agent: &AgentRegistration) -> Checked {
    name("agent_id", &agent.agent_id, limits::NAME)?;
    // Agents are looked up by name or number, so a name must not be a number.
    if agent.agent_id.bytes().all(|b| b.is_ascii_digit()) {
        return refuse("agent_id", "must not be a number");
    }
    plain_option("agent_version", agent.agent_version.as_ref(), limits::NAME)?;
    web("api_endpoint", agent.api_endpoint.as_ref())?;
    web("websocket_endpoint", agent.websocket_endpoint.as_ref())?;
    if agent.node_id.is_none() {
        return refuse("node_id", "is missing: the number (`id`) of the agent's node");
    }
    few("config", agent.config.len(), limits::ENTRIES)?;
    few("capabilities", agent.capabilities.len(), limits::ENTRIES)?;
    object("config", &agent.config)?;
    object("capabilities", &agent.capabilities)
}

/// Validates a change of an agent.
pub fn check_agent_update(update: &AgentUpdate) -> Checked {
    plain_option("agent_version", update.agent_version.as_ref(), limits::NAME)?;
    for (field, map) in [("config", &update.config), ("capabilities", &update.capabilities)] {
        map.as_ref().map_or(Ok(()), |map| {
            few(field, map.len(), limits::ENTRIES)?;
            object(field, map)
        })?;
    }
    Ok(())
}
