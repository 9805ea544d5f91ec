//! Pods to schedule, and annotations inherited from their owners.

use agentaflow_kube_core::{names, translate};
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::review::{AdmissionResult, Request};

/// Rules of participation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    pub(super) scheduler: &'a str,
    /// Namespace of agentaflow.
    pub(super) home: &'a str,
    /// The label of the namespace assigns all its GPU pods to the agentaflow scheduler.
    pub(super) opted_in: bool,
}

/// Annotations of one owner with the prefix of agentaflow.
pub(super) type Annotations = BTreeMap<String, String>;

/// True if the pod is eligible, regardless of its owners.
pub(super) fn is_eligible(rules: Rules<'_>, request: &Request) -> bool {
    let pod = &request.object;
    let scheduler = pod["spec"]["schedulerName"].as_str().unwrap_or_default();
    let component = request.namespace == rules.home
        && pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "agentaflow";
    let placed = pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    let system = request.namespace == "kube-system";
    let named = ["", "default-scheduler", rules.scheduler].contains(&scheduler);
    let kept = owner_references(pod).any(|owner| {
        let is = |kind: &str, group: &str| owner["kind"] == kind && group_of(owner) == group;
        // Pods of a workload are complete: the controller sets all fields.
        owner["controller"] == true && (is("DaemonSet", "apps") || is("GPUWorkload", names::GROUP))
    });
    request.operation == "CREATE" && named && !component && !placed && !system && !kept
}

/// Origin of a pod's priority class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// None, or the default of the cluster.
    Default,
    /// The author of the pod chose it.
    Explicit,
}

/// Sets the scheduler name if the pod or an owner requests it; `owners` are nearest first.
pub(super) fn take(
    rules: Rules<'_>,
    pod: &Value,
    owners: &[Annotations],
    class: Class,
) -> AdmissionResult {
    let own = own_annotations(pod);
    let asked = !own.is_empty() || owners.iter().any(|annotations| !annotations.is_empty());
    let ours = pod["spec"]["schedulerName"] == rules.scheduler;
    if !(ours || asked || (rules.opted_in && wants_gpu(pod))) {
        return AdmissionResult::default();
    }
    let mut patch = Vec::new();
    if !ours {
        patch.push(json!({"op": "add", "path": "/spec/schedulerName", "value": rules.scheduler}));
    }
    patch.extend(inherit(pod, &own, owners));
    patch.extend(classify(pod, &own, owners, class));
    AdmissionResult { patch, ..AdmissionResult::default() }
}

/// Owner reference of a pod or owner: its controller, else its first owner.
pub(super) fn owner_of(object: &Value) -> Option<&Value> {
    let controller = owner_references(object).find(|owner| owner["controller"] == true);
    controller.or_else(|| owner_references(object).next())
}

/// Annotations of an object with the prefix of agentaflow.
pub(super) fn own_annotations(object: &Value) -> Annotations {
    let annotations = object["metadata"]["annotations"].as_object().into_iter().flatten();
    annotations
        .filter(|(key, _)| key.starts_with(names::PREFIX))
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn inherit(pod: &Value, own: &Annotations, owners: &[Annotations]) -> Vec<Value> {
    let inherited: Vec<_> = names::INHERITED
        .iter()
        .filter(|key| !own.contains_key(**key))
        .filter_map(|key| Some((*key, owners.iter().find_map(|owner| owner.get(*key))?)))
        .collect();
    if pod["metadata"]["annotations"].is_object() {
        let path = |key: &str| format!("/metadata/annotations/{}", key.replace('/', "~1"));
        let add = |(key, value)| json!({"op": "add", "path": path(key), "value": value});
        return inherited.into_iter().map(add).collect();
    }
    if inherited.is_empty() {
        return Vec::new();
    }
    let all: BTreeMap<_, _> = inherited.into_iter().collect();
    vec![json!({"op": "add", "path": "/metadata/annotations", "value": all})]
}

/// Priority class for the annotated priority of a pod without an explicit class, so that quotas and policies of classes
/// apply. The defaulted priority is removed: the API server sets the one of the class.
fn classify(pod: &Value, own: &Annotations, owners: &[Annotations], class: Class) -> Vec<Value> {
    let asked = asked_priority(own, owners).filter(|_| class != Class::Explicit);
    let Some(class) = asked.and_then(names::priority_class) else { return Vec::new() };
    let mut patch = vec![json!({"op": "add", "path": "/spec/priorityClassName", "value": class})];
    for field in ["priority", "preemptionPolicy"] {
        if pod["spec"].get(field).is_some() {
            patch.push(json!({"op": "remove", "path": format!("/spec/{field}")}));
        }
    }
    patch
}

fn asked_priority(own: &Annotations, owners: &[Annotations]) -> Option<u8> {
    let mut all = std::iter::once(own).chain(owners);
    all.find(|annotations| annotations.contains_key(names::PRIORITY)).and_then(translate::asked)
}

/// The class of a pod that the annotation would replace if the class is the default of the cluster, which the API server sets
/// on pods without a class.
pub(super) fn replaceable_class<'a>(pod: &'a Value, owners: &[Annotations]) -> Option<&'a str> {
    asked_priority(&own_annotations(pod), owners)?;
    pod["spec"]["priorityClassName"].as_str().filter(|name| !name.is_empty())
}

fn owner_references(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

fn group_of(owner: &Value) -> &str {
    let version = owner["apiVersion"].as_str().unwrap_or_default();
    version.split_once('/').map_or("", |(group, _)| group)
}

fn wants_gpu(pod: &Value) -> bool {
    ["containers", "initContainers"]
        .iter()
        .flat_map(|kind| pod["spec"][*kind].as_array().into_iter().flatten())
        .flat_map(|container| container["resources"]["limits"].as_object().into_iter().flatten())
        .any(|(resource, _)| is_gpu(resource))
}

/// True for GPUs and MIG slices.
pub(super) fn is_gpu(resource: &str) -> bool {
    resource == names::GPU_RESOURCE || resource.starts_with(names::MIG_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu_pod() -> Value {
        json!({
            "metadata": {"name": "p"},
            "spec": {
                "schedulerName": "default-scheduler",
                "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            },
        })
    }

    fn merged(mut pod: Value, more: &Value) -> Value {
        fn merge(into: &mut Value, from: &Value) {
            match (into.as_object_mut(), from.as_object()) {
                (Some(into), Some(from)) => {
                    for (key, value) in from {
                        merge(into.entry(key).or_insert(Value::Null), value);
                    }
                }
                _ => *into = from.clone(),
            }
        }
        merge(&mut pod, more);
        pod
    }

    fn result(
        namespace: &str,
        opted_in: bool,
        pod: &Value,
        owners: &[Annotations],
    ) -> AdmissionResult {
        let rules = Rules { scheduler: "agentaflow", home: "agentaflow", opted_in };
        let request = Request {
            operation: "CREATE".to_owned(),
            namespace: namespace.to_owned(),
            object: pod.clone(),
            ..Request::default()
        };
        if !is_eligible(rules, &request) {
            return AdmissionResult::default();
        }
        // The class `usual` is the default of this cluster.
        let named = replaceable_class(pod, owners).is_some_and(|name| name != "usual");
        take(rules, pod, owners, if named { Class::Explicit } else { Class::Default })
    }

    /// Asserts the outcome for a pod like [`gpu_pod`] with `more`.
    fn check(namespace: &str, opted_in: bool, more: &Value, owner: Option<(&str, &str)>) -> bool {
        let owners = owner.map(|(key, value)| [(key.to_owned(), value.to_owned())].into());
        let owners: Vec<Annotations> = owners.into_iter().collect();
        let result = result(namespace, opted_in, &merged(gpu_pod(), more), &owners);
        result.patch.iter().any(|op| op["path"] == "/spec/schedulerName")
    }

    #[test]
    fn gpu_pods_get_the_scheduler_if_the_namespace_the_pod_or_an_owner_opts_in() {
        let plain = json!({});
        let annotated = json!({"metadata": {"annotations": {"agentaflow.gpu/priority": "3"}}});
        let no_gpu = json!({"spec": {"containers": [{"name": "c"}]}});
        let mig = json!({"spec": {"containers": [{"name": "c"}], "initContainers": [
            {"name": "i", "resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}]}});
        let owner = Some(("agentaflow.gpu/priority", "10"));
        for (namespace, opted_in, pod, owner, ours) in [
            ("team", true, &plain, None, true),
            ("team", false, &plain, None, false),
            ("team", true, &no_gpu, None, false),
            ("team", true, &mig, None, true),
            ("team", false, &annotated, None, true),
            ("team", false, &no_gpu, owner, true),
            ("kube-system", true, &annotated, owner, false),
            ("agentaflow", true, &plain, None, true),
        ] {
            assert_eq!(check(namespace, opted_in, pod, owner), ours, "{namespace} {pod}");
        }
    }

    #[test]
    fn placed_pods_daemon_pods_and_pods_of_other_schedulers_are_unchanged() {
        let owned = |api: &str, kind: &str| {
            json!({"metadata": {"ownerReferences": [
                {"apiVersion": api, "kind": kind, "name": "o", "uid": "u", "controller": true}]}})
        };
        let uncontrolled = |api: &str, kind: &str| {
            let mut pod = owned(api, kind);
            pod["metadata"]["ownerReferences"][0]["controller"] = json!(false);
            pod
        };
        let label = json!({"metadata": {"labels": {"app.kubernetes.io/part-of": "agentaflow"}}});
        for (namespace, pod, ours) in [
            ("team", json!({"spec": {"nodeName": "n"}}), false),
            ("team", json!({"spec": {"schedulerName": "volcano"}}), false),
            ("team", owned("apps/v1", "DaemonSet"), false),
            ("team", owned("agentaflow.io/v1", "GPUWorkload"), false),
            ("team", owned("batch/v1", "Job"), true),
            // Users can set any value.
            ("team", owned("v1", "DaemonSet"), true),
            ("team", owned("example.com/v1", "GPUWorkload"), true),
            ("team", uncontrolled("apps/v1", "DaemonSet"), true),
            ("agentaflow", label.clone(), false),
            ("team", label, true),
        ] {
            assert_eq!(check(namespace, true, &pod, None), ours, "{namespace} {pod}");
        }
    }

    #[test]
    fn a_pod_takes_over_its_owners_wishes_but_keeps_its_own() {
        let near: Annotations = [("agentaflow.gpu/priority".to_owned(), "7".to_owned())].into();
        let far: Annotations = [
            ("agentaflow.gpu/priority".to_owned(), "1".to_owned()),
            ("agentaflow.gpu/scheduling-strategy".to_owned(), "pack".to_owned()),
            ("agentaflow.gpu/assigned-node".to_owned(), "elsewhere".to_owned()),
        ]
        .into();
        let owners = [near, far];
        let bare = result("team", false, &gpu_pod(), &owners);
        assert_eq!(
            bare.patch[1],
            json!({"op": "add", "path": "/metadata/annotations", "value": {
                "agentaflow.gpu/priority": "7", "agentaflow.gpu/scheduling-strategy": "pack"}})
        );
        let own = json!({"metadata": {"annotations": {"agentaflow.gpu/priority": "2"}}});
        let kept = result("team", false, &merged(gpu_pod(), &own), &owners);
        assert_eq!(
            kept.patch[1..],
            [
                json!({"op": "add", "value": "pack",
                    "path": "/metadata/annotations/agentaflow.gpu~1scheduling-strategy"}),
                json!({"op": "add", "path": "/spec/priorityClassName", "value": "agentaflow-2"}),
            ]
        );
    }

    #[test]
    fn a_priority_asked_for_by_annotation_becomes_a_class_that_quotas_count() {
        let filled_in = json!({"priority": 0, "preemptionPolicy": "PreemptLowerPriority"});
        let of_default = json!({"priorityClassName": "usual", "priority": 1000,
            "preemptionPolicy": "PreemptLowerPriority"});
        let none = json!({});
        let class = |name: &str| format!("add /spec/priorityClassName {name}");
        let removals =
            ["remove /spec/priority".to_owned(), "remove /spec/preemptionPolicy".to_owned()];
        let with = |name: &str| [vec![class(name)], removals.to_vec()].concat();
        for (spec, own, owner, expected) in [
            (&none, Some("10"), None, vec![class("agentaflow-10")]),
            (&filled_in, Some("0"), None, with("agentaflow-0")),
            (&filled_in, Some("5"), None, vec![]),
            (&of_default, Some("5"), None, vec![]),
            (&filled_in, None, Some(" 7 "), with("agentaflow-7")),
            (&filled_in, Some("2"), Some("7"), with("agentaflow-2")),
            (&filled_in, Some("11"), Some("7"), vec![]),
            (&filled_in, Some("high"), None, vec![]),
            (&filled_in, None, None, vec![]),
            (&json!({"priorityClassName": "batch"}), Some("9"), None, vec![]),
            (&json!({"priorityClassName": "batch", "priority": 100_000}), Some("9"), None, vec![]),
            (&json!({"priorityClassName": "agentaflow-0", "priority": 0}), Some("9"), None, vec![]),
            (&of_default, Some("9"), None, with("agentaflow-9")),
            (&of_default, None, None, vec![]),
        ] {
            let annotations = own.map(|own| json!({"agentaflow.gpu/priority": own}));
            let more = json!({"spec": spec, "metadata": {"annotations": annotations}});
            let owner = owner.map(|owner| (names::PRIORITY.to_owned(), owner.to_owned()));
            let owners = [owner.into_iter().collect::<Annotations>()];
            let result = result("team", true, &merged(gpu_pod(), &more), &owners);
            let about_class = result.patch.iter().filter_map(|op| {
                let path = op["path"].as_str().filter(|path| path.contains("/spec/pr"))?;
                let line = [op["op"].as_str()?, path, op["value"].as_str().unwrap_or_default()];
                Some(line.join(" ").trim_end().to_owned())
            });
            assert_eq!(about_class.collect::<Vec<_>>(), expected, "{spec} {own:?} {owners:?}");
        }
    }

    /// The author of a pod may rely on any value.
    #[test]
    fn variables_of_a_pod_are_never_changed() {
        let env = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
        for limits in [json!({"nvidia.com/gpu": "1"}), json!({})] {
            let containers = json!([{"name": "c", "env": env, "resources": {"limits": limits}}]);
            let asked = json!({"annotations": {"agentaflow.gpu/priority": "3"}});
            let pod =
                merged(gpu_pod(), &json!({"metadata": asked, "spec": {"containers": containers}}));
            let patch = result("team", true, &pod, &[]).patch;
            let paths: Vec<&str> = patch.iter().filter_map(|op| op["path"].as_str()).collect();
            assert_eq!(paths, ["/spec/schedulerName", "/spec/priorityClassName"], "{pod}");
        }
    }

    #[test]
    fn a_pod_that_names_the_scheduler_still_inherits_the_annotations_of_its_owner() {
        let owner: Annotations =
            [("agentaflow.gpu/queue".to_owned(), "research".to_owned())].into();
        let pod = merged(gpu_pod(), &json!({"spec": {"schedulerName": "agentaflow"}}));
        let result = result("team", false, &pod, &[owner]);
        assert_eq!(result.patch.len(), 1);
        assert_eq!(result.patch[0]["path"], "/metadata/annotations");
    }
}
