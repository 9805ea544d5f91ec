//! Pods inside of unknown kinds: a map with containers is checked like a pod.

use std::collections::BTreeSet;

use serde_json::Value;

use super::object::{self, Object, Path, Pod, is_gpu, text};
use super::{Input, argo};

/// Most levels searched for templates.
const DEEPEST: usize = 24;

/// Key or index.
#[derive(Clone, Copy)]
enum SearchStep<'a> {
    Key(&'a str),
    Number(usize),
}

/// Every pod in an object of any kind.
pub(super) fn pods<'a>(object: &Object<'a>) -> Vec<Pod<'a>> {
    let mut found = Vec::new();
    if !is_pattern(object) && !argo::is_workflow(object) {
        search(object.value, &mut Vec::new(), &mut |path, spec| {
            if has_containers(spec) || inline(object, spec).is_some() {
                found.push((path_of(object, path), spec));
            }
        });
    }
    let pod =
        |(path, spec)| Pod { object: object.clone(), path, spec, inline: inline(object, spec) };
    found.into_iter().map(pod).collect()
}

/// Container that `KServe` adds to a pod spec: `model`, or the name of a server.
fn inline<'a>(object: &Object<'_>, spec: &'a Value) -> Option<&'a str> {
    const SERVERS: [&str; 12] = [
        "model",
        "huggingface",
        "triton",
        "pytorch",
        "tensorflow",
        "onnx",
        "sklearn",
        "xgboost",
        "lightgbm",
        "paddle",
        "pmml",
        "mlflow",
    ];
    let keys = spec.as_object().filter(|_| object.api_version.starts_with("serving.kserve.io/"))?;
    let found =
        keys.iter().find(|(key, value)| SERVERS.contains(&key.as_str()) && value.is_object());
    found.map(|(key, _)| key.as_str())
}

/// Kinds of objects that run containers in a form that no rule checks.
pub fn unchecked_kinds(inputs: &[Input]) -> Vec<String> {
    let runs = |object: &&Object<'_>| {
        let mut runs = false;
        search(object.value, &mut Vec::new(), &mut |_, value| runs |= is_container(value));
        let seen = if argo::is_workflow(object) {
            !argo::has_more(object)
        } else {
            !object.pods().is_empty()
        };
        runs && !is_pattern(object) && !seen
    };
    let objects = object::objects(inputs);
    let kinds: BTreeSet<_> =
        objects.iter().filter(runs).map(|object| object.kind.to_owned()).collect();
    kinds.into_iter().collect()
}

/// Policies and custom resource definitions contain patterns, not pods.
fn is_pattern(object: &Object<'_>) -> bool {
    let group = object.api_version.split('/').next().unwrap_or_default();
    group.ends_with("kyverno.io")
        || group.ends_with("gatekeeper.sh")
        || object.is(&["CustomResourceDefinition"])
}

/// Visits every map below a value except `status`, which repeats the spec.
fn search<'a>(
    value: &'a Value,
    path: &mut Vec<SearchStep<'a>>,
    visit: &mut impl FnMut(&[SearchStep<'a>], &'a Value),
) {
    if path.len() > DEEPEST {
        return;
    }
    match value {
        Value::Object(map) => {
            visit(path, value);
            let top = path.is_empty();
            for (key, value) in map.iter().filter(|(key, _)| !(top && *key == "status")) {
                path.push(SearchStep::Key(key));
                search(value, path, visit);
                path.pop();
            }
        }
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                path.push(SearchStep::Number(number));
                search(item, path, visit);
                path.pop();
            }
        }
        _ => {}
    }
}

fn path_of(object: &Object<'_>, steps: &[SearchStep<'_>]) -> Path {
    let step = |step: &SearchStep<'_>| match step {
        SearchStep::Key(key) => (*key).to_owned(),
        SearchStep::Number(number) => number.to_string(),
    };
    object.join(&steps.iter().map(step).collect::<Vec<_>>())
}

/// True for a pod spec: a list of containers with images or resources.
fn has_containers(spec: &Value) -> bool {
    let containers = object::list(spec, &["containers"]).iter();
    containers
        .into_iter()
        .any(|one| text(one, &["image"]).is_some() || one.get("resources").is_some())
}

/// True for a container: a GPU request, or an image with other container fields.
fn is_container(value: &Value) -> bool {
    let asks = ["limits", "requests"].iter().any(|part| {
        let resources = value.get("resources").and_then(|resources| resources.get(part));
        resources.and_then(Value::as_object).is_some_and(|map| map.keys().any(|key| is_gpu(key)))
    });
    let started = ["command", "args", "securityContext", "resources"];
    asks || text(value, &["image"]).is_some() && started.iter().any(|key| value.get(key).is_some())
}
