//! Schemas of objects: `k8s-openapi`'s for Kubernetes, the custom resource definition for `GPUWorkload`.

use std::sync::OnceLock;

use agentaflow_units::{did_you_mean, nearest};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::object::{Path, join};
use crate::yaml::{Document, Limits, SourcePosition, at, path_text, read_text};

const WORKLOAD: &str = include_str!("../../../../deploy/crds/gpuworkloads.yaml");

/// Something in an object that its schema does not allow.
#[derive(Clone, Debug)]
pub(super) struct Mismatch {
    /// Path from the root of the object.
    pub(super) path: Path,
    pub(super) kind: MismatchKind,
}

#[derive(Clone, Debug)]
pub(super) enum MismatchKind {
    /// Unknown field, with a suggestion.
    Unknown { near: Option<String> },
    /// Something else belongs there; perhaps the value can be turned into it.
    Type { wanted: &'static str, better: Option<Value> },
    /// Valid type, but no permitted value.
    Value { message: String },
}

/// All violations of the schema; empty for unknown kinds.
pub(super) fn mismatches(api_version: &str, kind: &str, value: &Value) -> Vec<Mismatch> {
    let all = schemas();
    let mut found = Vec::new();
    if let Some(schema) = all.kinds.get(&format!("{api_version}/{kind}")) {
        all.look(schema, value, &Vec::new(), &mut found);
    }
    found
}

/// First field that no API server accepts, with its problem. An unknown field in a pod template does not count: a
/// newer cluster may know it.
pub fn first_violation(document: &Document) -> Option<(SourcePosition, String)> {
    let text = |key: &str| document.value.get(key).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let ours = |path: &Path| kind == "GPUWorkload" && !within_template(path);
    let certain =
        |found: &Mismatch| ours(&found.path) || matches!(found.kind, MismatchKind::Type { .. });
    let found = mismatches(version, kind, &document.value).into_iter().filter(certain);
    let positioned = found.map(|found| (document.position(&found.path), found));
    // A misspelt field may be the missing one: report the misspelling.
    let (position, found) = positioned.min_by_key(|(position, found)| {
        (matches!(found.kind, MismatchKind::Value { .. }), *position)
    })?;
    let field = path_text(&found.path);
    let reported = match found.kind {
        MismatchKind::Unknown { near } => {
            let near = did_you_mean(near);
            let name = found.path.last().map_or("", String::as_str);
            format!("unknown field `{name}`{near}")
        }
        MismatchKind::Type { wanted, .. } => format!("expected {wanted}"),
        MismatchKind::Value { message } => message,
    };
    Some((position, if field.is_empty() { reported } else { format!("{field}: {reported}") }))
}

fn within_template(path: &Path) -> bool {
    path.iter().take(2).eq(["spec", "podTemplate"])
}

struct Schemas {
    kinds: Map<String, Value>,
    definitions: Map<String, Value>,
}

fn schemas() -> &'static Schemas {
    static SCHEMAS: OnceLock<Schemas> = OnceLock::new();
    SCHEMAS.get_or_init(|| {
        let mut generator = SchemaGenerator::default();
        let mut kinds = Map::new();
        add::<Pod>("v1/Pod", &mut generator, &mut kinds);
        add::<Service>("v1/Service", &mut generator, &mut kinds);
        add::<ConfigMap>("v1/ConfigMap", &mut generator, &mut kinds);
        add::<PersistentVolumeClaim>("v1/PersistentVolumeClaim", &mut generator, &mut kinds);
        add::<Deployment>("apps/v1/Deployment", &mut generator, &mut kinds);
        add::<StatefulSet>("apps/v1/StatefulSet", &mut generator, &mut kinds);
        add::<DaemonSet>("apps/v1/DaemonSet", &mut generator, &mut kinds);
        add::<ReplicaSet>("apps/v1/ReplicaSet", &mut generator, &mut kinds);
        add::<Job>("batch/v1/Job", &mut generator, &mut kinds);
        add::<CronJob>("batch/v1/CronJob", &mut generator, &mut kinds);
        add::<HorizontalPodAutoscaler>(
            "autoscaling/v2/HorizontalPodAutoscaler",
            &mut generator,
            &mut kinds,
        );
        kinds.extend(workload().map(|schema| ("agentaflow.io/v1/GPUWorkload".to_owned(), schema)));
        Schemas { kinds, definitions: generator.take_definitions(false) }
    })
}

fn add<T: JsonSchema>(name: &str, generator: &mut SchemaGenerator, kinds: &mut Map<String, Value>) {
    kinds.insert(name.to_owned(), generator.subschema_for::<T>().to_value());
}

/// Schema of `GPUWorkload` with the schema of its pod template.
fn workload() -> Option<Value> {
    let document = read_text(WORKLOAD, &Limits::default()).ok()?.into_iter().next()?;
    let mut schema =
        at(&document.value, &["spec", "versions", "0", "schema", "openAPIV3Schema"])?.clone();
    let properties = schema.pointer_mut("/properties")?.as_object_mut()?;
    properties.insert("apiVersion".to_owned(), json!({"type": "string"}));
    properties.insert("kind".to_owned(), json!({"type": "string"}));
    properties.insert(
        "metadata".to_owned(),
        json!({"$ref": "#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}),
    );
    *schema.pointer_mut("/properties/spec/properties/podTemplate")? =
        json!({"$ref": "#/$defs/io.k8s.api.core.v1.PodTemplateSpec"});
    Some(schema)
}

impl Schemas {
    fn look(&self, schema: &Value, value: &Value, path: &Path, found: &mut Vec<Mismatch>) {
        let schema = self.resolve(schema);
        // Null means absent.
        if value.is_null() {
            return;
        }
        if let Some(kind) = wrong_type(schema, value).or_else(|| wrong_value(schema, value)) {
            found.push(Mismatch { path: path.clone(), kind });
            return;
        }
        match value {
            Value::Object(map) => self.look_into(schema, map, path, found),
            Value::Array(items) => {
                let Some(inner) = schema.get("items") else { return };
                for (number, item) in items.iter().enumerate() {
                    self.look(inner, item, &join(path, &[number.to_string()]), found);
                }
            }
            _ => {}
        }
    }

    fn look_into(
        &self,
        schema: &Value,
        map: &Map<String, Value>,
        path: &Path,
        found: &mut Vec<Mismatch>,
    ) {
        let known = schema.get("properties").and_then(Value::as_object);
        let others = schema.get("additionalProperties").filter(|others| others.is_object());
        let open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
        for (key, value) in map {
            let path = join(path, &[key]);
            match (known.and_then(|known| known.get(key)), others, known) {
                (Some(inner), _, _) | (None, Some(inner), _) => {
                    self.look(inner, value, &path, found);
                }
                (None, None, Some(known)) if !open => {
                    let near = nearest(key, known.keys().map(String::as_str)).map(str::to_owned);
                    found.push(Mismatch { path, kind: MismatchKind::Unknown { near } });
                }
                _ => {}
            }
        }
        for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
            let missing = |name: &&str| !map.contains_key(*name) && !is_filled_in(path, name);
            if let Some(name) = name.as_str().filter(missing) {
                let message = format!("`{name}` is missing");
                found.push(Mismatch { path: path.clone(), kind: MismatchKind::Value { message } });
            }
        }
    }

    fn resolve<'s>(&'s self, schema: &'s Value) -> &'s Value {
        let named = schema.get("$ref").and_then(Value::as_str);
        let name = named.and_then(|named| named.rsplit('/').next());
        name.and_then(|name| self.definitions.get(name)).unwrap_or(schema)
    }
}

/// True if the API server defaults a field that its schema requires.
fn is_filled_in(path: &Path, name: &str) -> bool {
    name == "status" && path.iter().any(|step| step == "onPodConditions")
}

fn wrong_type(schema: &Value, value: &Value) -> Option<MismatchKind> {
    let text = value.as_str();
    let (fits, wanted, better) = match schema.get("type").and_then(Value::as_str) {
        Some("string") => {
            let written = value.is_number() || value.is_boolean();
            (text.is_some(), "text", written.then(|| json!(value.to_string())))
        }
        Some("integer") => {
            let number = text.and_then(|text| text.trim().parse::<i64>().ok()).map(Value::from);
            (value.is_i64() || value.is_u64(), "a whole number", number)
        }
        Some("number") => (value.is_number(), "a number", None),
        Some("boolean") => {
            let truth = text.and_then(|text| text.trim().parse::<bool>().ok()).map(Value::from);
            (value.is_boolean(), "true or false", truth)
        }
        Some("array") => (value.is_array(), "a list", None),
        Some("object") => (value.is_object(), "fields", None),
        _ if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) => {
            (value.is_number() || value.is_string(), "a number or text", None)
        }
        _ => return None,
    };
    (!fits).then_some(MismatchKind::Type { wanted, better })
}

fn wrong_value(schema: &Value, value: &Value) -> Option<MismatchKind> {
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    let message = if let (Some(least), Some(given)) = (bound("minimum"), value.as_f64())
        && given < least
    {
        format!("{value} is below the minimum of {least}")
    } else if let (Some(most), Some(given)) = (bound("maximum"), value.as_f64())
        && given > most
    {
        format!("{value} is above the maximum of {most}")
    } else if let Some(known) = schema.get("enum").and_then(Value::as_array)
        && !known.contains(value)
    {
        let names: Vec<_> = known.iter().filter_map(Value::as_str).collect();
        let near = value.as_str().and_then(|text| nearest(text, names.iter().copied()));
        let meant = did_you_mean(near);
        format!("{value} is not one of {}{meant}", names.join(", "))
    } else {
        return None;
    };
    Some(MismatchKind::Value { message })
}
