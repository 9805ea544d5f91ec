//! GPU limit of the template, or a limit added to the right container.

use serde_json::{Map, Value};

use super::template::{BadTemplate, object, shape};
use crate::crd::GpuRequirements;
use crate::names;

/// Annotation that selects the container of `kubectl logs` and `kubectl exec`.
const MAIN_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// Alternative name of the device plugin for time slices of GPUs.
const SHARED_RESOURCE: &str = "nvidia.com/gpu.shared";

/// GPUs that a pod finally requests.
pub(super) struct Gpus {
    /// True for whole GPUs; false for MIG slices or no GPU.
    pub(super) whole: bool,
}

/// Adds the limit if no container has one; rejects a template that contradicts the workload.
pub(super) fn fill(
    body: &mut Map<String, Value>,
    annotations: &Value,
    wanted: &GpuRequirements,
) -> Result<Gpus, BadTemplate> {
    check_containers(body)?;
    let asked = asked(body);
    if asked.is_empty() {
        let resource = match profile(wanted) {
            Some(profile) => format!("{}{profile}", names::MIG_PREFIX),
            None => names::GPU_RESOURCE.to_owned(),
        };
        if !wanted.exclusive_access && wanted.gpu_count == 1 && profile(wanted).is_none() {
            return Err(BadTemplate::NoSharing);
        }
        if wanted.gpu_count > 0 {
            add(body, annotations, &resource, wanted.gpu_count)?;
        }
        return Ok(Gpus { whole: wanted.gpu_count > 0 && profile(wanted).is_none() });
    }
    agree(&asked, wanted)?;
    Ok(Gpus { whole: asked.iter().any(|ask| !ask.resource.starts_with(names::MIG_PREFIX)) })
}

/// Profile as in resource names; users may write the whole resource name.
fn profile(wanted: &GpuRequirements) -> Option<&str> {
    let text = wanted.mig_profile.as_deref()?.trim();
    let text = text.strip_prefix("nvidia.com/").unwrap_or(text);
    let text = text.strip_prefix("mig-").unwrap_or(text);
    Some(text).filter(|text| !text.is_empty())
}

/// GPU resource of the whole pod; the amount is unknown if only the API server can parse it.
struct GpuLimit {
    resource: String,
    amount: Option<u64>,
}

fn check_containers(body: &Map<String, Value>) -> Result<(), BadTemplate> {
    let path = "podTemplate.spec.containers";
    let containers = body.get("containers").and_then(Value::as_array);
    match containers {
        Some(containers) if !containers.is_empty() => {
            if containers.iter().all(Value::is_object) {
                Ok(())
            } else {
                Err(shape(path, "a list of objects"))
            }
        }
        _ => Err(shape(path, "a list with at least one container")),
    }
}

/// Sums containers and sidecars and takes the maximum over init containers, as Kubernetes does.
fn asked(body: &Map<String, Value>) -> Vec<GpuLimit> {
    let mut all: Vec<GpuLimit> = Vec::new();
    let mut note = |resource: &str, amount: Option<u64>, add: bool| match all
        .iter_mut()
        .find(|ask| ask.resource == resource)
    {
        None => all.push(GpuLimit { resource: resource.to_owned(), amount }),
        Some(ask) => {
            ask.amount = ask
                .amount
                .zip(amount)
                .map(|(one, other)| if add { one.saturating_add(other) } else { one.max(other) });
        }
    };
    for (resource, amount) in list(body, "containers").flat_map(resources) {
        note(resource, amount, true);
    }
    for container in list(body, "initContainers") {
        let sidecar = container.get("restartPolicy").is_some_and(|policy| policy == "Always");
        for (resource, amount) in resources(container) {
            note(resource, amount, sidecar);
        }
    }
    all
}

fn list<'a>(body: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a Value> {
    body.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// GPU resources of a container: the limit, else the request.
fn resources(container: &Value) -> impl Iterator<Item = (&str, Option<u64>)> {
    let part = move |key: &str| container.get("resources").and_then(|value| value.get(key));
    let limits = part("limits");
    let of = |value: &'_ Value| number(value);
    entries(limits)
        .chain(entries(part("requests")).filter(move |(name, _)| {
            limits.is_none_or(|limits| limits.get(name.as_str()).is_none())
        }))
        .map(move |(name, value)| (name.as_str(), of(value)))
        .filter(|(name, _)| is_gpu(name))
}

fn entries(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten()
}

/// Returns true for GPU resources: network cards also have the prefix `nvidia.com/`.
fn is_gpu(resource: &str) -> bool {
    resource == names::GPU_RESOURCE
        || resource == SHARED_RESOURCE
        || resource.starts_with(names::MIG_PREFIX)
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())
}

fn agree(asked: &[GpuLimit], wanted: &GpuRequirements) -> Result<(), BadTemplate> {
    if let Some(profile) = profile(wanted) {
        let resource = format!("{}{profile}", names::MIG_PREFIX);
        if let Some(other) = asked.iter().find(|ask| ask.resource != resource) {
            return Err(contradiction(asked, &other.resource, "migProfile", profile.to_owned()));
        }
    }
    let total = asked.iter().try_fold(0_u64, |sum, ask| Some(sum.saturating_add(ask.amount?)));
    match total {
        Some(total) if total != u64::from(wanted.gpu_count) => {
            let first = &asked[0].resource;
            Err(contradiction(asked, first, "gpuCount", wanted.gpu_count.to_string()))
        }
        _ => Ok(()),
    }
}

fn contradiction(
    asked: &[GpuLimit],
    resource: &str,
    field: &'static str,
    wanted: String,
) -> BadTemplate {
    let texts: Vec<String> = asked
        .iter()
        .filter(|ask| field == "gpuCount" || ask.resource == resource)
        .map(|ask| match ask.amount {
            Some(amount) => format!("{}: {amount}", ask.resource),
            None => ask.resource.clone(),
        })
        .collect();
    BadTemplate::Contradiction { asked: texts.join(" and "), field, wanted }
}

/// Adds the limit to the only container, or to the default container of `kubectl logs`.
fn add(
    body: &mut Map<String, Value>,
    annotations: &Value,
    resource: &str,
    count: u32,
) -> Result<(), BadTemplate> {
    let main = annotations.get(MAIN_CONTAINER).and_then(Value::as_str);
    let containers = body.get_mut("containers").and_then(Value::as_array_mut);
    let containers = containers.map(Vec::as_mut_slice).unwrap_or_default();
    let named =
        |container: &Value| main.is_some() && container.get("name").and_then(Value::as_str) == main;
    let index = match containers.iter().position(named) {
        Some(index) => index,
        None if containers.len() > 1 => {
            let name = |container: &Value| {
                format!("`{}`", container["name"].as_str().unwrap_or("without a name"))
            };
            let all = containers.iter().map(name).collect::<Vec<_>>().join(", ");
            let resource = resource.to_owned();
            return Err(BadTemplate::WhichContainer { names: all, resource, count });
        }
        None => 0,
    };
    let path = format!("podTemplate.spec.containers[{index}].resources");
    let Some(container) = containers.get_mut(index).and_then(Value::as_object_mut) else {
        return Err(shape("podTemplate.spec.containers", "a list with at least one container"));
    };
    let resources = object(container, "resources", &path)?;
    let limits = object(resources, "limits", &format!("{path}.limits"))?;
    limits.insert(resource.to_owned(), count.to_string().into());
    Ok(())
}
