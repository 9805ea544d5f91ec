//! Writes other than bindings. Each is idempotent and names the uid of its object.

use serde_json::{Value, json};
use std::time::{Duration, Instant};

use super::api::{Failure, Ignored, Server, core, ours};
use super::lease::Reign;
use crate::crd::{GpuQueueStatus, GpuWorkloadStatus};
use crate::names;
use crate::slim::Pod;
use crate::world::{Key, Outcome, PodRef};

/// How long an eviction is tried against a disruption budget.
const EVICTION: Duration = Duration::from_mins(5);
/// How long a pod is tried to be made.
const CREATION: Duration = Duration::from_secs(30);
/// Whatever may be absent from the status of a workload.
const OPTIONAL: [&str; 10] = [
    "phase",
    "assignedNode",
    "assignedGPU",
    "pricePerHour",
    "startTime",
    "completionTime",
    "message",
    "backOff",
    "completedTasks",
    "observedGeneration",
];

/// One version of a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Revision<'a> {
    /// Its name.
    pub(crate) workload: &'a Key,
    /// Which one of that name.
    pub(crate) uid: &'a str,
    /// What it was when we looked.
    pub(crate) version: &'a str,
}

/// Makes a pod of a workload. One of that name that is the workload's already is as good.
pub(crate) async fn create(
    server: &Server,
    reign: &Reign,
    workload: Key,
    name: String,
    body: &Value,
) -> Outcome {
    let path = format!(
        "/api/v1/namespaces/{}/pods?fieldManager={}",
        workload.namespace,
        names::FIELD_MANAGER
    );
    let post = || server.post::<Ignored>(&path, body);
    let made = persist_until(reign, Some(Instant::now() + CREATION), post).await;
    let refused = match made {
        Ok(_) => None,
        Err(Failure::Conflict(message)) => {
            foreign_namesake(server, &workload, &name, body).await.then(|| {
                format!("a pod `{name}` that is not this workload's is in the way: {message}")
            })
        }
        Err(error) => Some(error.to_string()),
    };
    Outcome::Created { workload, name, refused }
}

/// Whether a pod of this name exists that another owns.
async fn foreign_namesake(server: &Server, workload: &Key, name: &str, body: &Value) -> bool {
    let wanted = body.pointer("/metadata/ownerReferences/0/uid").and_then(Value::as_str);
    let found = server.get::<Pod>(&core(&workload.namespace, "pods", name)).await;
    let Ok(pod) = found else { return false };
    let owners = pod.metadata.owner_references.iter().flatten();
    !owners.into_iter().any(|owner| Some(owner.uid.as_str()) == wanted)
}

/// Deletes a pod.
pub(crate) async fn delete(server: &Server, reign: &Reign, pod: &PodRef, grace: Option<u32>) {
    let mut body = json!({ "preconditions": { "uid": pod.uid } });
    if let Some(grace) = grace {
        body["gracePeriodSeconds"] = grace.into();
    }
    let path = core(&pod.key.namespace, "pods", &pod.key.name);
    let done = persist(reign, || server.delete(&path, &body)).await;
    log(done, "delete pod", &pod.key);
}

/// Deletes a pod whose node is gone, after asking for the node once more.
pub(crate) async fn delete_orphan(server: &Server, reign: &Reign, pod: &PodRef, node: &str) {
    let path = format!("/api/v1/nodes/{node}");
    let found = persist(reign, || server.get::<Ignored>(&path)).await;
    if matches!(found, Err(Failure::NotFound(_))) {
        delete(server, reign, pod, Some(0)).await;
    }
}

/// Evicts a pod as its disruption budgets allow; says why it could not.
pub(crate) async fn evict(server: &Server, reign: &Reign, pod: &PodRef) -> Option<String> {
    let path = format!("{}/eviction", core(&pod.key.namespace, "pods", &pod.key.name));
    let body = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": pod.key.name, "namespace": pod.key.namespace },
        "deleteOptions": { "preconditions": { "uid": pod.uid } },
    });
    let deadline = Instant::now() + EVICTION;
    let mut pause = Duration::from_millis(500);
    loop {
        if !reign.is_open() {
            return None;
        }
        match server.post::<Ignored>(&path, &body).await {
            Ok(_) | Err(Failure::NotFound(_) | Failure::Conflict(_)) => return None,
            Err(error) if error.is_passing() && Instant::now() < deadline => {}
            Err(error) => return Some(error.to_string()),
        }
        reign.pause(pause).await;
        pause = (pause * 2).min(Duration::from_secs(10));
    }
}

/// Says on which node others are being stopped for a pod.
pub(crate) async fn nominate(server: &Server, reign: &Reign, pod: &PodRef, node: Option<&str>) {
    let path = format!("{}/status", core(&pod.key.namespace, "pods", &pod.key.name));
    let body = json!({
        "metadata": { "uid": pod.uid },
        "status": { "nominatedNodeName": node },
    });
    let done = persist(reign, || server.merge(&path, &body)).await;
    log(done, "nominate node", &pod.key);
}

/// Says why a pod is not placed.
pub(crate) async fn condition(
    server: &Server,
    pod: &PodRef,
    reason: &str,
    message: &str,
) -> Result<(), Failure> {
    let path = format!("{}/status", core(&pod.key.namespace, "pods", &pod.key.name));
    let body = json!({
        "metadata": { "uid": pod.uid },
        "status": { "conditions": [{
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": null,
            "lastTransitionTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }]},
    });
    server.strategic(&path, &body).await
}

/// Writes the status of a workload.
pub(crate) async fn status(
    server: &Server,
    workload: &Key,
    uid: &str,
    status: &GpuWorkloadStatus,
) -> Result<(), Failure> {
    let path = format!("{}/status", ours(&workload.namespace, "gpuworkloads", &workload.name));
    let status = whole(status);
    server.merge(&path, &json!({ "metadata": { "uid": uid }, "status": status })).await
}

/// A status as a patch: what is absent is to be absent there, too.
fn whole(status: &GpuWorkloadStatus) -> Value {
    let mut status = serde_json::to_value(status).unwrap_or_default();
    for field in OPTIONAL {
        if status.get(field).is_none() {
            status[field] = Value::Null;
        }
    }
    status
}

/// Writes the status of a queue.
pub(crate) async fn queue_status(
    server: &Server,
    queue: &str,
    status: &GpuQueueStatus,
) -> Result<(), Failure> {
    let path = format!("/apis/agentaflow.io/v1/gpuqueues/{queue}/status");
    server.merge(&path, &json!({ "status": status })).await
}

/// Adds or removes our finalizer and leaves the others: those of the version that we looked at, so that what another
/// adds or removes meanwhile is not undone.
pub(crate) async fn finalizer(
    server: &Server,
    reign: &Reign,
    about: Revision<'_>,
    add: bool,
    present: Vec<String>,
) {
    let Revision { workload, uid, version } = about;
    let mut finalizers: Vec<String> =
        present.into_iter().filter(|name| name != names::FINALIZER).collect();
    if add {
        finalizers.push(names::FINALIZER.to_owned());
    }
    let path = ours(&workload.namespace, "gpuworkloads", &workload.name);
    let mut body = json!({ "metadata": { "uid": uid, "finalizers": finalizers } });
    if !version.is_empty() {
        body["metadata"]["resourceVersion"] = version.into();
    }
    let done = persist(reign, || server.merge(&path, &body)).await;
    log(done, "write finalizer", workload);
}

/// Tries until there is an answer, or we are not to write any more.
async fn persist<T, F, Fut>(reign: &Reign, attempt: F) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    persist_until(reign, None, attempt).await
}

async fn persist_until<T, F, Fut>(
    reign: &Reign,
    deadline: Option<Instant>,
    mut attempt: F,
) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    let mut pause = Duration::from_millis(100);
    loop {
        if !reign.is_open() {
            return Err(Failure::NotLeading);
        }
        match attempt().await {
            Err(error) if error.is_passing() => {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Err(error);
                }
            }
            answer => return answer,
        }
        reign.pause(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

fn log(done: Result<impl Sized, Failure>, what: &'static str, about: &Key) {
    match done {
        Ok(_) | Err(Failure::NotFound(_) | Failure::Conflict(_) | Failure::NotLeading) => {}
        // Another of the same name: what was to be done is done.
        Err(Failure::Refused { code: 422, message }) if message.contains("uid") => {
            tracing::debug!(%about, message, "cannot {what}");
        }
        Err(error) => tracing::warn!(%about, %error, "cannot {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::{BackOff, WorkloadPhase};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn whatever_a_status_does_not_say_is_taken_away() {
        let time = Time(jiff::Timestamp::UNIX_EPOCH);
        let full = GpuWorkloadStatus {
            phase: Some(WorkloadPhase::Running),
            assigned_node: Some("gpu-7".to_owned()),
            assigned_gpu: Some("gpu-7/0".to_owned()),
            price_per_hour: Some("2.00".to_owned()),
            start_time: Some(time.clone()),
            completion_time: Some(time.clone()),
            message: Some("runs".to_owned()),
            conditions: Vec::new(),
            retries: 1,
            back_off: Some(BackOff { until: time, count: 1 }),
            completed_tasks: Some("0".to_owned()),
            observed_generation: Some(1),
        };
        let full = serde_json::to_value(full).expect("a status");
        let empty = whole(&GpuWorkloadStatus::default());
        let fields = |value: &Value| -> Vec<String> {
            value.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
        };
        assert_eq!(fields(&empty), fields(&full));
        assert_eq!(empty["backOff"], Value::Null);
        assert_eq!(whole(&serde_json::from_value(full.clone()).expect("a status")), full);
    }
}
