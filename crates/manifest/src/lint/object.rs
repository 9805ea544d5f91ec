//! Kubernetes objects in documents, with their pods and containers, each with its path.

use agentaflow_units::Amount;
use serde_json::Value;

use super::amount::amount;
use super::{Input, embedded};
use crate::yaml::at;

/// Path into a document: keys and item indexes.
pub(super) type Path = Vec<String>;

pub(super) fn join<S: AsRef<str>>(path: &[String], more: &[S]) -> Path {
    path.iter().cloned().chain(more.iter().map(|step| step.as_ref().to_owned())).collect()
}

/// Object, alone in its document or in a `List`.
#[derive(Clone, Debug)]
pub(super) struct Object<'a> {
    pub(super) input: usize,
    pub(super) document: usize,
    /// Path in the document.
    pub(super) path: Path,
    pub(super) value: &'a Value,
    pub(super) api_version: &'a str,
    pub(super) kind: &'a str,
    /// Read from text; otherwise the API server has accepted it.
    pub(super) written: bool,
}

/// Pod spec, alone or in a template.
#[derive(Clone, Debug)]
pub(super) struct Pod<'a> {
    pub(super) object: Object<'a>,
    /// The path of the pod's spec.
    pub(super) path: Path,
    pub(super) spec: &'a Value,
    /// Key of a container that is a field of the spec, not an item of a list.
    pub(super) inline: Option<&'a str>,
}

/// A container of a pod.
#[derive(Clone, Debug)]
pub(super) struct Container<'a> {
    pub(super) path: Path,
    pub(super) value: &'a Value,
}

/// All objects of all inputs.
pub(super) fn objects(inputs: &[Input]) -> Vec<Object<'_>> {
    let mut all = Vec::new();
    for (input, source) in inputs.iter().enumerate() {
        for (document, read) in source.documents.iter().enumerate() {
            collect((input, document, source.written), Vec::new(), &read.value, &mut all);
        }
    }
    all
}

fn collect<'a>(
    origin: (usize, usize, bool),
    path: Path,
    value: &'a Value,
    all: &mut Vec<Object<'a>>,
) {
    let named = (text(value, &["apiVersion"]), text(value, &["kind"]));
    let (Some(api_version), Some(kind)) = named else { return };
    // One level of lists: bounds the nesting.
    if kind.ends_with("List") && path.is_empty() {
        for (number, item) in list(value, &["items"]).iter().enumerate() {
            collect(origin, vec!["items".to_owned(), number.to_string()], item, all);
        }
        return;
    }
    let (input, document, written) = origin;
    all.push(Object { input, document, path, value, api_version, kind, written });
}

impl<'a> Object<'a> {
    pub(super) fn at(&self, path: &[&str]) -> Option<&'a Value> {
        at(self.value, path)
    }

    pub(super) fn text(&self, path: &[&str]) -> Option<&'a str> {
        self.at(path)?.as_str()
    }

    pub(super) fn name(&self) -> &'a str {
        let named =
            self.text(&["metadata", "name"]).or_else(|| self.text(&["metadata", "generateName"]));
        named.unwrap_or("without a name")
    }

    pub(super) fn namespace(&self) -> &'a str {
        self.text(&["metadata", "namespace"]).unwrap_or("default")
    }

    pub(super) fn join<S: AsRef<str>>(&self, more: &[S]) -> Path {
        join(&self.path, more)
    }

    /// `Job/train`, as `kubectl` prints it.
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.kind, self.name())
    }

    /// True for these kinds of Kubernetes or agentaflow; Volcano has its own `Job`.
    pub(super) fn is(&self, kinds: &[&str]) -> bool {
        self.native().is_some_and(|kind| kinds.contains(&kind))
    }

    /// True for a kind of Kubernetes or agentaflow.
    pub(super) fn is_native(&self) -> bool {
        self.native().is_some()
    }

    fn native(&self) -> Option<&'a str> {
        let group = self.api_version.split_once('/').map_or("", |(group, _)| group);
        let foreign =
            group.contains('.') && !group.ends_with(".k8s.io") && group != "agentaflow.io";
        (!foreign).then_some(self.kind)
    }

    /// The object itself if it is a pod, or its pod templates.
    pub(super) fn pods(&self) -> Vec<Pod<'a>> {
        let template: &[&str] = match self.native().unwrap_or_default() {
            "Pod" => &[],
            "Deployment"
            | "StatefulSet"
            | "DaemonSet"
            | "ReplicaSet"
            | "ReplicationController"
            | "Job" => &["spec", "template"],
            "CronJob" => &["spec", "jobTemplate", "spec", "template"],
            "GPUWorkload" => &["spec", "podTemplate"],
            _ => return embedded::pods(self),
        };
        self.pod(template).into_iter().collect()
    }

    fn pod(&self, template: &[&str]) -> Option<Pod<'a>> {
        let spec = at(self.at(template)?, &["spec"])?;
        let path = join(&self.join(template), &["spec"]);
        Some(Pod { object: self.clone(), path, spec, inline: None })
    }

    /// Path of the job spec, for jobs and objects that create jobs.
    pub(super) fn job_spec(&self) -> Option<Path> {
        match self.native()? {
            "Job" => Some(self.join(&["spec"])),
            "CronJob" => Some(self.join(&["spec", "jobTemplate", "spec"])),
            _ => None,
        }
    }

    /// Pods that run at the same time.
    pub(super) fn replicas(&self) -> u64 {
        self.at(&["spec", "replicas"]).and_then(Value::as_u64).unwrap_or(1)
    }
}

impl<'a> Pod<'a> {
    pub(super) fn at(&self, path: &[&str]) -> Option<&'a Value> {
        at(self.spec, path)
    }

    pub(super) fn join<S: AsRef<str>>(&self, more: &[S]) -> Path {
        join(&self.path, more)
    }

    /// Containers without init containers.
    pub(super) fn containers(&self) -> Vec<Container<'a>> {
        let inline = self.inline.and_then(|key| Some((key, self.spec.get(key)?)));
        let inline = inline.map(|(key, value)| Container { path: self.join(&[key]), value });
        inline.into_iter().chain(self.containers_in("containers")).collect()
    }

    pub(super) fn all_containers(&self) -> Vec<Container<'a>> {
        let mut all = self.containers_in("initContainers");
        all.extend(self.containers());
        all
    }

    /// Init containers: sidecars that keep running, and containers that complete.
    pub(super) fn initial_containers(&self) -> (Vec<Container<'a>>, Vec<Container<'a>>) {
        let stays = |one: &Container<'a>| text(one.value, &["restartPolicy"]) == Some("Always");
        self.containers_in("initContainers").into_iter().partition(stays)
    }

    fn containers_in(&self, key: &str) -> Vec<Container<'a>> {
        let numbered = list(self.spec, &[key]).iter().enumerate();
        let container = |(number, value): (usize, &'a Value)| Container {
            path: self.join(&[key, &number.to_string()]),
            value,
        };
        numbered.map(container).collect()
    }

    pub(super) fn wants_gpu(&self) -> bool {
        self.all_containers().iter().any(Container::wants_gpu) || self.object.is(&["GPUWorkload"])
    }

    /// Selector entries: label, value, path.
    pub(super) fn selector(&self) -> Vec<(&'a str, &'a Value, Path)> {
        let Some(Value::Object(map)) = self.at(&["nodeSelector"]) else { return Vec::new() };
        let entry = |(key, value): (&'a String, &'a Value)| {
            (key.as_str(), value, self.join(&["nodeSelector", key]))
        };
        map.iter().map(entry).collect()
    }

    /// Expressions of required and preferred node affinity, with their paths.
    pub(super) fn expressions(&self) -> Vec<(&'a Value, Path)> {
        let mut all = Vec::new();
        let affinity = ["affinity", "nodeAffinity"];
        let required = [
            &affinity[..],
            &["requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"],
        ]
        .concat();
        let preferred =
            [&affinity[..], &["preferredDuringSchedulingIgnoredDuringExecution"]].concat();
        for (terms, inner) in [(required, None), (preferred, Some("preference"))] {
            for (term, value) in list(self.spec, &terms).iter().enumerate() {
                let number = term.to_string();
                let mut path = self.join(&terms);
                path.push(number);
                path.extend(inner.map(str::to_owned));
                path.push("matchExpressions".to_owned());
                let value = inner.map_or(Some(value), |key| value.get(key));
                let items =
                    value.map(|value| list(value, &["matchExpressions"])).unwrap_or_default();
                for (number, item) in items.iter().enumerate() {
                    all.push((item, join(&path, &[number.to_string()])));
                }
            }
        }
        all
    }

    /// Values of a label required by selector or affinity.
    pub(super) fn required(&self, label: &str) -> Vec<&'a str> {
        let selector = self.at(&["nodeSelector", label]).and_then(Value::as_str);
        let mut all: Vec<_> = selector.into_iter().collect();
        for (item, path) in self.expressions() {
            let required = path.iter().any(|step| step.starts_with("required"));
            if required
                && text(item, &["key"]) == Some(label)
                && text(item, &["operator"]) == Some("In")
            {
                all.extend(list(item, &["values"]).iter().filter_map(Value::as_str));
            }
        }
        all
    }

    /// Values of a label on the nodes that the pod may run on; none if the pod accepts nodes without the label.
    pub(super) fn bound_to(&self, label: &str) -> Option<Vec<&'a str>> {
        if let Some(value) = self.at(&["nodeSelector", label]).and_then(Value::as_str) {
            return Some(vec![value]);
        }
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let terms = list(self.spec, &["affinity", "nodeAffinity", required, "nodeSelectorTerms"]);
        let values = |term: &'a Value| {
            let mut all = list(term, &["matchExpressions"]).iter();
            all.find(|item| {
                (text(item, &["key"]), text(item, &["operator"])) == (Some(label), Some("In"))
            })
            .map(|item| list(item, &["values"]).iter().filter_map(Value::as_str))
        };
        let all: Option<Vec<_>> = terms.iter().map(values).collect();
        let all: Vec<_> = all?.into_iter().flatten().collect();
        (!all.is_empty()).then_some(all)
    }

    pub(super) fn tolerations(&self) -> &'a [Value] {
        list(self.spec, &["tolerations"])
    }

    /// Volume by name, with its index.
    pub(super) fn volume(&self, name: &str) -> Option<(usize, &'a Value)> {
        let mut volumes = list(self.spec, &["volumes"]).iter().enumerate();
        volumes.find(|(_, volume)| text(volume, &["name"]) == Some(name))
    }
}

impl<'a> Container<'a> {
    pub(super) fn at(&self, path: &[&str]) -> Option<&'a Value> {
        at(self.value, path)
    }

    pub(super) fn join<S: AsRef<str>>(&self, more: &[S]) -> Path {
        join(&self.path, more)
    }

    pub(super) fn name(&self) -> &'a str {
        text(self.value, &["name"]).unwrap_or("without a name")
    }

    pub(super) fn image(&self) -> Option<&'a str> {
        text(self.value, &["image"])
    }

    /// A resource in `limits` or `requests`.
    pub(super) fn resource(&self, part: &str, name: &str) -> Option<&'a Value> {
        self.at(&["resources", part, name])
    }

    /// The names of the NVIDIA resources in limits or requests.
    pub(super) fn gpu_resources(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = Vec::new();
        for part in ["limits", "requests"] {
            if let Some(Value::Object(map)) = self.at(&["resources", part]) {
                names.extend(map.keys().map(String::as_str).filter(|name| is_gpu(name)));
            }
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// True if it requests GPUs; a count of 0 is no request.
    pub(super) fn wants_gpu(&self) -> bool {
        let some = |name: &str| {
            ["limits", "requests"]
                .iter()
                .filter_map(|part| self.resource(part, name))
                .any(|value| whole(value) != Some(0))
        };
        self.gpu_resources().into_iter().any(some)
    }

    /// Requested GPUs, whole or slices.
    pub(super) fn gpus(&self) -> u64 {
        let count = |name: &&str| {
            let value = self.resource("limits", name).or_else(|| self.resource("requests", name));
            value.and_then(whole).unwrap_or(0)
        };
        self.gpu_resources().iter().map(count).sum()
    }

    /// Command and arguments, as one text.
    pub(super) fn command_line(&self) -> String {
        let words = ["command", "args"].map(|key| list(self.value, &[key]));
        let words: Vec<_> = words.concat();
        words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
    }

    /// Environment variables: name, value, number.
    pub(super) fn environment(&self) -> Vec<(&'a str, Option<&'a Value>, usize)> {
        let numbered = list(self.value, &["env"]).iter().enumerate();
        let entry = |(number, item): (usize, &'a Value)| {
            Some((text(item, &["name"])?, item.get("value"), number))
        };
        numbered.filter_map(entry).collect()
    }

    /// Mounts: name of the volume, path in the container.
    pub(super) fn mounts(&self) -> Vec<(&'a str, &'a str)> {
        let mounts = list(self.value, &["volumeMounts"]).iter();
        let mount = |item: &'a Value| Some((text(item, &["name"])?, text(item, &["mountPath"])?));
        mounts.filter_map(mount).collect()
    }
}

/// True for GPUs and MIG slices.
pub(super) fn is_gpu(resource: &str) -> bool {
    resource == "nvidia.com/gpu"
        || resource == "nvidia.com/gpu.shared"
        || resource.starts_with("nvidia.com/mig-")
}

/// Whole number as number, text or quantity: `1`, `"1"`, `1000m`.
pub(super) fn whole(value: &Value) -> Option<u64> {
    let units = || amount(value).filter(|amount| amount.is_whole_units()).map(Amount::floor_units);
    value.as_u64().or_else(|| units().filter(|units| *units < 1_000_000_000_000))
}

/// The text at a path.
pub(super) fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    at(value, path)?.as_str()
}

/// Items at a path; empty if no list exists there.
pub(super) fn list<'a, S: AsRef<str>>(value: &'a Value, path: &[S]) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
