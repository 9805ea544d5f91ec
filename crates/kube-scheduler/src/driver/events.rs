//! Events: what people see in `kubectl describe`.

use agentaflow_kube_core::names;
use fnv::FnvHasher;
use serde_json::json;
use std::hash::{Hash, Hasher};

use super::api::{ApiServer, Failure, Ignored};
use crate::state::EventRecord;

/// The longest message that the API server takes.
const LONGEST: usize = 1024;

/// Tells people something. The name is made from what is said, so that saying it again counts instead of piling up.
pub(crate) async fn tell(
    server: &ApiServer,
    identity: &str,
    note: &EventRecord,
) -> Result<(), Failure> {
    let about = &note.about;
    let mut hasher = FnvHasher::default();
    (&about.uid, note.reason, &note.message).hash(&mut hasher);
    let name = name(&about.key.name, hasher.finish());
    let version = if about.kind == "Pod" { "v1" } else { "agentaflow.io/v1" };
    let now = jiff::Timestamp::now();
    let micro = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let mut message = note.message.clone();
    message.truncate(message.floor_char_boundary(LONGEST));
    let namespace = &about.key.namespace;
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let body = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": namespace },
        "eventTime": micro,
        "reportingController": names::SCHEDULER_NAME,
        "reportingInstance": format!("{identity:.128}"),
        "action": note.reason,
        "reason": note.reason,
        "type": if note.warning { "Warning" } else { "Normal" },
        "note": message,
        "regarding": {
            "apiVersion": version,
            "kind": about.kind,
            "namespace": namespace,
            "name": about.key.name,
            "uid": about.uid,
        },
    });
    match server.post::<Ignored>(&path, &body).await {
        Err(Failure::Conflict(_)) => again(server, &path, &name, &micro).await,
        answer => answer.map(|_| ()),
    }
}

/// The same was said before: it counts.
async fn again(server: &ApiServer, path: &str, name: &str, now: &str) -> Result<(), Failure> {
    let path = format!("{path}/{name}");
    let found: serde_json::Value = server.get(&path).await?;
    let count = found.pointer("/series/count").and_then(serde_json::Value::as_u64).unwrap_or(1);
    let body = json!({ "series": { "count": count + 1, "lastObservedTime": now } });
    server.merge(&path, &body).await
}

/// The name of an event: before a dot there is no other mark.
fn name(about: &str, said: u64) -> String {
    let cut = format!("{about:.200}");
    format!("{}.{said:016x}", cut.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_event_about_a_long_name_is_one_that_the_api_server_takes() {
        let check = |about: &str, expected: &str| assert_eq!(name(about, 10), expected);
        check("train-0", "train-0.000000000000000a");
        let start = "a".repeat(199);
        check(&format!("{start}-b"), &format!("{start}.000000000000000a"));
        check(&format!("{start}.b"), &format!("{start}.000000000000000a"));
        check(&format!("{start}bc"), &format!("{start}b.000000000000000a"));
    }
}
