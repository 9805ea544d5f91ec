//! Converts the Rust types to definitions that an API server accepts without warnings.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::{GpuNode, GpuQueue, GpuWorkload};

/// Definitions as installed, ordered by name.
pub fn definitions() -> Vec<Value> {
    vec![tidy(&GpuNode::crd()), tidy(&GpuQueue::crd()), tidy(&GpuWorkload::crd())]
}

/// CEL rules with their messages.
pub(super) fn rules(rules: &[(&str, &str)]) -> Value {
    rules.iter().map(|(rule, message)| json!({"rule": rule, "message": message})).collect()
}

/// Rule of an immutable field.
pub(super) const FIXED: (&str, &str) =
    ("self == oldSelf", "cannot be changed: delete the object and create it with the new value");

/// Standard conditions, merged by type for concurrent writers.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {"type": "string", "description": "Type of the condition."},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "reason": {"type": "string", "description": "Machine-readable reason."},
                "message": {"type": "string", "description": "Human-readable message."},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "observedGeneration": {"type": "integer", "format": "int64"},
            },
        },
    })
}

/// Objects with a name, kept as written.
pub(super) fn objects(_: &mut SchemaGenerator) -> Schema {
    written("name", &json!({"type": "string"}))
}

/// Ports of a container, kept as written.
pub(super) fn ports(_: &mut SchemaGenerator) -> Schema {
    written("containerPort", &json!({"type": "integer", "minimum": 1, "maximum": 65_535}))
}

/// Volume mounts of a container, kept as written.
pub(super) fn mounts(_: &mut SchemaGenerator) -> Schema {
    written("mountPath", &json!({"type": "string", "minLength": 1}))
}

/// Objects with a key, kept as written.
fn written(key: &str, kind: &Value) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 256,
        "items": {
            "type": "object",
            "required": [key],
            "properties": {key: kind},
            "x-kubernetes-preserve-unknown-fields": true,
        },
    })
}

/// Labels with their values.
pub(super) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {"type": "string", "maxLength": 63},
    })
}

/// Texts of a command line.
pub(super) fn words(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": 256, "items": {"type": "string"}})
}

/// Quantities by resource name.
pub(super) fn quantities(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {"x-kubernetes-int-or-string": true},
    })
}

fn tidy(definition: &CustomResourceDefinition) -> Value {
    // Serializing these types cannot fail.
    let mut value = serde_json::to_value(definition).unwrap_or_default();
    let versions = value.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
            tidy_schema(schema);
        }
    }
    value
}

/// Removes parts of derived schemas: integer formats unknown to Kubernetes (each causes a warning), numbers such as
/// `10.0`, and `nullable`, because absence is sufficient.
fn tidy_schema(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    schema.remove("nullable");
    schema.remove("title");
    for bound in ["minimum", "maximum", "default"] {
        schema.get_mut(bound).into_iter().for_each(whole);
    }
    if let Some(format @ Value::String(_)) = schema.get_mut("format") {
        match format.as_str() {
            Some("uint8" | "uint16" | "uint32") => *format = "int32".into(),
            Some("uint64") => *format = "int64".into(),
            _ => {}
        }
    }
    for key in ["items", "additionalProperties"] {
        schema.get_mut(key).into_iter().for_each(tidy_schema);
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(|properties| properties.values_mut()).for_each(tidy_schema);
}

/// Writes a number without a fraction as an integer.
fn whole(value: &mut Value) {
    if let Some(number) =
        value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e15)
    {
        *value = json!(number as i64);
    }
}
