//! Resource requests of pods.

use agentaflow_engine::{MiB, MilliCpu, ResourceName};
use agentaflow_units::Amount;
use k8s_openapi::api::core::v1::ResourceRequirements;
use std::collections::BTreeMap;

use super::quantity::{Amounts, Quantities, amounts};
use crate::names;
use crate::slim::{Container, ContainerStatus, Pod};

const CPU: &str = "cpu";
const MEMORY: &str = "memory";
const STORAGE: &str = "ephemeral-storage";
const HUGE_PAGES: &str = "hugepages-";

/// Resources that a pod uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    pub(super) cpu: MilliCpu,
    pub(super) memory: MiB,
    /// Ephemeral storage.
    pub(super) storage: MiB,
    /// Whole GPUs, or time slices of them.
    pub(super) gpus: u64,
    /// Other resources, with the pod itself as one of `pods`.
    pub(super) resources: BTreeMap<ResourceName, u64>,
}

/// Requests of a pod; an invalid quantity is an error.
pub(super) fn needs(pod: &Pod) -> Result<Needs, String> {
    total(pod, amounts).map(Needs::of)
}

/// Requests of a pod; invalid quantities are ignored.
pub(super) fn takes(pod: &Pod) -> Needs {
    Needs::of(readable_total(pod))
}

/// True if two pods have equal requests.
pub fn has_equal_requests(pod: &Pod, other: &Pod) -> bool {
    takes(pod) == takes(other)
}

/// Requested whole GPUs or time slices; 0 if invalid.
pub fn gpu_need(pod: &Pod) -> u32 {
    u32::try_from(takes(pod).gpus).unwrap_or(u32::MAX)
}

/// Requested NVIDIA resources, such as `nvidia.com/gpu` and `nvidia.com/mig-1g.5gb`.
pub fn gpu_resources(pod: &Pod) -> BTreeMap<String, u64> {
    let all = readable_total(pod);
    let ours = |name: &str| name == names::GPU_RESOURCE || name.starts_with("nvidia.com/");
    let some = all.into_iter().filter(|(name, amount)| ours(name) && *amount > Amount::default());
    some.map(|(name, amount)| (name, amount.ceil_units())).collect()
}

impl Needs {
    fn of(total: Amounts) -> Self {
        let mut needs = Self::default();
        needs.resources.insert(names::PODS_RESOURCE.into(), 1);
        for (name, amount) in total {
            match name.as_str() {
                CPU => needs.cpu = MilliCpu(amount.ceil_milli()),
                MEMORY => needs.memory = MiB(amount.ceil_mib()),
                STORAGE => needs.storage = MiB(amount.ceil_mib()),
                names::GPU_RESOURCE => needs.gpus = amount.ceil_units(),
                names::PODS_RESOURCE => {}
                _ if amount == Amount::default() => {}
                _ => {
                    needs.resources.insert(name.into(), amount.ceil_units());
                }
            }
        }
        needs
    }
}

/// Allocatable resources of a node, rounded down; invalid quantities count as absent.
pub(super) fn offers(allocatable: Option<&Quantities>) -> Needs {
    let all = allocatable.map(readable).unwrap_or_default();
    let mut offers = Needs::default();
    for (name, amount) in all {
        match name.as_str() {
            CPU => offers.cpu = MilliCpu(amount.floor_milli()),
            MEMORY => offers.memory = MiB(amount.floor_mib()),
            STORAGE => offers.storage = MiB(amount.floor_mib()),
            names::GPU_RESOURCE => offers.gpus = amount.floor_units(),
            _ => {
                offers.resources.insert(name.into(), amount.floor_units());
            }
        }
    }
    offers
}

type Read = fn(&Quantities) -> Result<Amounts, String>;

/// Valid quantities.
fn readable(list: &Quantities) -> Amounts {
    let read = list.iter().filter_map(|(name, quantity)| {
        Amount::parse(&quantity.0).ok().map(|amount| (name.clone(), amount))
    });
    read.collect()
}

fn readable_total(pod: &Pod) -> Amounts {
    total(pod, |list| Ok(readable(list))).unwrap_or_default()
}

/// Largest concurrent request: all containers with the sidecars, or one init container with the sidecars started
/// before it; or the pod-level request; plus overhead.
fn total(pod: &Pod, read: Read) -> Result<Amounts, String> {
    let mut total = containers(pod, read)?;
    if let Some(whole) = &pod.spec.resources {
        let asked = whole_pod(whole, &total, read)?;
        let mut most = asked.clone();
        if let Some(has) = &pod.status.resources {
            let promised = pod.status.allocated_resources.as_ref();
            most =
                the_most(asked.clone(), has.requests.as_ref(), promised, is_resize_infeasible(pod));
        }
        for name in asked.into_keys() {
            let amount = most.get(&name).copied().unwrap_or_default();
            total.insert(name, amount);
        }
    }
    if let Some(overhead) = &pod.spec.overhead {
        add(&mut total, &read(overhead)?);
    }
    Ok(total)
}

fn containers(pod: &Pod, read: Read) -> Result<Amounts, String> {
    let infeasible = is_resize_infeasible(pod);
    let of = |container: &Container, statuses: &Option<Vec<ContainerStatus>>| {
        let status = statuses.iter().flatten().find(|status| status.name == container.name);
        effective(container, status, infeasible, read)
    };
    let mut sum = Amounts::new();
    for container in &pod.spec.containers {
        add(&mut sum, &of(container, &pod.status.container_statuses)?);
    }
    let mut sidecars = Amounts::new();
    let mut most = Amounts::new();
    for container in pod.spec.init_containers.iter().flatten() {
        if is_sidecar(container) {
            let own = of(container, &pod.status.init_container_statuses)?;
            add(&mut sum, &own);
            add(&mut sidecars, &own);
            raise(&mut most, &sidecars);
        } else {
            let mut own = effective(container, None, infeasible, read)?;
            add(&mut own, &sidecars);
            raise(&mut most, &own);
        }
    }
    raise(&mut sum, &most);
    Ok(sum)
}

/// True for an init container that keeps running.
pub(super) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Request of a container; during a resize the maximum.
fn effective(
    container: &Container,
    status: Option<&ContainerStatus>,
    infeasible: bool,
    read: Read,
) -> Result<Amounts, String> {
    let asked =
        container.resources.as_ref().map(|r| requests(r, read)).transpose()?.unwrap_or_default();
    let Some((status, has)) = status.and_then(|status| Some((status, status.resources.as_ref()?)))
    else {
        return Ok(asked);
    };
    let promised = status.allocated_resources.as_ref();
    Ok(the_most(asked, has.requests.as_ref(), promised, infeasible))
}

/// Maximum of requested, allocated and actual resources; an infeasible resize does not count.
fn the_most(
    asked: Amounts,
    has: Option<&Quantities>,
    promised: Option<&Quantities>,
    infeasible: bool,
) -> Amounts {
    let mut most = if infeasible { Amounts::new() } else { asked };
    for amounts in [has, promised].into_iter().flatten() {
        raise(&mut most, &readable(amounts));
    }
    most
}

/// Requests, defaulted from the limits like the API server does.
fn requests(resources: &ResourceRequirements, read: Read) -> Result<Amounts, String> {
    let mut all = resources.limits.as_ref().map(read).transpose()?.unwrap_or_default();
    if let Some(requests) = &resources.requests {
        all.extend(read(requests)?);
    }
    Ok(all)
}

/// Pod-level requests, for the resources that support them.
fn whole_pod(
    resources: &ResourceRequirements,
    containers: &Amounts,
    read: Read,
) -> Result<Amounts, String> {
    let requests = resources.requests.as_ref().map(read).transpose()?.unwrap_or_default();
    let limits = resources.limits.as_ref().map(read).transpose()?.unwrap_or_default();
    let mut whole = requests;
    for (name, limit) in limits {
        // The sum of the containers takes precedence, except for huge pages, which cannot be overcommitted.
        let known = name.starts_with(HUGE_PAGES) || !containers.contains_key(&name);
        if known {
            whole.entry(name).or_insert(limit);
        }
    }
    whole.retain(|name, _| matches!(name.as_str(), CPU | MEMORY) || name.starts_with(HUGE_PAGES));
    Ok(whole)
}

fn is_resize_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.conditions.iter().flatten();
    let pending = conditions.into_iter().find(|condition| condition.kind == "PodResizePending");
    pending.is_some_and(|condition| condition.reason.as_deref() == Some("Infeasible"))
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let entry = sum.entry(name.clone()).or_default();
        *entry = entry.saturating_add(*amount);
    }
}

fn raise(most: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = most.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}
