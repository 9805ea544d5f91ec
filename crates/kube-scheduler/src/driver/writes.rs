//! Writes except bindings. Each is idempotent and names the uid of its object.

use agentaflow_backoff::BackoffPolicy;
use agentaflow_kube_core::crd::{GpuNodePhase, GpuQueueStatus, GpuWorkloadStatus};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_core::unit::UnitKind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

use super::api::{ApiServer, Failure, Ignored, core, ours};
use super::lease::Leadership;
use super::status_writes::JobRef;
use crate::state::{ActionResult, CreationRejection, Key, PendingCondition, PodRef, RejectionKind};

const EVICTION_RETRIES: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(500), Duration::from_secs(10));
/// Delays between attempts of any other write.
const WRITE_RETRIES: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(100), Duration::from_secs(5));
/// Time for which an eviction is retried against a disruption budget.
const EVICTION_TIMEOUT: Duration = Duration::from_mins(5);
/// Time for which a pod creation is retried.
const CREATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Optional fields of a workload's status.
const OPTIONAL_FIELDS: [&str; 10] = [
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

/// Conditions of a write: leadership, and a limit of concurrent writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WritePermits<'a> {
    pub(crate) leadership: &'a Leadership,
    /// Held for one attempt only: a write that backs off, because of a failing webhook for example, must not block the rest.
    pub(crate) permits: &'a Semaphore,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Revision<'a> {
    pub(crate) workload: &'a Key,
    pub(crate) uid: &'a str,
    /// Resource version that was read.
    pub(crate) version: &'a str,
}

/// Creates a pod of a workload. An existing pod of that name that the workload owns counts as created.
pub(crate) async fn create(
    server: &ApiServer,
    permits: WritePermits<'_>,
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
    let made = retry_until(permits, Some(Instant::now() + CREATION_TIMEOUT), post).await;
    let rejection = match made {
        Ok(_) => None,
        Err(Failure::Conflict(message)) => belongs_to_another(server, &workload, &name, body)
            .await
            .then(|| format!("pod `{name}` exists and belongs to another owner: {message}"))
            .map(|message| CreationRejection { kind: RejectionKind::Other, message }),
        Err(Failure::QuotaExceeded(message)) => {
            Some(CreationRejection { kind: RejectionKind::QuotaExceeded, message })
        }
        Err(error) => {
            Some(CreationRejection { kind: RejectionKind::Other, message: error.to_string() })
        }
    };
    ActionResult::Created { workload, name, rejection }
}

/// Creates the Service of a gang; an existing Service of the name stays.
pub(crate) async fn create_service(
    server: &ApiServer,
    permits: WritePermits<'_>,
    workload: &Key,
    body: &Value,
) {
    let path = format!(
        "/api/v1/namespaces/{}/services?fieldManager={}",
        workload.namespace,
        names::FIELD_MANAGER
    );
    let post = || server.post::<Ignored>(&path, body);
    let made = retry_until(permits, Some(Instant::now() + CREATION_TIMEOUT), post).await;
    log(made, "create service", workload);
}

pub(crate) async fn delete_workload(
    server: &ApiServer,
    permits: WritePermits<'_>,
    workload: &Key,
    uid: &str,
) {
    let body = json!({ "preconditions": { "uid": uid }, "propagationPolicy": "Background" });
    let path = ours(&workload.namespace, "gpuworkloads", &workload.name);
    let done = retry(permits, || server.delete(&path, &body)).await;
    log(done, "delete workload", workload);
}

/// Returns true if a pod of this name exists that the workload does not own.
async fn belongs_to_another(server: &ApiServer, workload: &Key, name: &str, body: &Value) -> bool {
    let wanted = body.pointer("/metadata/ownerReferences/0/uid").and_then(Value::as_str);
    let found = server.get::<Pod>(&core(&workload.namespace, "pods", name)).await;
    let Ok(pod) = found else { return false };
    let owners = pod.metadata.owner_references.iter().flatten();
    !owners.into_iter().any(|owner| Some(owner.uid.as_str()) == wanted)
}

pub(crate) async fn delete(
    server: &ApiServer,
    permits: WritePermits<'_>,
    pod: &PodRef,
    grace: Option<u32>,
) {
    let mut body = json!({ "preconditions": { "uid": pod.uid } });
    if let Some(grace) = grace {
        body["gracePeriodSeconds"] = grace.into();
    }
    let path = core(&pod.key.namespace, "pods", &pod.key.name);
    let done = retry(permits, || server.delete(&path, &body)).await;
    log(done, "delete pod", &pod.key);
}

/// Deletes a pod after confirming that its node does not exist.
pub(crate) async fn delete_orphan(
    server: &ApiServer,
    permits: WritePermits<'_>,
    pod: &PodRef,
    node: &str,
) {
    let path = format!("/api/v1/nodes/{node}");
    let found = retry(permits, || server.get::<Ignored>(&path)).await;
    if matches!(found, Err(Failure::NotFound(_))) {
        delete(server, permits, pod, Some(0)).await;
    }
}

/// Evicts a pod as its disruption budgets allow; returns the reason of a failure.
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
    let deadline = Instant::now() + EVICTION_TIMEOUT;
    let mut backoff = EVICTION_RETRIES.start();
    loop {
        if !leadership.is_open() {
            return None;
        }
        match server.post::<Ignored>(&path, &body).await {
            Ok(_) | Err(Failure::NotFound(_)) => return None,
            // Another pod has the name, or the pod changed: the watch reports it.
            Err(Failure::Conflict(_)) if !is_still_live(server, pod).await => return None,
            Err(error) if is_eviction_retryable(&error) && Instant::now() < deadline => {}
            Err(error) => return Some(error.to_string()),
        }
        leadership.sleep(backoff.next_delay()).await;
    }
}

/// Returns true if a retry of an eviction may succeed.
fn is_eviction_retryable(error: &Failure) -> bool {
    error.is_retryable() || matches!(error, Failure::Conflict(_))
}

/// Returns true if the API server reports that the pod exists and is not terminating.
async fn is_still_live(server: &ApiServer, pod: &PodRef) -> bool {
    match server.get::<Pod>(&core(&pod.key.namespace, "pods", &pod.key.name)).await {
        Ok(found) => is_live(&found, pod),
        Err(error) => !matches!(error, Failure::NotFound(_)),
    }
}

/// Returns true if this is the same pod and it is not terminating.
fn is_live(found: &Pod, pod: &PodRef) -> bool {
    found.metadata.uid.as_deref() == Some(&*pod.uid) && found.metadata.deletion_timestamp.is_none()
}

/// Sets `status.nominatedNodeName`.
pub(crate) async fn nominate(
    server: &ApiServer,
    permits: WritePermits<'_>,
    pod: &PodRef,
    node: Option<&str>,
) {
    let path = format!("{}/status", core(&pod.key.namespace, "pods", &pod.key.name));
    let body = json!({
        "metadata": { "uid": pod.uid },
        "status": { "nominatedNodeName": node },
    });
    let done = retry(permits, || server.merge(&path, &body)).await;
    log(done, "nominate node", &pod.key);
}

/// Writes `PodScheduled=False`. The transition time is the time of the change to `False`; a change of the reason keeps it.
pub(crate) async fn condition(
    server: &ApiServer,
    pod: &PodRef,
    condition: &PendingCondition,
) -> Result<(), Failure> {
    let path = format!("{}/status", core(&pod.key.namespace, "pods", &pod.key.name));
    let mut value = json!({
        "type": "PodScheduled",
        "status": "False",
        "reason": condition.reason,
        "message": condition.message,
        "lastProbeTime": null,
    });
    if !condition.already_false {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        value["lastTransitionTime"] = now.into();
    }
    let body = json!({ "metadata": { "uid": pod.uid }, "status": { "conditions": [value] } });
    server.strategic(&path, &body).await
}

pub(crate) async fn status(
    server: &ApiServer,
    workload: &Key,
    uid: &str,
    status: &GpuWorkloadStatus,
) -> Result<(), Failure> {
    let path = format!("{}/status", ours(&workload.namespace, "gpuworkloads", &workload.name));
    let status = merge_patch(status);
    server.merge(&path, &json!({ "metadata": { "uid": uid }, "status": status })).await
}

/// A status as a merge patch: absent fields are removed.
fn merge_patch(status: &GpuWorkloadStatus) -> Value {
    let mut status = serde_json::to_value(status).unwrap_or_default();
    for field in OPTIONAL_FIELDS {
        if status.get(field).is_none() {
            status[field] = Value::Null;
        }
    }
    status
}

pub(crate) async fn queue_status(
    server: &ApiServer,
    queue: &str,
    status: &GpuQueueStatus,
) -> Result<(), Failure> {
    let path = format!("/apis/agentaflow.io/v1/gpuqueues/{queue}/status");
    server.merge(&path, &json!({ "status": status })).await
}

/// Replaces phase and conditions of a `GPUNode`. The resource version guards a report of its monitor.
pub(crate) async fn node_status(
    server: &ApiServer,
    permits: WritePermits<'_>,
    node: &Key,
    version: &str,
    conditions: &[Condition],
    phase: Option<GpuNodePhase>,
) {
    let path = format!("{}/status", ours(&node.namespace, "gpunodes", &node.name));
    let mut body = json!({
        "metadata": { "resourceVersion": version },
        "status": { "conditions": conditions },
    });
    if let Some(phase) = phase {
        body["status"]["phase"] = json!(phase);
    }
    let done = retry(permits, || server.merge(&path, &body)).await;
    log(done, "write conditions of GPUNode", node);
}

/// Removes the finalizer of earlier versions. The resource version guards concurrent changes of other finalizers.
pub(crate) async fn remove_finalizer(
    server: &ApiServer,
    permits: WritePermits<'_>,
    about: Revision<'_>,
    present: Vec<String>,
) {
    let Revision { workload, uid, version } = about;
    let finalizers: Vec<String> =
        present.into_iter().filter(|name| name != names::FINALIZER).collect();
    let path = ours(&workload.namespace, "gpuworkloads", &workload.name);
    let mut body = json!({ "metadata": { "uid": uid, "finalizers": finalizers } });
    if !version.is_empty() {
        body["metadata"]["resourceVersion"] = version.into();
    }
    let done = retry(permits, || server.merge(&path, &body)).await;
    log(done, "remove finalizer", workload);
}

/// Suspends or resumes a job; returns the reason of a refusal.
pub(crate) async fn suspend(
    server: &ApiServer,
    permits: WritePermits<'_>,
    kind: &UnitKind,
    unit: &Key,
    uid: &str,
    suspend: bool,
) -> Option<String> {
    let path =
        format!("{}?fieldManager={}", kind.path(&unit.namespace, &unit.name), names::FIELD_MANAGER);
    let body = suspension(kind, uid, suspend);
    match retry(permits, || server.merge(&path, &body)).await {
        // The watch reports a deleted or replaced job.
        Ok(())
        | Err(
            Failure::NotFound(_) | Failure::NotLeading | Failure::Refused { uid_differs: true, .. },
        ) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// Merge patch of the suspend field.
fn suspension(kind: &UnitKind, uid: &str, suspend: bool) -> Value {
    let fields = kind.suspend.rsplit('/').filter(|field| !field.is_empty());
    let mut body = fields.fold(Value::Bool(suspend), |value, field| json!({ field: value }));
    body["metadata"] = json!({ "uid": uid });
    if !suspend {
        body["metadata"]["annotations"] = json!({ names::UNIT_REASON: null });
    }
    body
}

/// Writes the pending reason of a suspended job. A job that was resumed meanwhile keeps the annotation until it is suspended
/// and resumed again.
pub(crate) async fn job_reason(
    server: &ApiServer,
    job: &JobRef,
    reason: &str,
) -> Result<(), Failure> {
    let path = job.kind.path(&job.unit.namespace, &job.unit.name);
    let annotations = json!({ names::UNIT_REASON: reason });
    let body = json!({ "metadata": { "uid": job.uid, "annotations": annotations } });
    server.merge(&path, &body).await
}

/// Retries until the API server answers or leadership ends.
async fn retry<T, F, Fut>(permits: WritePermits<'_>, attempt: F) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    retry_until(permits, None, attempt).await
}

async fn retry_until<T, F, Fut>(
    WritePermits { leadership, permits }: WritePermits<'_>,
    deadline: Option<Instant>,
    mut attempt: F,
) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    let mut backoff = WRITE_RETRIES.start();
    loop {
        let permit = permits.acquire().await;
        // Waiting for the permit may have taken long.
        if !leadership.is_open() {
            return Err(Failure::NotLeading);
        }
        let answer = attempt().await;
        drop(permit);
        match answer {
            Err(error) if error.is_retryable() => {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Err(error);
                }
            }
            answer => return answer,
        }
        leadership.sleep(backoff.next_delay()).await;
    }
}

fn log(done: Result<impl Sized, Failure>, what: &'static str, about: &Key) {
    match done {
        Ok(_) | Err(Failure::NotFound(_) | Failure::Conflict(_) | Failure::NotLeading) => {}
        // Another pod has the name: the write is obsolete.
        Err(Failure::Refused { uid_differs: true, message, .. }) => {
            tracing::debug!(%about, message, "cannot {what}");
        }
        Err(error) => tracing::warn!(%about, %error, "cannot {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::lease_times::LeaseTimes;
    use super::*;
    use agentaflow_kube_core::crd::{BackOff, WorkloadPhase};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn an_eviction_is_retried_while_its_pod_exists_and_is_not_terminating() {
        let pod = PodRef { key: Key::new("default", "train-0"), uid: "one".into() };
        let check = |uid: &str, leaves: Option<&str>, expected: bool| {
            let found = json!({ "metadata": { "uid": uid, "deletionTimestamp": leaves } });
            let found: Pod = serde_json::from_value(found).expect("a pod");
            assert_eq!(is_live(&found, &pod), expected, "{uid} {leaves:?}");
        };
        check("one", None, true);
        check("one", Some("2030-01-01T00:00:00Z"), false);
        check("two", None, false);
        assert!(is_eviction_retryable(&Failure::Conflict(String::new())));
        assert!(!is_eviction_retryable(&Failure::Refused {
            code: 403,
            message: String::new(),
            uid_differs: false,
        }));
    }

    #[tokio::test]
    async fn a_write_in_backoff_does_not_block_other_writes() {
        let (leadership, permits) =
            (Leadership::new(Instant::now(), LeaseTimes::default()), Semaphore::new(1));
        let permits = WritePermits { leadership: &leadership, permits: &permits };
        let never = || async { Err::<(), _>(Failure::Unknown("a webhook is down".to_owned())) };
        let done = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            retry(permits, || async { Ok::<_, Failure>(()) }).await
        };
        tokio::select! {
            _ = retry(permits, never) => panic!("the failing write ended"),
            done = done => assert!(done.is_ok()),
            () = tokio::time::sleep(Duration::from_secs(5)) => panic!("the second write was blocked"),
        }
    }

    #[test]
    fn a_job_is_suspended_through_the_field_of_its_kind() {
        let body = |kind: &str| {
            let kind = agentaflow_kube_core::unit::KINDS.iter().find(|known| known.kind == kind);
            suspension(kind.expect("a kind"), "u", true)
        };
        let expected = json!({ "metadata": { "uid": "u" }, "spec": { "suspend": true } });
        assert_eq!(body("Job"), expected);
        let policy = json!({ "suspend": true });
        let expected = json!({ "metadata": { "uid": "u" }, "spec": { "runPolicy": policy } });
        assert_eq!(body("MPIJob"), expected);
    }

    #[test]
    fn absent_fields_of_a_status_are_removed() {
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
        let empty = merge_patch(&GpuWorkloadStatus::default());
        let fields = |value: &Value| -> Vec<String> {
            value.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
        };
        assert_eq!(fields(&empty), fields(&full));
        assert_eq!(empty["backOff"], Value::Null);
        assert_eq!(merge_patch(&serde_json::from_value(full.clone()).expect("a status")), full);
    }
}
