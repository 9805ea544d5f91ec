//! Slices of GPUs: MIG and time-slicing.

use agentaflow_engine::mig::known_profile;
use agentaflow_units::{did_you_mean, nearest};
use serde_json::Value;

use crate::cloud::{
    ACCELERATOR, GKE_ACCELERATOR, GKE_PARTITION, Gpu, INSTANCE_TYPE, KARPENTER_GPU_NAME, PRODUCT,
    gpu_named,
};
use crate::lint::object::{Container, Object, Pod, list, text};
use crate::lint::{Findings, Operation, Rule, Set};
use crate::mig::{self, Slices};
use crate::yaml::{Limits, read_text};

pub(super) static AF004: Rule = rule! {
    "AF004" "several-gpu-kinds" Warning;
    title: "One container requests several kinds of GPU",
    why: "Entries of `limits` add up, they are not alternatives: a container with four MIG profiles gets one slice \
          of each, or stays pending until a node has them all. A CUDA process can use only one MIG slice.",
    advice: "Keep only the intended one.",
    check: several_kinds,
};

pub(super) static AF005: Rule = rule! {
    "AF005" "mig-with-time-slicing" Warning;
    title: "MIG and time-slicing are combined",
    why: "MIG isolates the memory and processors of each slice; time-slicing removes the isolation: all pods of a \
          slice share its memory, and one pod can starve or crash the rest.",
    advice: "Time-slice whole GPUs (`nvidia.com/gpu`, no `migStrategy`) on some nodes and use MIG on other nodes, \
             each with its own configuration of the device plugin.",
    check: mig_with_time_slicing,
};

pub(super) static AF006: Rule = rule! {
    "AF006" "unknown-mig-profile" Error fixable true;
    title: "Unknown MIG profile",
    why: "The device plugin provides one resource for each profile of the GPU. A pod with a profile that the GPU \
          does not have stays pending.",
    advice: "Use a profile of your GPU: `1g.5gb`, `2g.10gb`, `3g.20gb`, `7g.40gb` on an A100 with 40 GB; `1g.10gb`, \
             `2g.20gb`, `3g.40gb`, `7g.80gb` on an A100 or H100 with 80 GB.",
    check: unknown_profile,
};

fn several_kinds(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods() {
        for container in pod.all_containers() {
            let kinds = container.gpu_resources();
            if kinds.len() > 1 {
                let path = container.join(&["resources", "limits"]);
                let message = format!(
                    "container `{}` requests {} together; they add up",
                    container.name(),
                    kinds.join(" and ")
                );
                findings.add(&pod.object, &path, message);
            }
        }
    }
}

fn mig_with_time_slicing(set: &Set<'_>, findings: &mut Findings<'_>) {
    for object in set.objects.iter().filter(|object| object.is(&["ConfigMap"])) {
        let Some(Value::Object(data)) = object.at(&["data"]) else { continue };
        for (key, value) in data {
            let mixed = value.as_str().and_then(mixed_in);
            if let Some(message) = mixed {
                findings.add(object, &object.join(&["data", key]), message);
            }
        }
    }
    shared_slices(set, findings);
}

/// Conflict in a configuration of the device plugin.
fn mixed_in(config: &str) -> Option<String> {
    if !config.contains("timeSlicing") {
        return None;
    }
    let documents = read_text(config, &Limits::default()).ok()?;
    documents.iter().find_map(|document| {
        let resources = list(&document.value, &["sharing", "timeSlicing", "resources"]);
        let sliced = resources.iter().find_map(|resource| {
            text(resource, &["name"]).filter(|name| name.starts_with("nvidia.com/mig-"))
        });
        if let Some(name) = sliced {
            return Some(format!("{name} is a MIG slice and time-sliced as well"));
        }
        let strategy = text(&document.value, &["flags", "migStrategy"])?;
        let on = strategy != "none" && !resources.is_empty();
        on.then(|| format!("migStrategy is `{strategy}` while GPUs are time-sliced"))
    })
}

/// Pods that request MIG slices on nodes with time-slicing.
fn shared_slices(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.gpu_pods() {
        let kinds: Vec<_> =
            pod.all_containers().iter().flat_map(Container::gpu_resources).collect();
        let mig = kinds.iter().any(|name| name.starts_with("nvidia.com/mig-"));
        let shared = pod.required("nvidia.com/gpu.sharing-strategy").contains(&"time-slicing");
        if mig && shared {
            let message = "requests a MIG slice on nodes with time-sliced GPUs";
            findings.add(&pod.object, &pod.path, message);
        }
    }
}

fn unknown_profile(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods() {
        for container in pod.all_containers() {
            for part in ["limits", "requests"] {
                let Some(Value::Object(map)) = container.at(&["resources", part]) else { continue };
                for name in map.keys() {
                    let path = container.join(&["resources", part, name.as_str()]);
                    profile(&pod.object, name, &path, findings);
                    let problem = (part == "limits").then(|| of_no_gpu(set, &pod, name)).flatten();
                    if let Some(problem) = problem {
                        findings.add(&pod.object, &path, problem);
                    }
                }
            }
        }
        // GKE has the profile in a label, and advertises a slice as a GPU.
        let Some(profile) = text(pod.spec, &["nodeSelector", GKE_PARTITION]) else { continue };
        if let Some(problem) = of_no_gpu(set, &pod, &format!("nvidia.com/mig-{profile}")) {
            findings.add(&pod.object, &pod.join(&["nodeSelector", GKE_PARTITION]), problem);
        }
    }
}

/// Problem of a resource whose slices no GPU of the selected nodes has; none if one has them or the GPUs are unknown.
fn of_no_gpu(set: &Set<'_>, pod: &Pod<'_>, resource: &str) -> Option<String> {
    let profile = known_profile(resource.strip_prefix("nvidia.com/mig-")?)?;
    let labels = [PRODUCT, GKE_ACCELERATOR, ACCELERATOR, KARPENTER_GPU_NAME, INSTANCE_TYPE];
    labels.into_iter().find_map(|label| {
        let mut problems = Vec::new();
        for value in pod.bound_to(label)? {
            for gpu in models(set, label, value)? {
                problems.push(Slices { profile, count: 1 }.gpus(gpu).err()?);
            }
        }
        let problem = problems.first()?;
        Some(format!("{problem}; {label} allows no other GPU"))
    })
}

/// Models of nodes with this label value; two labels carry the memory size.
fn models(set: &Set<'_>, label: &str, value: &str) -> Option<Vec<&'static Gpu>> {
    match label {
        INSTANCE_TYPE => {
            let families = set.machines.machine(value)?.models;
            let models = families.iter().filter_map(|family| gpu_named(family));
            Some(models.flat_map(Gpu::served_by).collect())
        }
        PRODUCT | GKE_ACCELERATOR => Some(vec![gpu_named(value)?]),
        _ => Some(gpu_named(value)?.served_by().collect()),
    }
}

fn profile(object: &Object<'_>, name: &str, path: &[String], findings: &mut Findings<'_>) {
    let Some(profile) = name.strip_prefix("nvidia.com/mig-") else { return };
    // Shares of a slice that the device plugin renames.
    let profile = profile.strip_suffix(".shared").unwrap_or(profile);
    if mig::profiles().any(|known| known == profile) {
        return;
    }
    let near = nearest(profile, mig::profiles());
    let meant = did_you_mean(near.map(|near| format!("nvidia.com/mig-{near}")));
    // Corrects only typing errors, not another memory size.
    let slip = near.filter(|near| digits(near) == digits(profile));
    let fix = slip.map(|near| Operation::Rename {
        path: path.to_vec(),
        key: format!("nvidia.com/mig-{near}"),
    });
    let message = format!("no GPU has the MIG profile `{profile}`{meant}");
    findings.add_with(object, path, message, fix.into_iter().collect());
}

fn digits(text: &str) -> String {
    text.chars().filter(char::is_ascii_digit).collect()
}
