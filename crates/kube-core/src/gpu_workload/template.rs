//! Pod of a task: the template with absent fields filled in.

use serde_json::{Map, Value, json};

use super::{affinity, gpu_limit, name, overrides, rendezvous};
use crate::crd::GpuWorkloadSpec;
use crate::names;

/// Owner of a pod.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub name: &'a str,
    pub namespace: &'a str,
    /// None at admission: the pod then gets no owner reference.
    pub uid: Option<&'a str>,
}

/// Template from which no pod can be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTemplate {
    /// A field has a type that Kubernetes does not accept.
    #[error("spec.{path} must be {expected}")]
    Shape { path: String, expected: &'static str },
    /// GPU limit and workload disagree.
    #[error(
        "spec.podTemplate asks for {asked} in its limits, but spec.gpuRequirements.{field} is {wanted}: \
         write the same in both, or leave the limit out and it is added"
    )]
    Contradiction {
        /// Request of the template, such as `nvidia.com/gpu: 2`.
        asked: String,
        /// Conflicting field.
        field: &'static str,
        /// Value of the field.
        wanted: String,
    },
    /// No container has a GPU limit, and the choice is ambiguous.
    #[error(
        "spec.podTemplate.spec.containers: none of {names} has a GPU limit; write `resources: {{limits: {{{resource}: \
         {count}}}}}` for the one that uses the GPUs"
    )]
    WhichContainer { names: String, resource: String, count: u32 },
    /// Fractional GPU without a mechanism for it.
    #[error(
        "spec.gpuRequirements.exclusiveAccess: one GPU cannot be shared by several pods yet; write `exclusiveAccess: \
         true`, or `migProfile` for a slice of a GPU"
    )]
    NoSharing,
    /// A node name would bypass every scheduler.
    #[error(
        "spec.podTemplate.spec.nodeName is set, so no scheduler would look at its pods: remove it, or write a \
         nodeSelector on `kubernetes.io/hostname`"
    )]
    NodeName,
    #[error(
        "spec.podTemplate.metadata.finalizers would keep its pods from ever being deleted: remove them"
    )]
    Finalizers,
    /// Task numbers of an override that cannot be read.
    #[error("{path} `{tasks}` names no tasks: write numbers and ranges such as `0` or `1-3,7`")]
    Tasks { path: String, tasks: String },
}

impl BadTemplate {
    /// Path of the field in the workload.
    pub fn field(&self) -> String {
        match self {
            Self::Shape { path, .. } => format!("spec.{path}"),
            Self::Contradiction { field, .. } => format!("spec.gpuRequirements.{field}"),
            Self::WhichContainer { .. } => "spec.podTemplate.spec.containers".to_owned(),
            Self::NoSharing => "spec.gpuRequirements.exclusiveAccess".to_owned(),
            Self::NodeName => "spec.podTemplate.spec.nodeName".to_owned(),
            Self::Finalizers => "spec.podTemplate.metadata.finalizers".to_owned(),
            Self::Tasks { path, .. } => path.clone(),
        }
    }
}

/// Pod of a task for the API server.
///
/// Every field of the template is kept, including unknown ones. Fields that the API server sets (UID, version) are
/// removed; name, namespace and owner are overwritten.
pub fn pod(
    workload: Identity<'_>,
    spec: &GpuWorkloadSpec,
    task: u32,
    attempt: u32,
    scheduler_name: &str,
) -> Result<Value, BadTemplate> {
    let Value::Object(mut template) = spec.pod_template.value() else {
        return Err(shape("podTemplate", "an object with `spec.containers`"));
    };
    let metadata = object(&mut template, "metadata", "podTemplate.metadata")?;
    let annotations = metadata.get("annotations").cloned().unwrap_or_default();
    if !annotations.is_null() && !annotations.is_object() {
        return Err(shape("podTemplate.metadata.annotations", "an object"));
    }
    if metadata.get("finalizers").is_some_and(|all| !all.is_null() && *all != json!([])) {
        return Err(BadTemplate::Finalizers);
    }
    let body = object(&mut template, "spec", "podTemplate.spec")?;
    if !absent(body, "nodeName") {
        return Err(BadTemplate::NodeName);
    }
    overrides::apply(body, spec, task)?;
    let gpus = gpu_limit::fill(body, &annotations, &spec.gpu_requirements)?;
    if gpus.whole {
        affinity::require_memory(body, memory(spec))?;
        let model = spec.gpu_requirements.required_gpu_type.as_deref();
        affinity::require_model(body, model.unwrap_or_default())?;
    }
    fill(body, "restartPolicy", || "Never".into());
    fill(body, "schedulerName", || scheduler_name.into());
    if absent(body, "priority")
        && let Some(class) = names::priority_class(spec.priority)
    {
        fill(body, "priorityClassName", || class.into());
    }
    rendezvous::fill(&mut template, workload, spec, task)?;
    identify(&mut template, workload, task, attempt)?;
    Ok(Value::Object(template))
}

/// Priority class of the pods of a workload; none for the default class of the cluster.
pub fn priority_class(spec: &GpuWorkloadSpec) -> Option<String> {
    let template = spec.pod_template.value();
    let field = |name: &str| template.pointer(&format!("/spec/{name}")).filter(|v| !v.is_null());
    match (field("priorityClassName"), field("priority")) {
        (Some(class), _) => class.as_str().filter(|name| !name.is_empty()).map(str::to_owned),
        (None, Some(_)) => None,
        (None, None) => names::priority_class(spec.priority),
    }
}

/// True if the template sets a priority class.
pub fn names_class(spec: &GpuWorkloadSpec) -> bool {
    let template = spec.pod_template.value();
    let is_set = |field: &str| template.pointer(field).is_some_and(|value| !value.is_null());
    is_set("/spec/priorityClassName") || is_set("/spec/priority")
}

/// Required memory of each GPU in MiB.
pub fn memory(spec: &GpuWorkloadSpec) -> u64 {
    spec.gpu_memory_required.max(spec.gpu_requirements.min_gpu_memory.unwrap_or(0))
}

/// The object at `key`, created if absent.
pub(super) fn object<'a>(
    parent: &'a mut Map<String, Value>,
    key: &str,
    path: &str,
) -> Result<&'a mut Map<String, Value>, BadTemplate> {
    let value = parent.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut().ok_or_else(|| shape(path, "an object"))
}

pub(super) fn shape(path: &str, expected: &'static str) -> BadTemplate {
    BadTemplate::Shape { path: path.to_owned(), expected }
}

/// Metadata that the API server or the scheduler sets.
const NOT_THEIRS: [&str; 10] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "managedFields",
    "ownerReferences",
];

/// Annotations that only the scheduler and the monitor may set.
const TOLD_BY_US: [&str; 6] = [
    names::POD_DEVICES,
    names::POD_ASSIGNED_GPU,
    names::POD_ASSIGNED_NODE,
    names::POD_PRICE,
    names::POD_RETRIES,
    names::POD_PRIORITY,
];

fn identify(
    template: &mut Map<String, Value>,
    workload: Identity<'_>,
    task: u32,
    attempt: u32,
) -> Result<(), BadTemplate> {
    template.insert("apiVersion".into(), "v1".into());
    template.insert("kind".into(), "Pod".into());
    template.remove("status");
    let metadata = object(template, "metadata", "podTemplate.metadata")?;
    metadata.retain(|key, _| !NOT_THEIRS.contains(&key.as_str()));
    metadata.insert("name".into(), name::pod_name(workload.name, task, attempt).into());
    metadata.insert("namespace".into(), workload.namespace.into());
    if let Some(uid) = workload.uid.filter(|uid| !uid.is_empty()) {
        metadata.insert("ownerReferences".into(), json!([owner(workload.name, uid)]));
    }
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !TOLD_BY_US.contains(&key.as_str()));
    }
    let labels = object(metadata, "labels", "podTemplate.metadata.labels")?;
    labels.insert(names::POD_WORKLOAD.into(), name::label_value(workload.name).into());
    labels.insert(names::POD_MANAGED.into(), "true".into());
    labels.entry(names::MANAGED_BY).or_insert_with(|| names::FIELD_MANAGER.into());
    labels.insert(names::POD_TASK.into(), task.to_string().into());
    labels.insert(names::POD_ATTEMPT.into(), attempt.to_string().into());
    Ok(())
}

pub(super) fn owner(name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
        "kind": "GPUWorkload",
        "name": name,
        "uid": uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

fn fill(body: &mut Map<String, Value>, key: &str, value: impl FnOnce() -> Value) {
    if absent(body, key) {
        body.insert(key.into(), value());
    }
}

/// Returns true for an absent or empty text: Kubernetes treats both alike.
pub(super) fn absent(body: &Map<String, Value>, key: &str) -> bool {
    body.get(key).is_none_or(|value| value.is_null() || value == "")
}
