//! Input of one interval of the monitor.

use agentaflow_kube_core::names;
use agentaflow_kube_core::slim;
use std::collections::{BTreeMap, BTreeSet};

use agentaflow_gpu::{Device, Sample};

/// Labels of GPU nodes by feature discovery, clouds, administrators and agentaflow.
const SIGNS: [&str; 5] = [
    "accelerator",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-count",
    names::NODE_ENABLED,
];

/// Input of one interval.
#[derive(Clone, Debug)]
pub struct Observation {
    pub node: NodeFacts,
    /// GPUs, or the message of a failing driver.
    pub gpus: Result<Gpus, String>,
    pub holders: PodDevices,
    /// Target utilization in percent.
    pub goal: u32,
    /// Boot id.
    pub boot: String,
}

/// GPUs reported by the driver.
#[derive(Clone, Debug, Default)]
pub struct Gpus {
    /// Driver version.
    pub driver: String,
    pub devices: Vec<(Device, Sample)>,
}

/// Relevant data of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    pub name: String,
    /// Set by an administrator.
    pub closed: Option<Unschedulable>,
    /// Time slices of each device; 1 for whole devices.
    pub replicas: u32,
    /// A label or resource of the node indicates GPUs, independent of the driver.
    pub claims_gpus: bool,
}

/// Reason that the node accepts no new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unschedulable {
    Maintenance,
    Cordoned,
}

impl NodeFacts {
    pub fn read(node: &slim::Node) -> Self {
        let (labels, annotations) = (&node.metadata.labels, &node.metadata.annotations);
        let label = |key: &str| labels.as_ref().and_then(|labels| labels.get(key));
        let annotation = |key: &str| annotations.as_ref().and_then(|all| all.get(key));
        let is_true = |value: Option<&String>| value.is_some_and(|value| value == "true");
        let maintenance =
            is_true(label(names::NODE_MAINTENANCE)) || is_true(annotation(names::NODE_MAINTENANCE));
        let closed = match (maintenance, node.spec.unschedulable) {
            (true, _) => Some(Unschedulable::Maintenance),
            (false, Some(true)) => Some(Unschedulable::Cordoned),
            (false, _) => None,
        };
        let replicas = label(names::NVIDIA_REPLICAS).and_then(|text| text.parse().ok());
        let allocatable = node.status.allocatable.iter().flatten();
        let offers = allocatable
            .filter(|(name, _)| name.starts_with("nvidia.com/"))
            .any(|(_, amount)| amount.0 != "0");
        let named = labels.iter().flatten().any(|(key, _)| is_sign(key));
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            closed,
            replicas: replicas.unwrap_or(1).clamp(1, 1_000),
            claims_gpus: offers || named,
        }
    }
}

fn is_sign(label: &str) -> bool {
    label.starts_with("nvidia.com/gpu") || SIGNS.contains(&label)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for PodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Devices of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDevices {
    /// Thousandths of each device by pod: a whole device is 1000, a slice its share.
    pub pods: BTreeMap<PodName, BTreeMap<String, u32>>,
}

/// Allocation of the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub pod: PodName,
    /// Device ids of the kubelet.
    pub ids: Vec<String>,
}

impl PodDevices {
    /// Devices of pods from allocations; unknown ids are skipped.
    pub fn of(allocations: &[Allocation], devices: &[Device], replicas: u32) -> Self {
        let mut holders = Self::default();
        for allocation in allocations {
            for id in &allocation.ids {
                if let Some((device, milli)) = device_of(id, devices, replicas) {
                    let held = holders.pods.entry(allocation.pod.clone()).or_default();
                    let sum = held.entry(device.to_owned()).or_default();
                    *sum = sum.saturating_add(milli).min(1_000);
                }
            }
        }
        holders
    }

    /// Pods of a device, comma-separated.
    pub fn of_device(&self, device: &str) -> Option<String> {
        let pods: BTreeSet<String> = self
            .pods
            .iter()
            .filter(|(_, devices)| devices.contains_key(device))
            .map(|(pod, _)| pod.to_string())
            .collect();
        (!pods.is_empty()).then(|| pods.into_iter().collect::<Vec<_>>().join(","))
    }
}

/// Device of a kubelet id, and thousandths of it. Time slices have a suffix (`GPU-…::3`; Google's plugin uses
/// `nvidia0/vgpu3`), MIG slices are part of their GPU, and some plugins use indices.
fn device_of<'a>(id: &str, devices: &'a [Device], replicas: u32) -> Option<(&'a str, u32)> {
    let cut = id.split_once("::").or_else(|| id.split_once('/'));
    let (id, slices) = cut.map_or((id, 1), |(device, _)| (device, replicas.max(1)));
    let index: Option<u32> = id.strip_prefix("nvidia").unwrap_or(id).parse().ok();
    let share = |gpu: &Device| {
        if gpu.uuid == id || index == Some(gpu.index) {
            return Some(1_000);
        }
        let mig = gpu.mig.iter().flatten().find(|slice| slice.uuid == id)?;
        Some(mig_share(&mig.profile, &gpu.name))
    };
    let (gpu, milli) = devices.iter().find_map(|gpu| Some((gpu, share(gpu)?)))?;
    Some((gpu.uuid.as_str(), milli / slices))
}

/// Compute slices of the profile (`3g.20gb`) divided by the compute slices of the model.
fn mig_share(profile: &str, model: &str) -> u32 {
    let all = if model.contains("A30") { 4 } else { 7 };
    let slices = profile.split_once('g').and_then(|(number, _)| number.parse::<u32>().ok());
    (slices.unwrap_or(all).min(all) * 1_000).div_ceil(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentaflow_gpu::MigDevice;

    fn devices() -> Vec<Device> {
        let slice =
            MigDevice { uuid: "MIG-1".into(), profile: "3g.20gb".into(), ..MigDevice::default() };
        let gpu = |index, uuid: &str| Device { index, uuid: uuid.into(), ..Device::default() };
        vec![gpu(0, "GPU-a"), Device { mig: Some(vec![slice]), ..gpu(1, "GPU-b") }]
    }

    #[test]
    fn every_way_to_write_a_device_is_understood() {
        for (id, expected) in [
            ("GPU-a", Some(("GPU-a", 1_000))),
            ("GPU-b::7", Some(("GPU-b", 250))),
            ("MIG-1", Some(("GPU-b", 429))),
            ("MIG-1::0", Some(("GPU-b", 107))),
            ("nvidia1", Some(("GPU-b", 1_000))),
            ("nvidia0/vgpu3", Some(("GPU-a", 250))),
            ("1", Some(("GPU-b", 1_000))),
            ("GPU-c", None),
            ("nvidia9", None),
            ("", None),
            ("::", None),
        ] {
            assert_eq!(device_of(id, &devices(), 4), expected, "{id}");
        }
    }

    #[test]
    fn a_shared_device_names_all_its_pods() {
        let pod = |name: &str| PodName { namespace: "ml".into(), name: name.into() };
        let given = |name: &str, ids: &[&str]| Allocation {
            pod: pod(name),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        let allocations = [given("b", &["GPU-a::1"]), given("a", &["GPU-a::0", "GPU-a::2"])];
        let holders = PodDevices::of(&allocations, &devices(), 4);
        assert_eq!(holders.of_device("GPU-a").as_deref(), Some("ml/a,ml/b"));
        assert_eq!(holders.of_device("GPU-b"), None);
        assert_eq!(holders.pods[&pod("a")], BTreeMap::from([("GPU-a".to_owned(), 500)]));
    }

    #[test]
    fn a_node_is_closed_by_a_cordon_or_by_the_word_maintenance() {
        let read =
            |value: serde_json::Value| NodeFacts::read(&serde_json::from_value(value).unwrap());
        let open = read(serde_json::json!({"metadata": {"name": "n"}}));
        assert_eq!((open.closed, open.replicas, open.claims_gpus), (None, 1, false));
        let cordoned = read(serde_json::json!({"spec": {"unschedulable": true},
            "status": {"allocatable": {"nvidia.com/mig-1g.5gb": "7"}}}));
        assert_eq!((cordoned.closed, cordoned.claims_gpus), (Some(Unschedulable::Cordoned), true));
        for place in ["labels", "annotations"] {
            let node =
                read(serde_json::json!({"metadata": {place: {names::NODE_MAINTENANCE: "true"}}}));
            assert_eq!(node.closed, Some(Unschedulable::Maintenance), "{place}");
        }
        let sliced =
            read(serde_json::json!({"metadata": {"labels": {names::NVIDIA_REPLICAS: "4"}}}));
        assert_eq!((sliced.replicas, sliced.claims_gpus), (4, true));
        let cloud =
            read(serde_json::json!({"metadata": {"labels": {"accelerator": "nvidia-tesla-v100"}}}));
        assert!(cloud.claims_gpus);
        let odd = read(serde_json::json!({"metadata": {"labels": {names::NVIDIA_REPLICAS: "-1"}}}));
        assert_eq!(odd.replicas, 1);
    }
}
