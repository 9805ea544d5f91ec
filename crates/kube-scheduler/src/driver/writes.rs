//! Writes other than bindings. Each is idempotent and names the uid of its object.

use agentaflow_kube_core::crd::{GpuQueueStatus, GpuWorkloadStatus};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Pod;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

use super::api::{ApiServer, Failure, Ignored, core, ours};
use super::lease::Leadership;
use crate::state::{ActionResult, Key, PendingCondition, PodRef};

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

/// When a write may be tried: while we lead, and not too many at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WritePermits<'a> {
    /// Whether we lead.
    pub(crate) leadership: &'a Leadership,
    /// How many at a time. Whoever pauses before the next try lets others have their turn: what one webhook does not let
    /// pass must not hold up everything else.
    pub(crate) permits: &'a Semaphore,
}

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
    server: &ApiServer,
    turns: WritePermits<'_>,
    workload: Key,
    name: String,
    body: &Value,
) -> ActionResult {
    let path = format!(
        "/api/v1/namespaces/{}/pods?fieldManager={}",
        workload.namespace,
        names::FIELD_MANAGER
    );
    let post = || server.post::<Ignored>(&path, body);
    let made = persist_until(turns, Some(Instant::now() + CREATION), post).await;
    let refused = match made {
        Ok(_) => None,
        Err(Failure::Conflict(message)) => {
            foreign_namesake(server, &workload, &name, body).await.then(|| {
                format!("a pod `{name}` that is not this workload's is in the way: {message}")
            })
        }
        Err(error) => Some(error.to_string()),
    };
    ActionResult::Created { workload, name, refused }
}

/// Whether a pod of this name exists that another owns.
async fn foreign_namesake(server: &ApiServer, workload: &Key, name: &str, body: &Value) -> bool {
    let wanted = body.pointer("/metadata/ownerReferences/0/uid").and_then(Value::as_str);
    let found = server.get::<Pod>(&core(&workload.namespace, "pods", name)).await;
    let Ok(pod) = found else { return false };
    let owners = pod.metadata.owner_references.iter().flatten();
    !owners.into_iter().any(|owner| Some(owner.uid.as_str()) == wanted)
}

/// Deletes a pod.
pub(crate) async fn delete(
    server: &ApiServer,
    turns: WritePermits<'_>,
    pod: &PodRef,
    grace: Option<u32>,
) {
    let mut body = json!({ "preconditions": { "uid": pod.uid } });
    if let Some(grace) = grace {
        body["gracePeriodSeconds"] = grace.into();
    }
    let path = core(&pod.key.namespace, "pods", &pod.key.name);
    let done = persist(turns, || server.delete(&path, &body)).await;
    log(done, "delete pod", &pod.key);
}

/// Deletes a pod whose node is gone, after asking for the node once more.
pub(crate) async fn delete_orphan(
    server: &ApiServer,
    turns: WritePermits<'_>,
    pod: &PodRef,
    node: &str,
) {
    let path = format!("/api/v1/nodes/{node}");
    let found = persist(turns, || server.get::<Ignored>(&path)).await;
    if matches!(found, Err(Failure::NotFound(_))) {
        delete(server, turns, pod, Some(0)).await;
    }
}

/// Evicts a pod as its disruption budgets allow; says why it could not.
pub(crate) async fn evict(
    server: &ApiServer,
    leadership: &Leadership,
    pod: &PodRef,
) -> Option<String> {
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
        if !leadership.is_open() {
            return None;
        }
        match server.post::<Ignored>(&path, &body).await {
            Ok(_) | Err(Failure::NotFound(_)) => return None,
            // Another of the same name, or the pod was changed meanwhile: it tells itself.
            Err(Failure::Conflict(_)) if !stays(server, pod).await => return None,
            Err(error) if may_pass(&error) && Instant::now() < deadline => {}
            Err(error) => return Some(error.to_string()),
        }
        leadership.pause(pause).await;
        pause = (pause * 2).min(Duration::from_secs(10));
    }
}

/// Whether asking again for an eviction may help.
fn may_pass(error: &Failure) -> bool {
    error.is_passing() || matches!(error, Failure::Conflict(_))
}

/// Whether a pod is there and nobody has asked it to go, as far as that can be told.
async fn stays(server: &ApiServer, pod: &PodRef) -> bool {
    match server.get::<Pod>(&core(&pod.key.namespace, "pods", &pod.key.name)).await {
        Ok(found) => is_to_go(&found, pod),
        Err(error) => !matches!(error, Failure::NotFound(_)),
    }
}

/// Whether this is the pod, and it was not asked to go yet.
fn is_to_go(found: &Pod, pod: &PodRef) -> bool {
    found.metadata.uid.as_deref() == Some(&*pod.uid) && found.metadata.deletion_timestamp.is_none()
}

/// Says on which node others are being stopped for a pod.
pub(crate) async fn nominate(
    server: &ApiServer,
    turns: WritePermits<'_>,
    pod: &PodRef,
    node: Option<&str>,
) {
    let path = format!("{}/status", core(&pod.key.namespace, "pods", &pod.key.name));
    let body = json!({
        "metadata": { "uid": pod.uid },
        "status": { "nominatedNodeName": node },
    });
    let done = persist(turns, || server.merge(&path, &body)).await;
    log(done, "nominate node", &pod.key);
}

/// Says why a pod is not placed. The time of transition is when it began not to be, whatever the reason since.
pub(crate) async fn condition(
    server: &ApiServer,
    pod: &PodRef,
    why: &PendingCondition,
) -> Result<(), Failure> {
    let path = format!("{}/status", core(&pod.key.namespace, "pods", &pod.key.name));
    let mut condition = json!({
        "type": "PodScheduled",
        "status": "False",
        "reason": why.reason,
        "message": why.message,
        "lastProbeTime": null,
    });
    if !why.again {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        condition["lastTransitionTime"] = now.into();
    }
    let body = json!({ "metadata": { "uid": pod.uid }, "status": { "conditions": [condition] } });
    server.strategic(&path, &body).await
}

/// Writes the status of a workload.
pub(crate) async fn status(
    server: &ApiServer,
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
    server: &ApiServer,
    queue: &str,
    status: &GpuQueueStatus,
) -> Result<(), Failure> {
    let path = format!("/apis/agentaflow.io/v1/gpuqueues/{queue}/status");
    server.merge(&path, &json!({ "status": status })).await
}

/// Adds or removes our finalizer and leaves the others: those of the version that we looked at, so that what another
/// adds or removes meanwhile is not undone.
pub(crate) async fn finalizer(
    server: &ApiServer,
    turns: WritePermits<'_>,
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
    let done = persist(turns, || server.merge(&path, &body)).await;
    log(done, "write finalizer", workload);
}

/// Tries until there is an answer, or we are not to write any more.
async fn persist<T, F, Fut>(turns: WritePermits<'_>, attempt: F) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    persist_until(turns, None, attempt).await
}

async fn persist_until<T, F, Fut>(
    WritePermits { leadership, permits }: WritePermits<'_>,
    deadline: Option<Instant>,
    mut attempt: F,
) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    let mut pause = Duration::from_millis(100);
    loop {
        let permit = permits.acquire().await;
        // Others may have had their turn for long.
        if !leadership.is_open() {
            return Err(Failure::NotLeading);
        }
        let answer = attempt().await;
        drop(permit);
        match answer {
            Err(error) if error.is_passing() => {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Err(error);
                }
            }
            answer => return answer,
        }
        leadership.pause(pause).await;
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
    use agentaflow_kube_core::crd::{BackOff, WorkloadPhase};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn an_eviction_is_asked_for_again_while_its_pod_is_there_and_stays() {
        let pod = PodRef { key: Key::new("default", "train-0"), uid: "one".into() };
        let check = |uid: &str, leaves: Option<&str>, expected: bool| {
            let found = json!({ "metadata": { "uid": uid, "deletionTimestamp": leaves } });
            let found: Pod = serde_json::from_value(found).expect("a pod");
            assert_eq!(is_to_go(&found, &pod), expected, "{uid} {leaves:?}");
        };
        check("one", None, true);
        check("one", Some("2030-01-01T00:00:00Z"), false);
        check("two", None, false);
        assert!(may_pass(&Failure::Conflict(String::new())));
        assert!(!may_pass(&Failure::Refused { code: 403, message: String::new() }));
    }

    #[tokio::test]
    async fn a_write_that_is_tried_for_long_lets_others_have_their_turn() {
        let (leadership, permits) = (Leadership::new(Instant::now()), Semaphore::new(1));
        let turns = WritePermits { leadership: &leadership, permits: &permits };
        let never = || async { Err::<(), _>(Failure::Unknown("a webhook is down".to_owned())) };
        let done = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            persist(turns, || async { Ok::<_, Failure>(()) }).await
        };
        tokio::select! {
            _ = persist(turns, never) => panic!("it has no end"),
            done = done => assert!(done.is_ok()),
            () = tokio::time::sleep(Duration::from_secs(5)) => panic!("it had no turn"),
        }
    }

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
