//! Answers against the OpenAPI document.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::site::Site;

/// Checks a value against a schema: types, enums, required and unknown fields.
fn check(api: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        return check(api, definition(api, name), value, place);
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        check(api, part, value, place)?;
    }
    let choices = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    if let Some(choices) = choices {
        let errors: Vec<_> =
            choices.iter().map(|choice| check(api, choice, value, place)).collect();
        if errors.iter().all(Result::is_err) {
            return Err(format!("{place} is none of {} forms: {errors:?}", choices.len()));
        }
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|kind| has_type(kind, value)) {
        return Err(format!("{place} is {value}, not {types:?}"));
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        return Err(format!("{place} is {value}, not one of {}", schema["enum"]));
    }
    for field in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.is_object() && value.get(field).is_none() {
            return Err(format!("{place}.{field} is missing"));
        }
    }
    for (field, inner) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = value.get(field) {
            check(api, inner, value, &format!("{place}.{field}"))?;
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check(api, &schema["items"], item, &format!("{place}[{index}]"))?;
    }
    Ok(())
}

fn definition<'a>(api: &'a Value, name: &str) -> &'a Value {
    &api["components"]["schemas"][name.trim_start_matches("#/components/schemas/")]
}

fn has_type(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other}"),
    }
}

/// Names of the fields that a schema has.
fn fields(api: &Value, schema: &Value) -> BTreeSet<String> {
    if let Some(name) = schema["$ref"].as_str() {
        return fields(api, definition(api, name));
    }
    let own = schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone());
    let parts = schema["allOf"].as_array().into_iter().flatten();
    own.chain(parts.flat_map(|part| fields(api, part))).collect()
}

#[tokio::test]
async fn answers_have_the_form_that_the_document_describes() {
    let site = Site::new().await;
    let api = site.get("", "/openapi.json").await.expect(200);
    let node = site.node("one").await;
    let agent = json!({"agent_id": "agent-1", "node_id": node["id"]});
    site.post(site.registration(), "/gpu-workers/agents/register", agent).await.expect(200);
    site.call(site.admin(), "PUT", "/queues/team", json!({"limit": {"gpus": 2}})).await.expect(201);
    for _ in 0..2 {
        let job = json!({"docker_image": "x", "input_data": null, "gpu_count": 9});
        site.post(site.admin(), "/gpu-workers/jobs", job).await.expect(201);
    }
    site.post(site.admin(), "/gpu-workers/jobs/2/cancel", Value::Null).await.expect(200);
    for (path, name) in [
        ("/gpu-workers/jobs/1", "Job"),
        ("/gpu-workers/jobs/2", "Job"),
        ("/gpu-workers/jobs/1/explain", "Explanation"),
        ("/gpu-workers/jobs/2/explain", "Explanation"),
        ("/gpu-workers/jobs/1/events", "Event"),
        ("/gpu-workers/nodes", "Node"),
        ("/gpu-workers/nodes/1/stats", "NodeStats"),
        ("/gpu-workers/available-nodes", "AvailableNodes"),
        ("/gpu-workers/agents", "Agent"),
        ("/queues", "Queue"),
        ("/users", "User"),
        ("/auth/me", "User"),
        ("/version", "Version"),
        ("/health", "HealthStatus"),
    ] {
        let answer = site.get(site.admin(), path).await.expect(200);
        let schema = definition(&api, name);
        let known = fields(&api, schema);
        let items = answer.as_array().cloned().unwrap_or_else(|| vec![answer]);
        assert!(!items.is_empty(), "{path}");
        for item in items {
            check(&api, schema, &item, name).unwrap_or_else(|error| panic!("{path}: {error}"));
            let unknown = item.as_object().unwrap().keys().find(|field| !known.contains(*field));
            assert_eq!(unknown, None, "{path}");
        }
    }
}
