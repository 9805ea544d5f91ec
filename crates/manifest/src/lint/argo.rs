//! Argo workflows: each template with a container becomes a pod, with the defaults of its workflow.

use serde_json::{Map, Value, json};

use super::object::{Object, Path, Pod, list, text};
use crate::yaml::at;

/// Fields that a template inherits from its workflow.
const INHERITED: [&str; 3] = ["nodeSelector", "affinity", "tolerations"];

/// Most values copied into the templates of one workflow.
const MOST_COPIED: usize = 1 << 20;

/// Workflow template as a pod.
#[derive(Clone, Debug)]
pub(super) struct Template {
    /// Index of the workflow's object.
    object: usize,
    path: Path,
    /// Key of its container.
    inline: &'static str,
    spec: Value,
}

/// True for kinds with workflow templates; Argo has other kinds, too.
pub(super) fn is_workflow(object: &Object<'_>) -> bool {
    let kinds = ["Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow"];
    object.api_version.starts_with("argoproj.io/") && kinds.contains(&object.kind)
}

/// Templates of all workflows that can be expanded.
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

/// True if a workflow has containers that are not checked: container sets, and containers changed by a patch.
pub(super) fn has_more(object: &Object<'_>) -> bool {
    let (_, spec) = workflow(object);
    let runs = |template: &&Value| {
        ["container", "script", "containerSet"].iter().any(|key| template.get(key).is_some())
    };
    let all = list(spec, &["templates"]).iter();
    is_too_large(spec) || all.filter(runs).any(|template| container(spec, template).is_none())
}

/// True if the workflow's defaults are too large to copy into each template.
fn is_too_large(workflow: &Value) -> bool {
    let shared =
        INHERITED.into_iter().chain(["volumes", "volumeClaimTemplates", "templateDefaults"]);
    let shared: usize = shared.filter_map(|key| workflow.get(key)).map(values).sum();
    shared.saturating_mul(list(workflow, &["templates"]).len()) > MOST_COPIED
}

/// Number of values in a value.
fn values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(values).sum(),
        Value::Object(map) => map.values().map(values).sum(),
        _ => 0,
    }
}

/// Path and value of the workflow spec.
fn workflow<'a>(object: &Object<'a>) -> (Path, &'a Value) {
    let steps: &[&str] =
        if object.kind == "CronWorkflow" { &["spec", "workflowSpec"] } else { &["spec"] };
    (object.join(steps), object.at(steps).unwrap_or(&Value::Null))
}

/// Key of the only container of a template.
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

/// The template's own volumes come first and keep their indices; then the workflow's volumes and claim templates.
fn volumes(workflow: &Value, template: &Map<String, Value>) -> Vec<Value> {
    let own = template.get("volumes").and_then(Value::as_array).into_iter().flatten().cloned();
    let shared = list(workflow, &["volumes"]).iter().cloned();
    let claims = list(workflow, &["volumeClaimTemplates"]).iter();
    let claims = claims.filter_map(|claim| text(claim, &["metadata", "name"]));
    let claims =
        claims.map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
    own.chain(shared).chain(claims).collect()
}
