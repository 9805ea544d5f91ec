//! Human-readable page of the API, generated from the OpenAPI document.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use serde_json::Value;

use super::html::{document, escaped, prose};
use super::openapi;

/// Maximum depth of nested objects.
const DEPTH: usize = 3;
const METHODS: [&str; 4] = ["get", "post", "put", "delete"];

pub(crate) fn page() -> &'static str {
    static PAGE: OnceLock<String> = OnceLock::new();
    PAGE.get_or_init(|| render(&serde_json::from_str(openapi::json()).unwrap_or_default()))
}

fn render(api: &Value) -> String {
    let mut body = format!(
        "<h1>The API of agentaflow {}</h1><p>{}</p><p>For programs: <a href=\"/openapi.json\">openapi.json</a></p>",
        escaped(text(&api["info"]["version"])),
        prose(text(&api["info"]["description"])),
    );
    body.push_str(&tokens(api));
    let groups = grouped(api);
    let tags = api["tags"].as_array().map_or(&[][..], Vec::as_slice);
    for tag in tags {
        let name = text(&tag["name"]);
        let Some(operations) = groups.get(name) else { continue };
        let _ =
            write!(body, "<h2>{}</h2><p>{}</p>", escaped(name), prose(text(&tag["description"])));
        for (path, method, operation) in operations {
            body.push_str(&endpoint(api, path, method, operation));
        }
    }
    document("agentaflow API", &body)
}

fn tokens(api: &Value) -> String {
    let mut out = "<h2>Tokens</h2><table>".to_owned();
    let schemes = api["components"]["securitySchemes"].as_object();
    for (name, scheme) in schemes.into_iter().flatten() {
        let _ = write!(
            out,
            "<tr><th>{}<td>{}</tr>",
            escaped(name),
            prose(text(&scheme["description"]))
        );
    }
    out + "</table>"
}

type Operations<'a> = Vec<(&'a str, &'static str, &'a Value)>;

fn grouped(api: &Value) -> BTreeMap<&str, Operations<'_>> {
    let mut groups: BTreeMap<&str, Operations<'_>> = BTreeMap::new();
    for (path, item) in api["paths"].as_object().into_iter().flatten() {
        for method in METHODS {
            let Some(operation) = item.get(method) else { continue };
            let tag = text(&operation["tags"][0]);
            groups.entry(tag).or_default().push((path, method, operation));
        }
    }
    groups
}

fn endpoint(api: &Value, path: &str, method: &str, operation: &Value) -> String {
    let about = text(&operation["summary"]);
    let mut out = format!(
        "<details><summary><code><span class=\"way\">{}</span>{}</code> {}</summary>",
        method.to_uppercase(),
        escaped(path),
        prose(about),
    );
    let more = text(&operation["description"]);
    if more != about && !more.is_empty() {
        let _ = write!(out, "<p>{}</p>", prose(more));
    }
    out.push_str(&who(operation));
    out.push_str(&parameters(operation));
    let body = &operation["requestBody"]["content"]["application/json"];
    if !body.is_null() {
        out.push_str("<h4>Body</h4>");
        out.push_str(&fields(api, &body["schema"], DEPTH));
    }
    out.push_str(&answers(api, operation));
    let _ = write!(
        out,
        "<h4>Example</h4><pre>{}</pre></details>",
        escaped(&curl(path, method, operation, &body["example"]))
    );
    out
}

fn who(operation: &Value) -> String {
    let names: Vec<_> = security(operation);
    match names.as_slice() {
        [] => "<p class=\"soft\">No token is needed.</p>".to_owned(),
        names => format!("<p class=\"soft\">Token: {}</p>", escaped(&names.join(" or "))),
    }
}

fn security(operation: &Value) -> Vec<&str> {
    let all = operation["security"].as_array().into_iter().flatten();
    all.filter_map(Value::as_object).flat_map(|map| map.keys().map(String::as_str)).collect()
}

fn parameters(operation: &Value) -> String {
    let all = operation["parameters"].as_array().map_or(&[][..], Vec::as_slice);
    if all.is_empty() {
        return String::new();
    }
    let mut out = "<h4>Parameters</h4><table>".to_owned();
    for parameter in all {
        let _ = write!(
            out,
            "<tr><td><code>{}</code><td class=\"soft\">{}<td>{}</tr>",
            escaped(text(&parameter["name"])),
            escaped(text(&parameter["in"])),
            prose(text(&parameter["description"])),
        );
    }
    out + "</table>"
}

fn answers(api: &Value, operation: &Value) -> String {
    let mut out = "<h4>Answers</h4>".to_owned();
    for (status, answer) in operation["responses"].as_object().into_iter().flatten() {
        if status == "default" {
            continue;
        }
        let content = answer["content"].as_object().and_then(|map| map.iter().next());
        let kind = content.map_or("", |(kind, _)| kind.as_str());
        let _ = write!(
            out,
            "<p><code>{}</code> {} <span class=\"soft\">{}</span></p>",
            escaped(status),
            prose(text(&answer["description"])),
            escaped(kind),
        );
        if let Some((_, content)) = content {
            out.push_str(&fields(api, &content["schema"], DEPTH));
        }
    }
    out
}

/// Fields of a schema as a table; empty for schemas without fields.
fn fields(api: &Value, schema: &Value, depth: usize) -> String {
    let rows = properties(api, schema, depth);
    if rows.is_empty() {
        return String::new();
    }
    let mut out = "<table>".to_owned();
    for (name, schema) in rows {
        let _ = write!(
            out,
            "<tr><td><code>{}</code><td class=\"soft\">{}<td>{}</tr>",
            escaped(name),
            escaped(&kind(api, schema)),
            prose(about(api, schema)),
        );
    }
    out + "</table>"
}

/// Names and schemas of the fields of a schema, with references, lists and compositions resolved.
fn properties<'a>(api: &'a Value, schema: &'a Value, depth: usize) -> Vec<(&'a str, &'a Value)> {
    let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
    let schema = resolved(api, schema);
    if let Some(parts) = schema["allOf"].as_array() {
        return parts.iter().flat_map(|part| properties(api, part, depth + 1)).collect();
    }
    if schema["type"] == "array" {
        return properties(api, &schema["items"], depth);
    }
    let own = schema["properties"].as_object().into_iter().flatten();
    own.map(|(name, schema)| (name.as_str(), schema)).collect()
}

fn resolved<'a>(api: &'a Value, schema: &'a Value) -> &'a Value {
    let name = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/components/schemas/"));
    name.map_or(schema, |name| &api["components"]["schemas"][name])
}

/// Short type name of a field.
fn kind(api: &Value, schema: &Value) -> String {
    let choices = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    if let Some(one) = choices.and_then(|all| all.iter().find(|one| one["type"] != "null")) {
        return kind(api, one);
    }
    let schema = resolved(api, schema);
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<_> = words.iter().filter_map(Value::as_str).collect();
        return words.join(" | ");
    }
    let word = match &schema["type"] {
        Value::String(word) => word.as_str(),
        Value::Array(words) => {
            words.iter().filter_map(Value::as_str).find(|word| *word != "null").unwrap_or("")
        }
        _ => "object",
    };
    if word == "array" {
        return format!("list of {}", kind(api, &schema["items"]));
    }
    word.to_owned()
}

fn about<'a>(api: &'a Value, schema: &'a Value) -> &'a str {
    let own = text(&schema["description"]);
    if !own.is_empty() {
        return own;
    }
    let choices = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    let inner = choices.and_then(|all| all.iter().find(|one| one["type"] != "null"));
    inner.map_or_else(|| text(&resolved(api, schema)["description"]), |inner| about(api, inner))
}

fn curl(path: &str, method: &str, operation: &Value, example: &Value) -> String {
    let mut out = match method {
        "get" => "curl".to_owned(),
        other => format!("curl -X {}", other.to_uppercase()),
    };
    let path = path.replace('{', "$").replace('}', "").to_uppercase_variables();
    let _ = write!(out, " \"$SERVER{path}\"");
    if !security(operation).is_empty() {
        out.push_str(" \\\n  -H \"Authorization: Bearer $TOKEN\"");
    }
    if !example.is_null() {
        let json = serde_json::to_string(example).unwrap_or_default();
        let _ = write!(out, " \\\n  -H \"Content-Type: application/json\" \\\n  -d '{json}'");
    }
    out
}

trait Variables {
    fn to_uppercase_variables(&self) -> String;
}

impl Variables for String {
    /// Writes `$node_id` in shell style: `$NODE_ID`.
    fn to_uppercase_variables(&self) -> String {
        let parts: Vec<_> = self
            .split('/')
            .map(|part| if part.starts_with('$') { part.to_uppercase() } else { part.to_owned() })
            .collect();
        parts.join("/")
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_path_and_needs_nothing_from_elsewhere() {
        let api: Value = serde_json::from_str(openapi::json()).unwrap();
        let page = page();
        for path in api["paths"].as_object().unwrap().keys() {
            assert!(page.contains(&escaped(path)), "{path} is missing");
        }
        assert!(!page.contains("<script") && !page.contains("src="));
        let elsewhere = ["href=\"http", "url(", "@import"];
        assert!(elsewhere.iter().all(|mark| !page.contains(mark)));
    }

    #[test]
    fn every_call_has_a_summary_a_group_and_an_example() {
        let api: Value = serde_json::from_str(openapi::json()).unwrap();
        let tags: Vec<_> =
            api["tags"].as_array().unwrap().iter().map(|tag| text(&tag["name"])).collect();
        let mut ids = std::collections::BTreeSet::new();
        for (path, item) in api["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                assert!(ids.insert(text(&operation["operationId"])), "{method} {path}");
                assert!(!text(&operation["summary"]).is_empty(), "{method} {path}");
                assert!(tags.contains(&text(&operation["tags"][0])), "{method} {path}");
                assert!(operation["responses"]["default"].is_object(), "{method} {path}");
            }
        }
    }

    #[test]
    fn every_reference_in_the_document_leads_somewhere() {
        fn references(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(map) => {
                    found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                    map.values().for_each(|value| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let api: Value = serde_json::from_str(openapi::json()).unwrap();
        let mut found = Vec::new();
        references(&api, &mut found);
        assert!(!found.is_empty());
        for path in found {
            let name = path.strip_prefix("#/components/schemas/").unwrap();
            assert!(api["components"]["schemas"][name].is_object(), "{path}");
        }
    }
}
