//! The OpenAPI document: derived from the handlers, completed with the parts that they share.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    Components, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, Ref, ResponseBuilder,
    tag::TagBuilder,
};
use utoipa::{PartialSchema as _, ToSchema as _};

use agentaflow_api::error::ErrorBody;

const ABOUT: &str = "GPU servers register, users submit jobs, the scheduler places them, agents run them. A trailing \
    slash in a path is ignored. Every error response is `{\"detail\", \"code\", \"details\"}` with status 400, 401, \
    403, 404, 405, 409, 413, 422 or 429 (503 while the server is unavailable); programs decide on `code` and `details`. \
    In requests `null` means absent, `24576.0` is an integer, and unknown fields of worker \
    calls are ignored. Unknown or empty query parameters and repeated keys of a JSON object are rejected.";

const TAGS: [(&str, &str); 13] = [
    ("jobs", "Submit, inspect and stop jobs."),
    ("nodes", "GPU servers."),
    ("agents", "Programs that run jobs on GPU servers."),
    ("agent link", "Messages between the server and its agents."),
    ("events", "Events of jobs and nodes."),
    ("alerts", "Alerts, silences and test messages."),
    ("queues", "Quotas of the cluster."),
    ("billing", "Usage, cost, waste and credit."),
    ("history", "Readings of the last 30 days."),
    ("auth", "Logins and API keys."),
    ("users", "User accounts (admins)."),
    ("registration tokens", "Tokens with which GPU servers register (admins)."),
    ("server", "Health, version and settings of the server."),
];

const SCHEMES: [(&str, &str); 3] = [
    (
        "user",
        "A user's access token from POST /auth/login, or an API key: POST /auth/api-keys, or the file \
         `admin-token` of the server's data directory.",
    ),
    (
        "registration",
        "A registration token: POST /registration-tokens, or the file `registration-token` of the server's data \
         directory.",
    ),
    ("worker", "The `api_key` in the response to a registration."),
];

/// Document as JSON, in a stable order.
pub(crate) fn json() -> &'static str {
    static JSON: OnceLock<String> = OnceLock::new();
    JSON.get_or_init(|| {
        let document = serde_json::to_value(complete(super::described())).unwrap_or_default();
        let mut text = serde_json::to_string_pretty(&tidied(document)).unwrap_or_default();
        text.push('\n');
        text
    })
}

/// Sorts keys, independent of the map order of this build, and removes defaults without information: `null`, and
/// objects of nulls.
fn tidied(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(key, value)| {
                key != "default" || !(value.is_null() || is_object_of_defaults(value))
            });
            let sorted: BTreeMap<_, _> = kept.map(|(key, value)| (key, tidied(value))).collect();
            Value::Object(sorted.into_iter().collect())
        }
        Value::Array(items) => items.into_iter().map(tidied).collect(),
        other => other,
    }
}

/// Returns true for a default value of an object, as opposed to a response named `default`.
fn is_object_of_defaults(value: &Value) -> bool {
    value.is_object() && value.get("description").is_none()
}

fn complete(mut api: OpenApi) -> OpenApi {
    api.info = InfoBuilder::new()
        .title("agentaflow")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .license(Some(LicenseBuilder::new().name(env!("CARGO_PKG_LICENSE")).build()))
        .build();
    api.tags = Some(
        TAGS.iter()
            .map(|(name, about)| TagBuilder::new().name(*name).description(Some(*about)).build())
            .collect(),
    );
    let components = api.components.get_or_insert_with(Components::new);
    components.schemas.insert(ErrorBody::name().into_owned(), ErrorBody::schema());
    let mut referenced = Vec::new();
    ErrorBody::schemas(&mut referenced);
    components.schemas.extend(referenced);
    for (name, about) in SCHEMES {
        let mut http = Http::new(HttpAuthScheme::Bearer);
        http.description = Some(about.to_owned());
        components.add_security_scheme(name, SecurityScheme::Http(http));
    }
    for (path, item) in &mut api.paths.paths {
        let all = [
            ("get", &mut item.get),
            ("put", &mut item.put),
            ("post", &mut item.post),
            ("delete", &mut item.delete),
        ];
        for (method, operation) in all {
            if let Some(operation) = operation {
                operation.operation_id = Some(operation_id(method, path));
                add_refusal(operation);
            }
        }
    }
    api
}

/// Operation id such as `get_gpu_workers_nodes_node_id`: unique, unlike the names of the handlers.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

fn add_refusal(operation: &mut Operation) {
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name(ErrorBody::name()))).build();
    let response = ResponseBuilder::new()
        .description("A refusal, in words")
        .content("application/json", body)
        .build();
    operation.responses.responses.insert("default".to_owned(), response.into());
}
