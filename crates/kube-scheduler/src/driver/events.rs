//! Kubernetes Events.

use agentaflow_kube_core::{names, unit};
use agentaflow_units::hash64;
use jiff::Timestamp;
use serde_json::json;

use super::api::{ApiServer, Failure, Ignored};
use crate::state::EventRecord;

/// The API server's limit of a message, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Records an Event. Its name is a hash of its content, so that a repetition counts up instead of creating another Event.
pub(crate) async fn record(
    server: &ApiServer,
    identity: &str,
    event: &EventRecord,
    time: Timestamp,
) -> Result<(), Failure> {
    let object = &event.object;
    let content = format!("{}\0{}\0{}", object.uid, event.reason, event.message);
    let name = name(&object.key.name, hash64(content.as_bytes()));
    let version = api_version(object.kind);
    let micro = time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let mut message = event.message.clone();
    message.truncate(message.floor_char_boundary(MAX_MESSAGE));
    let namespace = &object.key.namespace;
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let body = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": namespace },
        "eventTime": micro,
        "reportingController": names::SCHEDULER_NAME,
        "reportingInstance": format!("{identity:.128}"),
        "action": event.reason,
        "reason": event.reason,
        "type": event.event_type.as_str(),
        "note": message,
        "regarding": {
            "apiVersion": version,
            "kind": object.kind,
            "namespace": namespace,
            "name": object.key.name,
            "uid": object.uid,
        },
    });
    match server.post::<Ignored>(&path, &body).await {
        Err(Failure::Conflict(_)) => count_up(server, &path, &name, &micro).await,
        answer => answer.map(|_| ()),
    }
}

fn api_version(kind: &str) -> String {
    match unit::KINDS.iter().find(|known| known.kind == kind) {
        Some(job) => job.api_version(),
        None if ["Pod", "ConfigMap"].contains(&kind) => "v1".to_owned(),
        None => format!("{}/{}", names::GROUP, names::VERSION),
    }
}

/// Counts up an existing Event.
async fn count_up(server: &ApiServer, path: &str, name: &str, now: &str) -> Result<(), Failure> {
    let path = format!("{path}/{name}");
    let found: serde_json::Value = server.get(&path).await?;
    let count = found.pointer("/series/count").and_then(serde_json::Value::as_u64).unwrap_or(1);
    let body = json!({ "series": { "count": count + 1, "lastObservedTime": now } });
    server.merge(&path, &body).await
}

/// A name must not have `-` or `.` before a dot.
fn name(object: &str, hash: u64) -> String {
    let cut = format!("{object:.200}");
    format!("{}.{hash:016x}", cut.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_the_api_version_of_its_object() {
        assert_eq!(api_version("Pod"), "v1");
        assert_eq!(api_version("GPUWorkload"), "agentaflow.io/v1");
        assert_eq!(api_version("Job"), "batch/v1");
        assert_eq!(api_version("JobSet"), "jobset.x-k8s.io/v1alpha2");
    }

    #[test]
    fn the_api_server_accepts_event_names_of_objects_with_long_names() {
        let check = |object: &str, expected: &str| assert_eq!(name(object, 10), expected);
        check("train-0", "train-0.000000000000000a");
        let start = "a".repeat(199);
        check(&format!("{start}-b"), &format!("{start}.000000000000000a"));
        check(&format!("{start}.b"), &format!("{start}.000000000000000a"));
        check(&format!("{start}bc"), &format!("{start}b.000000000000000a"));
    }
}
