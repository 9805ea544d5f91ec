//! Workflows of Argo: each template that has a container is a pod, with what the workflow says for all of them.

use serde_json::{Map, Value, json};

use super::object::{Object, Path, Pod, list, text};
use crate::yaml::at;

/// What a template takes over where it says nothing itself.
const INHERITED: [&str; 3] = ["nodeSelector", "affinity", "tolerations"];

/// How many values may be written down again for the templates of one workflow.
const MOST_COPIED: usize = 1 << 20;

/// A template of a workflow, as the pod that is made from it.
#[derive(Clone, Debug)]
pub(super) struct Template {
    /// Which of the objects has it.
    object: usize,
    path: Path,
    /// The key of its container.
    inline: &'static str,
    spec: Value,
}

/// Whether an object is a workflow, or has the templates of some. Argo has other kinds, too.
pub(super) fn is_workflow(object: &Object<'_>) -> bool {
    let kinds = ["Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow"];
    object.api_version.starts_with("argoproj.io/") && kinds.contains(&object.kind)
}

/// The templates of all workflows that can be looked into.
pub(super) fn templates(objects: &[Object<'_>]) -> Vec<Template> {
    let workflows = objects.iter().enumerate().filter(|(_, object)| is_workflow(object));
    let all = workflows.flat_map(|(number, object)| {
        let (path, spec) = workflow(object);
        let all = if is_too_large(spec) { &[] } else { list(spec, &["templates"]) };
        let numbered = all.iter().enumerate();
        let found = numbered.filter_map(|(index, template)| {
            let inline = container(spec, template)?;
            let path = [path.clone(), vec!["templates".to_owned(), index.to_string()]].concat();
            Some(Template { object: number, path, inline, spec: merged(spec, template) })
        });
        found.collect::<Vec<_>>()
    });
    all.collect()
}

impl Template {
    pub(super) fn pod<'a>(&'a self, objects: &[Object<'a>]) -> Option<Pod<'a>> {
        let object = objects.get(self.object)?.clone();
        Some(Pod { object, path: self.path.clone(), spec: &self.spec, inline: Some(self.inline) })
    }
}

/// Whether a workflow has containers that cannot be looked into: those of a set, and those that a patch changes.
pub(super) fn has_more(object: &Object<'_>) -> bool {
    let (_, spec) = workflow(object);
    let runs = |template: &&Value| {
        ["container", "script", "containerSet"].iter().any(|key| template.get(key).is_some())
    };
    let all = list(spec, &["templates"]).iter();
    is_too_large(spec) || all.filter(runs).any(|template| container(spec, template).is_none())
}

/// Whether what all templates have in common is too much to give it to each of them.
fn is_too_large(workflow: &Value) -> bool {
    let shared =
        INHERITED.into_iter().chain(["volumes", "volumeClaimTemplates", "templateDefaults"]);
    let shared: usize = shared.filter_map(|key| workflow.get(key)).map(values).sum();
    shared.saturating_mul(list(workflow, &["templates"]).len()) > MOST_COPIED
}

/// How many values there are in one.
fn values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(values).sum(),
        Value::Object(map) => map.values().map(values).sum(),
        _ => 0,
    }
}

/// Where the spec of the workflow is.
fn workflow<'a>(object: &Object<'a>) -> (Path, &'a Value) {
    let steps: &[&str] =
        if object.kind == "CronWorkflow" { &["spec", "workflowSpec"] } else { &["spec"] };
    (object.join(steps), object.at(steps).unwrap_or(&Value::Null))
}

/// The key of the only container, if it is what runs in the end.
fn container(workflow: &Value, template: &Value) -> Option<&'static str> {
    let levels = [Some(template), at(workflow, &["templateDefaults"]), Some(workflow)];
    let patched =
        levels.into_iter().flatten().any(|level| text(level, &["podSpecPatch"]).is_some());
    let written = |key: &&str| template.get(key).is_some_and(Value::is_object);
    ["container", "script"].into_iter().find(written).filter(|_| !patched)
}

fn merged(workflow: &Value, template: &Value) -> Value {
    let mut spec = template.as_object().cloned().unwrap_or_default();
    for key in INHERITED {
        let levels = [at(workflow, &["templateDefaults", key]), workflow.get(key)];
        if is_nothing(spec.get(key))
            && let Some(value) = levels.into_iter().flatten().find(|value| !is_nothing(Some(value)))
        {
            spec.insert(key.to_owned(), value.clone());
        }
    }
    spec.insert("volumes".to_owned(), Value::Array(volumes(workflow, &spec)));
    Value::Object(spec)
}

fn is_nothing(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}

/// The template's own volumes first, so that these keep their numbers; then those of all, and the claims that are made.
fn volumes(workflow: &Value, template: &Map<String, Value>) -> Vec<Value> {
    let own = template.get("volumes").and_then(Value::as_array).into_iter().flatten().cloned();
    let shared = list(workflow, &["volumes"]).iter().cloned();
    let claims = list(workflow, &["volumeClaimTemplates"]).iter();
    let claims = claims.filter_map(|claim| text(claim, &["metadata", "name"]));
    let claims =
        claims.map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
    own.chain(shared).chain(claims).collect()
}
