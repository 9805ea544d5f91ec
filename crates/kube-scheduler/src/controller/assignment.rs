//! Nodes and GPUs of the tasks of a workload: the plan first, then the kubelet's choice.

use agentaflow_engine::MicroDollars;
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_core::translate;
use std::collections::BTreeMap;

use super::task_pod::{self, TaskPod};
use super::task_table::TaskSlot;
use super::{PlannedTask, SchedulerView};

/// Limit of GPU names in a status: an object must not grow without end.
const MOST_NAMED: usize = 2_000;

/// Nodes and GPUs of all tasks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Assignment {
    /// Every task has a node or a placement in flight.
    pub(super) complete: bool,
    /// The kubelet reported every device.
    pub(super) confirmed: bool,
    /// Comma-separated.
    pub(super) nodes: Option<String>,
    /// `node/gpu-id`, comma-separated.
    pub(super) gpus: Option<String>,
    /// Price per hour of the tasks that are bound.
    pub(super) price: MicroDollars,
}

impl Assignment {
    /// In dollars; none if the GPUs have no price or are not assigned yet.
    pub(super) fn price_per_hour(&self) -> Option<String> {
        (self.price.0 > 0).then(|| translate::dollars(self.price))
    }
}

/// `needs_gpus` is false for a workload without GPUs.
pub(super) fn assignment(
    slots: &[TaskSlot<'_>],
    view: &SchedulerView,
    needs_gpus: bool,
) -> Assignment {
    let planned: BTreeMap<u32, &PlannedTask> =
        view.planned.iter().map(|planned| (planned.task, planned)).collect();
    let mut nodes: Vec<String> = Vec::new();
    let mut gpus: Vec<String> = Vec::new();
    let mut price = MicroDollars::default();
    let mut complete = true;
    let mut confirmed = true;
    for (task, slot) in (0_u32..).zip(slots) {
        let assigned = match slot {
            TaskSlot::Held(member) | TaskSlot::Done(Some(member)) => {
                of_pod(member, planned.get(&task))
            }
            TaskSlot::Done(None) => continue,
            TaskSlot::Ending(_) | TaskSlot::Empty(_) => {
                planned.get(&task).map(|plan| of_plan(plan))
            }
        };
        let Some(assigned) = assigned else {
            complete = false;
            continue;
        };
        confirmed &= assigned.confirmed || !needs_gpus || matches!(slot, TaskSlot::Done(_));
        confirmed &= assigned.bound;
        price.0 = price.0.saturating_add(assigned.price.0);
        add(&mut nodes, assigned.node);
        assigned.gpus.into_iter().for_each(|gpu| add(&mut gpus, gpu));
    }
    let (nodes, gpus) = (join(nodes), join(gpus));
    Assignment { complete, confirmed: confirmed && complete, nodes, gpus, price }
}

struct TaskAssignment {
    node: String,
    gpus: Vec<String>,
    bound: bool,
    confirmed: bool,
    price: MicroDollars,
}

fn of_plan(plan: &PlannedTask) -> TaskAssignment {
    let gpus = plan.gpus.iter().map(|gpu| format!("{}/{gpu}", plan.node)).collect();
    TaskAssignment {
        node: plan.node.clone(),
        gpus,
        bound: false,
        confirmed: false,
        price: MicroDollars(0),
    }
}

fn of_pod(member: &TaskPod<'_>, plan: Option<&&PlannedTask>) -> Option<TaskAssignment> {
    let Some(node) = task_pod::node(member.pod) else { return plan.map(|plan| of_plan(plan)) };
    let on_node = |gpu: &str| format!("{node}/{gpu}");
    let real = devices(member.pod);
    let confirmed = !real.is_empty();
    let gpus = if confirmed {
        real.iter().map(|gpu| on_node(gpu)).collect()
    } else if let Some(text) = annotation(member.pod, names::POD_ASSIGNED_GPU) {
        let whole = |gpu: &str| if gpu.contains('/') { gpu.to_owned() } else { on_node(gpu) };
        entries(text).map(whole).collect()
    } else {
        let plan = plan.filter(|plan| plan.node == node);
        plan.map(|plan| plan.gpus.iter().map(|gpu| on_node(gpu)).collect()).unwrap_or_default()
    };
    let price = annotation(member.pod, names::POD_PRICE).and_then(translate::micro_dollars);
    let price = price.unwrap_or_default();
    Some(TaskAssignment { node: node.to_owned(), gpus, bound: true, confirmed, price })
}

/// The devices that the kubelet allocated to a pod, from its status or the node monitor's annotation.
fn devices(pod: &Pod) -> Vec<String> {
    let mut all = Vec::new();
    let statuses = pod.status.container_statuses.iter().flatten();
    let init = pod.status.init_container_statuses.iter().flatten();
    for resource in
        init.chain(statuses).flat_map(|one| one.allocated_resources_status.iter().flatten())
    {
        if resource.name.starts_with("nvidia.com/") {
            for device in resource.resources.iter().flatten() {
                add(&mut all, device_of(&device.resource_id).to_owned());
            }
        }
    }
    if all.is_empty() {
        let text = annotation(pod, names::POD_DEVICES).unwrap_or_default();
        entries(text).for_each(|device| add(&mut all, device_of(device).to_owned()));
    }
    all.retain(|device| !device.is_empty());
    all
}

/// The name of a time slice of a device is `GPU-…::1`.
fn device_of(id: &str) -> &str {
    id.split_once("::").map_or(id, |(device, _)| device)
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

fn add(all: &mut Vec<String>, one: String) {
    if all.len() <= MOST_NAMED && !all.contains(&one) {
        all.push(one);
    }
}

fn join(mut all: Vec<String>) -> Option<String> {
    if all.len() > MOST_NAMED {
        all.truncate(MOST_NAMED);
        all.push("…".to_owned());
    }
    (!all.is_empty()).then(|| all.join(","))
}
