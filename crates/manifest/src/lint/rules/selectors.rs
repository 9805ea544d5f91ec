//! Labels that nodes are chosen by.

use agentaflow_units::{did_you_mean, nearest};
use serde_json::Value;

use crate::cloud::{
    ACCELERATOR, GPU_MEMORY, GPU_PRESENT, INSTANCE_TYPE, accelerators, gpu_named, is_unknown_label,
    suggest_accelerator, suggest_label,
};
use crate::lint::object::{Object, Path, list, text};
use crate::lint::{Findings, Operation, Rule, Set, set};

pub(super) static AF103: Rule = rule! {
    "AF103" "unknown-accelerator" Warning fixable true;
    title: "No node has this accelerator label",
    why: "Manuals spell the same model differently (`nvidia-a100`, `nvidia-tesla-a100`, `nvidia-gpu`), and each \
          cloud has its own values. A selector with another spelling matches no node.",
    advice: "Use the value of your cloud: `cloud.google.com/gke-accelerator: nvidia-tesla-a100` on GKE, \
             `accelerator: nvidia` on AKS, `accelerator: nvidia-tesla-a100` for manually labelled nodes; or \
             `nvidia.com/gpu.product` and `nvidia.com/gpu.present`, which NVIDIA's feature discovery sets \
             everywhere.",
    check: unknown_accelerator,
};

pub(super) static AF104: Rule = rule! {
    "AF104" "unknown-label" Warning fixable true;
    title: "Unknown node label",
    why: "Clouds, Karpenter and NVIDIA set a fixed list of labels. A selector with another label under their \
          prefixes, or with a placeholder from a manual, matches no node.",
    advice: "Use an existing label; `nvidia.com/gpu.memory` is the memory of a GPU in MiB.",
    check: unknown_label,
};

pub(super) static AF105: Rule = rule! {
    "AF105" "affinity-value" Error;
    title: "An affinity compares with a value that is not a number",
    why: "`Gt` and `Lt` take exactly one whole number, as text. The API server rejects other values.",
    advice: "Use one quoted number; `nvidia.com/gpu.memory` is in MiB, so 40 GB is `\"40000\"`.",
    check: affinity_value,
};

pub(super) static AF106: Rule = rule! {
    "AF106" "unknown-instance-type" Warning;
    title: "Unknown machine type",
    why: "A selector with an unknown machine type matches no node.",
    advice: "Correct the name.",
    check: instance_type,
};

/// Every node label that pods select by: object, label, path of the entry or of the expression's `key`, and the
/// values with their paths.
fn each_label<'a>(
    set: &Set<'a>,
    mut look: impl FnMut(&Object<'a>, &'a str, &Path, Vec<(&'a str, Path)>),
) {
    for pod in set.pods() {
        for (label, value, path) in pod.selector() {
            let values = value.as_str().map(|value| (value, path.clone()));
            look(&pod.object, label, &path, values.into_iter().collect());
        }
        for (item, path) in pod.expressions() {
            let Some(label) = text(item, &["key"]) else { continue };
            let key = [path.clone(), vec!["key".to_owned()]].concat();
            let values = list(item, &["values"]).iter().enumerate();
            let value = |(number, value): (usize, &'a Value)| {
                Some((
                    value.as_str()?,
                    [path.clone(), vec!["values".to_owned(), number.to_string()]].concat(),
                ))
            };
            look(&pod.object, label, &key, values.filter_map(value).collect());
        }
    }
}

fn unknown_accelerator(set: &Set<'_>, findings: &mut Findings<'_>) {
    each_label(set, |object, label, _, values| {
        let Some(known) = accelerators(label) else { return };
        for (value, path) in values {
            if known.contains(&value) {
                continue;
            }
            let canonical = canonical(label, value, &known);
            let meant = match canonical {
                Some(meant) => format!("; `{meant}` is the usual spelling"),
                None if label == ACCELERATOR => {
                    "; any NVIDIA GPU is `nvidia.com/gpu.present: \"true\"`".to_owned()
                }
                None => format!("; use one of {}", known.join(", ")),
            };
            let any = canonical.is_none()
                && label == ACCELERATOR
                && matches!(value, "nvidia-gpu" | "gpu" | "nvidia-tesla");
            let fix = match canonical {
                Some(meant) => vec![self::set(path.clone(), meant)],
                // Any GPU: only an entry of a node selector can be renamed safely.
                None if any && path.last().is_some_and(|step| step == label) => vec![
                    self::set(path.clone(), "true"),
                    Operation::Rename { path: path.clone(), key: GPU_PRESENT.to_owned() },
                ],
                None => Vec::new(),
            };
            findings.add_with(
                object,
                &path,
                format!("no node has the label {label}={value}{meant}"),
                fix,
            );
        }
    });
}

/// Known value for the same model, or the nearest one.
fn canonical(label: &str, value: &str, known: &[&'static str]) -> Option<&'static str> {
    let slip = || {
        let near = nearest(value, known.iter().copied().filter(|known| known.len() > 6))?;
        let family = gpu_named(near)?.family();
        value.to_lowercase().contains(family).then_some(near)
    };
    suggest_accelerator(label, value).or_else(slip)
}

fn unknown_label(set: &Set<'_>, findings: &mut Findings<'_>) {
    each_label(set, |object, label, path, _| {
        let placeholder = label
            .split('/')
            .next()
            .is_some_and(|domain| domain.ends_with(".example") || domain.ends_with("example.com"));
        let meant = suggest_label(label);
        if !is_unknown_label(label) && !placeholder && meant.is_none() {
            return;
        }
        let memory = placeholder && label.contains("memory");
        let meant = if memory { Some(GPU_MEMORY) } else { meant };
        let hint = did_you_mean(meant);
        let fix = meant.map(|meant| {
            if path.last().is_some_and(|step| step == "key") {
                self::set(path.clone(), meant)
            } else {
                Operation::Rename { path: path.clone(), key: meant.to_owned() }
            }
        });
        findings.add_with(
            object,
            path,
            format!("no node has the label {label}{hint}"),
            fix.into_iter().collect(),
        );
    });
}

fn affinity_value(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods() {
        for (item, path) in pod.expressions() {
            let Some(operator @ ("Gt" | "Lt")) = text(item, &["operator"]) else { continue };
            let values = list(item, &["values"]);
            let number =
                |value: &Value| value.as_str().is_some_and(|text| text.parse::<i64>().is_ok());
            if values.len() != 1 || !values.iter().all(number) {
                let path = [path, vec!["values".to_owned()]].concat();
                findings.add(
                    &pod.object,
                    &path,
                    format!("`{operator}` takes exactly one whole number in quotes"),
                );
            }
        }
    }
}

fn instance_type(set: &Set<'_>, findings: &mut Findings<'_>) {
    each_label(set, |object, label, path, values| {
        if label != INSTANCE_TYPE {
            return;
        }
        for (value, _) in values {
            let amazon = value.split_once('.');
            let wrong = match amazon {
                Some((family, size)) => !is_amazon(family, size),
                None => false,
            };
            if wrong && set.machines.machine(value).is_none() {
                findings.add(
                    object,
                    path,
                    format!(
                        "`{value}` is not a machine type of AWS: they end in .large, \
                                                    .xlarge, .24xlarge and the like"
                    ),
                );
            }
        }
    });
}

fn is_amazon(family: &str, size: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let size = size.strip_prefix("metal-").unwrap_or(size);
    let named =
        matches!(size, "nano" | "micro" | "small" | "medium" | "large" | "xlarge" | "metal");
    let numbered =
        size.strip_suffix("xlarge").or_else(|| size.strip_suffix("xl")).is_some_and(number);
    (named || numbered) && family.starts_with(|letter: char| letter.is_ascii_lowercase())
}
