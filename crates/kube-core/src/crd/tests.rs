//! Properties of the definitions that need no API server; the CEL rules are tested on a real one.

use agentaflow_engine::Strategy;
use serde_json::{Value, json};

use super::{GpuQueueSpec, GpuWorkload, GpuWorkloadSpec, definitions};

/// Workload of the documentation.
fn documented() -> Value {
    json!({
        "apiVersion": "agentaflow.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"name": "my-training-job", "namespace": "agentaflow"},
        "spec": {
            "priority": 5,
            "gpuMemoryRequired": 8192,
            "schedulingStrategy": "least_utilized",
            "gpuRequirements": {"minGPUMemory": 8192, "gpuCount": 1, "exclusiveAccess": true},
            "podTemplate": {"spec": {"containers": [{
                "name": "training",
                "image": "pytorch/pytorch:latest-gpu",
                "resources": {"limits": {"nvidia.com/gpu": 1}},
            }]}},
        },
    })
}

fn schema(plural: &str) -> Value {
    let name = format!("{plural}.agentaflow.io");
    let definition = definitions().into_iter().find(|value| value["metadata"]["name"] == *name);
    definition.unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
}

/// Calls `see` with every nested schema and its path.
fn walk(path: &str, schema: &Value, see: &mut impl FnMut(&str, &Value)) {
    see(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), property, see);
    }
    for key in ["items", "additionalProperties"] {
        if schema[key].is_object() {
            walk(&format!("{path}[]"), &schema[key], see);
        }
    }
}

#[test]
fn every_definition_is_small_enough_for_kubectl_apply() {
    for definition in definitions() {
        let size = definition.to_string().len();
        assert!(size < 20_000, "{}: {size} bytes", definition["metadata"]["name"]);
    }
}

#[test]
fn no_schema_causes_a_warning_of_the_api_server() {
    for plural in ["gpunodes", "gpuqueues", "gpuworkloads"] {
        walk(plural, &schema(plural), &mut |path, schema| {
            let format = schema["format"].as_str().unwrap_or("int64");
            let known = ["int32", "int64", "double", "date-time"];
            assert!(known.contains(&format), "{path}: {format}");
            assert!(schema.get("nullable").is_none(), "{path}");
            let typed = schema["type"].is_string() || schema["x-kubernetes-int-or-string"] == true;
            assert!(typed, "{path} has no type");
        });
    }
}

#[test]
fn every_rule_names_a_valid_value() {
    for plural in ["gpunodes", "gpuqueues", "gpuworkloads"] {
        walk(plural, &schema(plural), &mut |path, schema| {
            for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
                assert!(rule["message"].as_str().is_some_and(|text| text.len() > 20), "{path}");
            }
        });
    }
}

#[test]
fn conditions_of_two_writers_are_merged_by_type() {
    for plural in ["gpunodes", "gpuqueues", "gpuworkloads"] {
        let schema = schema(plural);
        let conditions = &schema["properties"]["status"]["properties"]["conditions"];
        assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]), "{plural}");
    }
}

#[test]
fn the_schema_accepts_the_strategies_that_the_engine_offers() {
    let schema = schema("gpuworkloads");
    let names = &schema["properties"]["spec"]["properties"]["schedulingStrategy"]["enum"];
    let names: Vec<&str> = names.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(names.starts_with(&["least_utilized", "best_fit", "priority", "round_robin"]));
    assert!(names.into_iter().eq(Strategy::offered().map(Strategy::name)));
}

#[test]
fn the_documented_workload_is_read_with_its_template_as_written() {
    let workload: GpuWorkload = serde_json::from_value(documented()).unwrap();
    assert_eq!(workload.spec.gpu_requirements.gpu_count, 1);
    assert_eq!((workload.spec.gang_size, workload.spec.preemptible), (1, true));
    assert_eq!(workload.spec.pod_template.value(), documented()["spec"]["podTemplate"]);
}

#[test]
fn defaults_of_the_schema_match_the_types() {
    let least = json!({"gpuMemoryRequired": 0, "podTemplate": {}});
    let spec: GpuWorkloadSpec = serde_json::from_value(least).unwrap();
    same_defaults(&schema("gpuworkloads"), &serde_json::to_value(spec).unwrap());
    let spec = GpuQueueSpec::default();
    same_defaults(&schema("gpuqueues"), &serde_json::to_value(spec).unwrap());
}

fn same_defaults(schema: &Value, spec: &Value) {
    for (name, property) in schema["properties"]["spec"]["properties"].as_object().unwrap() {
        if let Some(default) = property.get("default") {
            assert_eq!(&spec[name], default, "{name}");
        }
    }
}

#[test]
fn quantities_of_a_queue_may_be_numbers_or_text() {
    let spec = json!({"namespaces": ["a"], "limit": {"cpu": 64, "memory": "1Ti"}});
    let spec: GpuQueueSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(spec.limit.cpu.as_deref(), Some("64"));
    assert_eq!(spec.limit.memory.as_deref(), Some("1Ti"));
    assert_eq!(spec.guaranteed.cpu, None);
}
