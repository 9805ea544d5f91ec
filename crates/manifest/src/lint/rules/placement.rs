//! Taints, affinity, and fit of the requests on the selected machine.

use agentaflow_units::{Amount, quantity_of_mib};
use serde_json::{Value, json};

use crate::cloud::{self, GPU_TAINT as TAINT, Gpu, INSTANCE_TYPE, gpu_named};
use crate::lint::amount::amount;
use crate::lint::machine::Machine;
use crate::lint::object::{Container, Pod, list, text};
use crate::lint::{Findings, Operation, Rule, Set, append, set};

/// Requests of `DaemonSets` (device plugin, monitoring, network), which a fix leaves free.
const DAEMONS_CPU_MILLI: u64 = 420;
const DAEMONS_MEMORY_MIB: u64 = 1024;

pub(super) static AF101: Rule = rule! {
    "AF101" "no-gpu-toleration" Warning fixable true;
    title: "The pod does not tolerate the taint of GPU nodes",
    why: "GPU nodes usually have the taint `nvidia.com/gpu`, which repels pods without GPUs. A GPU pod without the \
          toleration stays pending. GKE adds the toleration automatically.",
    advice: "Tolerate any value of the taint: `operator: Exists`.",
    check: no_toleration,
};

pub(super) static AF102: Rule = rule! {
    "AF102" "toleration-of-one-value" Warning fixable true;
    title: "The toleration matches only one value of the GPU taint",
    why: "The value of the GPU taint is `true` in some clusters and `present` in other clusters. `operator: Equal` \
          with `\"true\"` does not tolerate the second, and the pod stays pending there.",
    advice: "Use `operator: Exists` without `value`.",
    check: one_value,
};

pub(super) static AF107: Rule = rule! {
    "AF107" "affinity-and-not-or" Warning fixable true;
    title: "Alternative node conditions are combined with AND",
    why: "All expressions of one `nodeSelectorTerms` item must match. A condition on the product followed by one on \
          the memory is an AND: only nodes that match both are eligible.",
    advice: "Use two items of `nodeSelectorTerms`: one matching item is sufficient.",
    check: both_must_hold,
};

pub(super) static AF108: Rule = rule! {
    "AF108" "does-not-fit-machine" Error fixable true;
    title: "The request exceeds the allocatable resources of the machine",
    why: "A node reserves some CPU and memory for the system. A pod that requests the nominal resources of the \
          machine type (4 CPUs and 16 GiB on a g4dn.xlarge) never fits, and an autoscaler adds nodes in vain.",
    advice: "Request less than the allocatable resources, or select a larger machine. For manifests that select no \
             machine type, `--machine g4dn.xlarge` sets the type of the GPU nodes.",
    check: does_not_fit,
};

pub(super) static AF109: Rule = rule! {
    "AF109" "no-gpu-type" Info;
    title: "The pod accepts any GPU",
    why: "Without a node selector or affinity, a training job for an A100 can start on a T4 and run out of GPU \
          memory an hour later.",
    advice: "Select nodes by `nvidia.com/gpu.product`, by the cloud's label, or by a GPUWorkload's \
             `gpuRequirements`.",
    check: no_type,
};

fn tolerates(toleration: &Value) -> bool {
    let key = text(toleration, &["key"]).unwrap_or_default();
    let effect = text(toleration, &["effect"]).unwrap_or_default();
    let all = key.is_empty() && text(toleration, &["operator"]) == Some("Exists");
    (key == TAINT || all) && matches!(effect, "" | "NoSchedule")
}

fn no_toleration(set: &Set<'_>, findings: &mut Findings<'_>) {
    // The agentaflow scheduler adds the tolerations of a GPUWorkload's pods.
    for pod in set.gpu_pods().filter(|pod| !pod.object.is(&["GPUWorkload"])) {
        if chooses_google(&pod) || pod.tolerations().iter().any(tolerates) {
            continue;
        }
        let value = json!({"key": TAINT, "operator": "Exists", "effect": "NoSchedule"});
        let fix = vec![append(pod.join(&["tolerations"]), value)];
        findings.add_with(
            &pod.object,
            &pod.path,
            "the pod requests GPUs but does not tolerate the taint nvidia.com/gpu",
            fix,
        );
    }
}

/// True if nodes are selected by a label of GKE, which adds the toleration to every pod with GPUs.
fn chooses_google(pod: &Pod<'_>) -> bool {
    let google = |label: &str| label.starts_with("cloud.google.com/");
    let expressions = pod.expressions();
    let mut keys = expressions.iter().filter_map(|(item, _)| text(item, &["key"]));
    keys.any(google) || pod.selector().iter().any(|(label, ..)| google(label))
}

fn one_value(set: &Set<'_>, findings: &mut Findings<'_>) {
    let any_value = |one: &Value| tolerates(one) && text(one, &["operator"]) == Some("Exists");
    for pod in set.pods().filter(|pod| !pod.tolerations().iter().any(any_value)) {
        for (number, toleration) in pod.tolerations().iter().enumerate() {
            let equal = matches!(text(toleration, &["operator"]), None | Some("Equal"));
            let Some(value) = toleration.get("value") else { continue };
            if text(toleration, &["key"]) != Some(TAINT) || !equal {
                continue;
            }
            let path = pod.join(&["tolerations", &number.to_string()]);
            let at = |key: &str| [path.clone(), vec![key.to_owned()]].concat();
            let fix =
                vec![self::set(at("operator"), "Exists"), Operation::Remove { path: at("value") }];
            let message = format!(
                "the toleration matches only nvidia.com/gpu={}, not other values such as `present`",
                plain(value)
            );
            findings.add_with(&pod.object, &path, message, fix);
        }
    }
}

fn both_must_hold(set: &Set<'_>, findings: &mut Findings<'_>) {
    let by_product =
        |key: &str| [cloud::PRODUCT, cloud::GKE_ACCELERATOR, cloud::ACCELERATOR].contains(&key);
    let by_memory = |key: &str| key.to_lowercase().contains("memory");
    for pod in set.pods() {
        let terms = [
            "affinity",
            "nodeAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
            "nodeSelectorTerms",
        ];
        for (number, term) in list(pod.spec, &terms).iter().enumerate() {
            let keys: Vec<_> = list(term, &["matchExpressions"])
                .iter()
                .map(|item| text(item, &["key"]).unwrap_or_default())
                .collect();
            let (Some(product), Some(memory)) = (
                keys.iter().position(|key| by_product(key)),
                keys.iter().position(|key| by_memory(key)),
            ) else {
                continue;
            };
            let mut path = pod.join(&terms);
            path.extend([number.to_string(), "matchExpressions".to_owned()]);
            let second = product.max(memory);
            let message = format!(
                "{} and {} must both match; use two items of nodeSelectorTerms for an \"or\"",
                keys[product], keys[memory]
            );
            let fix = Operation::Split { path: path.clone(), at: second };
            path.push(second.to_string());
            // Two expressions are certainly alternatives; with three the grouping is ambiguous.
            let fix = if keys.len() == 2 { vec![fix] } else { Vec::new() };
            findings.add_with(&pod.object, &path, message, fix);
        }
    }
}

fn does_not_fit(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods() {
        // One sufficient type is enough: check the largest.
        let mut names = pod.required(INSTANCE_TYPE);
        if names.is_empty() && pod.wants_gpu() {
            names.extend(set.machine);
        }
        let machines: Option<Vec<_>> =
            names.iter().map(|name| set.machines.machine(name)).collect();
        let Some(machines) = machines else { continue };
        let largest = names
            .iter()
            .zip(machines)
            .max_by_key(|(_, machine)| (machine.gpus, machine.memory_mib));
        let Some((name, machine)) = largest else { continue };
        gpus_fit(&pod, name, &machine, findings);
        part_fits(&pod, name, &machine, &CPU, findings);
        part_fits(&pod, name, &machine, &MEMORY, findings);
        same_model(&pod, name, &machine, findings);
    }
}

fn gpus_fit(pod: &Pod<'_>, name: &str, machine: &Machine, findings: &mut Findings<'_>) {
    // GKE advertises each slice as a GPU, and a machine has several.
    if pod.at(&["nodeSelector", cloud::GKE_PARTITION]).is_some() {
        return;
    }
    let whole: u64 = pod
        .containers()
        .iter()
        .filter(|c| c.resource("limits", TAINT).is_some())
        .map(Container::gpus)
        .sum();
    if whole > u64::from(machine.gpus) {
        let message = format!("requests {whole} GPUs, but a {name} has {}", machine.gpus);
        findings.add(&pod.object, &pod.path, message);
    }
}

fn same_model(pod: &Pod<'_>, name: &str, machine: &Machine, findings: &mut Findings<'_>) {
    for (label, value, path) in pod.selector() {
        let named = [cloud::ACCELERATOR, cloud::GKE_ACCELERATOR, cloud::PRODUCT].contains(&label);
        let model = value.as_str().filter(|_| named).and_then(gpu_named).map(Gpu::family);
        if let Some(model) = model.filter(|model| !machine.models.contains(model)) {
            let message = format!(
                "selects {model} GPUs on a {name}, which has {}: no node matches both",
                machine.models.join(" or ")
            );
            findings.add(&pod.object, &path, message);
        }
    }
}

struct MachineResource {
    resource: &'static str,
    left: fn(&Machine) -> Amount,
    /// Rest of the machine after the usual `DaemonSets`, as a quantity; none where nothing is left.
    fix: fn(&Machine) -> Option<String>,
    format: fn(Amount) -> String,
}

const CPU: MachineResource = MachineResource {
    resource: "cpu",
    left: |machine| Amount::from_milli(machine.cpu_milli),
    fix: |machine| {
        let milli = machine.cpu_milli.checked_sub(DAEMONS_CPU_MILLI).filter(|milli| *milli > 0);
        milli.map(|milli| format!("{milli}m"))
    },
    format: |amount| format!("{}m", amount.floor_milli()),
};

const MEMORY: MachineResource = MachineResource {
    resource: "memory",
    left: |machine| Amount::from_mib(machine.memory_mib),
    fix: |machine| {
        let mib = machine.memory_mib.checked_sub(DAEMONS_MEMORY_MIB).filter(|mib| *mib > 0);
        mib.map(quantity_of_mib)
    },
    format: |amount| quantity_of_mib(amount.floor_mib()),
};

fn part_fits(
    pod: &Pod<'_>,
    name: &str,
    machine: &Machine,
    part: &MachineResource,
    findings: &mut Findings<'_>,
) {
    let (beside, _) = pod.initial_containers();
    let containers = [pod.containers(), beside].concat();
    let requested = |container: &Container<'_>| {
        let value = container
            .resource("requests", part.resource)
            .or_else(|| container.resource("limits", part.resource));
        value.and_then(amount).unwrap_or_default()
    };
    let sum: Amount = containers.iter().map(requested).sum();
    let left = (part.left)(machine);
    let first = largest_first(pod, requested).filter(|(most, _)| *most > sum.max(left));
    if let Some((most, container)) = first {
        let path = container.join(&["resources", "requests", part.resource]);
        let message = format!(
            "an init container requests {} of {}, but a {name} has {} allocatable",
            (part.format)(most),
            part.resource,
            (part.format)(left)
        );
        findings.add(&pod.object, &path, message);
        return;
    }
    if sum <= left {
        return;
    }
    let Some(most) = containers.iter().max_by_key(|container| requested(container)) else {
        return;
    };
    let path = most.join(&["resources", "requests", part.resource]);
    let message = format!(
        "requests {} of {}, but a {name} has {} allocatable",
        (part.format)(sum),
        part.resource,
        (part.format)(left)
    );
    // With several containers the split is the user's decision.
    let fix = (part.fix)(machine).filter(|_| containers.len() == 1);
    let fix = fix.map(|quantity| set(path.clone(), quantity));
    findings.add_with(&pod.object, &path, message, fix.into_iter().collect());
}

/// Largest request of an init container that completes, including sidecars.
fn largest_first<'a>(
    pod: &Pod<'a>,
    requested: impl Fn(&Container<'_>) -> Amount,
) -> Option<(Amount, Container<'a>)> {
    let (beside, first) = pod.initial_containers();
    let beside: Amount = beside.iter().map(&requested).sum();
    let all = first
        .into_iter()
        .map(|container| (requested(&container).saturating_add(beside), container));
    all.max_by_key(|(amount, _)| *amount)
}

fn no_type(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.gpu_pods().filter(|pod| !pod.object.is(&["GPUWorkload", "DaemonSet"])) {
        let chosen = !pod.selector().is_empty()
            || !pod.expressions().is_empty()
            || pod.at(&["nodeName"]).is_some();
        let sliced = pod
            .all_containers()
            .iter()
            .any(|c| c.gpu_resources().iter().any(|name| name.contains("/mig-")));
        if !chosen && !sliced {
            findings.add(
                &pod.object,
                &pod.path,
                "no node selector and no node affinity: any GPU model is accepted",
            );
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
