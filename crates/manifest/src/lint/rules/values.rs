//! Values of pods that the API server rejects although their type is valid: constraints outside of the schema.

use std::collections::BTreeSet;

use agentaflow_units::{did_you_mean, nearest};
use serde_json::Value;

use crate::lint::amount::amount;
use crate::lint::object::{Container, Pod, is_gpu, list, text};
use crate::lint::{Findings, Set};

const RESTART: [&str; 3] = ["Always", "OnFailure", "Never"];
const PULL: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const OPERATORS: [&str; 4] = ["Exists", "Equal", "Lt", "Gt"];
const EFFECTS: [&str; 4] = ["", "NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Most names compared for a suggestion.
const MOST_COMPARED: usize = 64;

/// Checks pods from texts, of kinds that pass their pods unchanged to the API server.
pub(super) fn look(set: &Set<'_>, findings: &mut Findings<'_>) {
    for object in set.objects.iter().filter(|object| object.written && object.is_native()) {
        for pod in object.pods() {
            one_of(&pod, pod.spec, &pod.path, ("restartPolicy", &RESTART), findings);
            tolerations(&pod, findings);
            names(&pod, findings);
            let volumes = volumes(&pod);
            for container in pod.all_containers() {
                let at = (container.value, &container.path);
                one_of(&pod, at.0, at.1, ("imagePullPolicy", &PULL), findings);
                mounts(&pod, &container, &volumes, findings);
                amounts(&pod, &container, findings);
            }
        }
    }
}

/// Field with an enumeration of values.
fn one_of(
    pod: &Pod<'_>,
    value: &Value,
    path: &[String],
    (field, known): (&str, &[&str]),
    findings: &mut Findings<'_>,
) {
    let Some(given) = text(value, &[field]).filter(|given| !known.contains(given)) else { return };
    let meant = did_you_mean(nearest(given, known.iter().copied()));
    let words: Vec<_> = known.iter().copied().filter(|word| !word.is_empty()).collect();
    let message = format!("`{given}` is not one of {}{meant}", words.join(", "));
    findings.add(&pod.object, &[path, &[field.to_owned()]].concat(), message);
}

fn tolerations(pod: &Pod<'_>, findings: &mut Findings<'_>) {
    for (number, toleration) in pod.tolerations().iter().enumerate() {
        let path = pod.join(&["tolerations", &number.to_string()]);
        one_of(pod, toleration, &path, ("operator", &OPERATORS), findings);
        one_of(pod, toleration, &path, ("effect", &EFFECTS), findings);
        let exists = text(toleration, &["operator"]) == Some("Exists");
        let field = |key: &str| text(toleration, &[key]).filter(|text| !text.is_empty());
        if exists && field("value").is_some() {
            let path = [path, vec!["value".to_owned()]].concat();
            findings.add(&pod.object, &path, "`operator: Exists` takes no value: remove it");
        } else if !exists && field("key").is_none() && toleration.is_object() {
            findings.add(&pod.object, &path, "a toleration without a key needs `operator: Exists`");
        }
    }
}

/// Containers and volumes have names of their own.
fn names(pod: &Pod<'_>, findings: &mut Findings<'_>) {
    let lists: [(&str, &[&str]); 2] =
        [("container", &["initContainers", "containers"]), ("volume", &["volumes"])];
    for (what, keys) in lists {
        let mut seen = BTreeSet::new();
        for key in keys {
            for (number, item) in list(pod.spec, &[key]).iter().enumerate() {
                let Some(name) = text(item, &["name"]) else { continue };
                if !seen.insert(name) {
                    let path = pod.join(&[key, number.to_string().as_str(), "name"]);
                    findings.add(&pod.object, &path, format!("duplicate {what} `{name}`"));
                }
            }
        }
    }
}

/// Mountable names: volumes, and the claim templates of a `StatefulSet`.
fn volumes<'a>(pod: &Pod<'a>) -> BTreeSet<&'a str> {
    let templates = list(pod.object.value, &["spec", "volumeClaimTemplates"]).iter();
    let claims = templates.filter_map(|one| text(one, &["metadata", "name"]));
    let volumes = list(pod.spec, &["volumes"]).iter().filter_map(|one| text(one, &["name"]));
    volumes.chain(claims).collect()
}

fn mounts(
    pod: &Pod<'_>,
    container: &Container<'_>,
    volumes: &BTreeSet<&str>,
    findings: &mut Findings<'_>,
) {
    for (number, mount) in list(container.value, &["volumeMounts"]).iter().enumerate() {
        let name = text(mount, &["name"]).filter(|name| !volumes.contains(name));
        let Some(name) = name else { continue };
        let few = volumes.iter().copied().filter(|_| volumes.len() <= MOST_COMPARED);
        let meant = did_you_mean(nearest(name, few));
        let path = container.join(&["volumeMounts", number.to_string().as_str(), "name"]);
        findings.add(&pod.object, &path, format!("no volume is named `{name}`{meant}"));
    }
}

/// Valid quantities, and requests within their limits. GPUs have their own rules.
fn amounts(pod: &Pod<'_>, container: &Container<'_>, findings: &mut Findings<'_>) {
    for part in ["requests", "limits"] {
        let Some(Value::Object(all)) = container.at(&["resources", part]) else { continue };
        for (name, value) in all.iter().filter(|(name, _)| !is_gpu(name)) {
            let path = || container.join(&["resources", part, name.as_str()]);
            let Some(requested) = amount(value) else {
                if let Some(given) = value.as_str() {
                    let write = "use a form such as 500m, 4, 512Mi or 16Gi";
                    findings.add(
                        &pod.object,
                        &path(),
                        format!("`{given}` is not a quantity: {write}"),
                    );
                }
                continue;
            };
            if let Some(given) =
                value.as_str().filter(|text| name == "memory" && text.ends_with('m'))
            {
                let why = "`m` means thousandths of a byte: use `Mi` for mebibytes";
                findings.add(&pod.object, &path(), format!("`{given}` of memory: {why}"));
                continue;
            }
            let limit = container.resource("limits", name).filter(|_| part == "requests");
            if let Some(limit) =
                limit.filter(|limit| amount(limit).is_some_and(|most| requested > most))
            {
                let (given, most) = (plain(value), plain(limit));
                let message = format!("the request of {given} {name} exceeds the limit of {most}");
                findings.add(&pod.object, &path(), message);
            }
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
