//! Removal of agentaflow from a cluster. A test program of its own, because it removes objects that other tests share.

use std::path::Path;
use std::time::{Duration, Instant};

use agentaflow_kube_client::{Cluster, Uninstall, UninstallStep};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Client, Config};
use serde_json::{Value, json};

/// Namespace of the installation under test.
const SYSTEM: &str = "uninstall-test";
const LABELS: &str = "app.kubernetes.io/part-of";

/// The tests change the same objects.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn cluster(system: &str) -> Cluster {
    let path =
        std::env::var("AGENTAFLOW_TEST_KUBE").expect("AGENTAFLOW_TEST_KUBE names a kubeconfig");
    let file = Kubeconfig::read_from(path).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let client = Client::try_from(config.expect("a configuration")).expect("a client");
    let (namespace, system) = (system.to_owned(), system.to_owned());
    Cluster { client, namespace, everywhere: false, system, scheduler: None }
}

fn api(cluster: &Cluster, object: &Value) -> Api<DynamicObject> {
    let text = |field: &str| object[field].as_str().expect("a field");
    let (group, version) = text("apiVersion").rsplit_once('/').unwrap_or(("", text("apiVersion")));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("kind")));
    match object["metadata"]["namespace"].as_str() {
        Some(space) => Api::namespaced_with(cluster.client.clone(), space, &resource),
        None => Api::all_with(cluster.client.clone(), &resource),
    }
}

async fn apply(cluster: &Cluster, object: &Value) {
    let applied = try_apply(cluster, object).await;
    applied.unwrap_or_else(|error| panic!("{object}: {error}"));
}

async fn try_apply(cluster: &Cluster, object: &Value) -> kube::Result<()> {
    let name = object["metadata"]["name"].as_str().expect("a name");
    let how = PatchParams::apply("uninstall-test").force();
    api(cluster, object).patch(name, &how, &Patch::Apply(object)).await.map(drop)
}

async fn read(cluster: &Cluster, object: &Value) -> Option<Value> {
    let name = object["metadata"]["name"].as_str().expect("a name");
    let found = api(cluster, object).get_opt(name).await.expect("an answer");
    found.map(|found| serde_json::to_value(found).expect("an object"))
}

fn object(version: &str, kind: &str, metadata: &Value, rest: &Value) -> Value {
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": metadata});
    for (field, value) in rest.as_object().into_iter().flatten() {
        object[field] = value.clone();
    }
    object
}

/// Objects that the label selects.
fn labelled_objects() -> [Value; 2] {
    let labels = json!({LABELS: "agentaflow"});
    let webhook = object(
        "admissionregistration.k8s.io/v1",
        "MutatingWebhookConfiguration",
        &json!({"name": "agentaflow", "labels": labels}),
        &json!({}),
    );
    let role = object(
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        &json!({"name": "agentaflow-uninstall-test", "labels": labels}),
        &json!({"rules": []}),
    );
    [webhook, role]
}

/// Objects of the worker that no namespace separates from the objects of the scheduler.
fn worker_rights() -> Vec<Value> {
    let rights = include_str!("../../../deploy/worker/10-rbac.yaml");
    let documents: Vec<Value> = serde_saphyr::from_multiple(rights).expect("YAML");
    let outside = |object: &Value| object["metadata"]["namespace"].is_null();
    documents.into_iter().filter(outside).collect()
}

/// A Job as the webhook and the scheduler leave it.
fn suspended_job() -> Value {
    object(
        "batch/v1",
        "Job",
        &json!({"name": "waits", "namespace": SYSTEM,
            "annotations": {"agentaflow.gpu/pending-reason": "2 of 4 pods fit", "team": "a"}}),
        &json!({"spec": {"suspend": true, "template": {"spec": {"schedulerName": "agentaflow",
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}),
    )
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_uninstall_removes_all_traces_and_keeps_the_objects_of_users() {
    let _alone = ALONE.lock().await;
    let cluster = cluster(SYSTEM).await;
    for definition in agentaflow_kube_core::crd::definitions() {
        apply(&cluster, &definition).await;
    }
    let space = object("v1", "Namespace", &json!({"name": SYSTEM}), &json!({}));
    apply(&cluster, &space).await;
    let [webhook, role] = labelled_objects();
    let lease = object(
        "coordination.k8s.io/v1",
        "Lease",
        &json!({"name": "agentaflow-gpu-scheduler", "namespace": SYSTEM}),
        &json!({"spec": {}}),
    );
    let node = object(
        "v1",
        "Node",
        &json!({
            "name": "uninstall-node",
            "labels": {"agentaflow.gpu/count": "8", "zone": "a"},
            "annotations": {"agentaflow.gpu/status": "{}", "agentaflow.gpu/price-per-gpu-hour": "2.50"},
        }),
        &json!({}),
    );
    let workload = object(
        "agentaflow.io/v1",
        "GPUWorkload",
        &json!({"name": "train", "namespace": SYSTEM,
            "finalizers": ["agentaflow.io/cleanup", "example.com/keep"]}),
        &json!({"spec": {"gpuMemoryRequired": 1, "podTemplate": {"spec": {"schedulerName": "none",
            "containers": [{"name": "c", "image": "i"}]}}}}),
    );
    let class = |priority: u8| {
        let name = json!({"name": format!("agentaflow-{priority}")});
        object("scheduling.k8s.io/v1", "PriorityClass", &name, &json!({"value": priority}))
    };
    let (job, [five, nine], worker) = (suspended_job(), [5, 9].map(class), worker_rights());
    assert_eq!(worker.len(), 2, "the worker has a role and a binding");
    let removed = [&webhook, &role, &lease, &five, &nine];
    for one in [&five, &nine] {
        // The value of a class cannot change; another scheduler may have made this one.
        let name = one["metadata"]["name"].as_str().expect("a name");
        let _ = api(&cluster, one).delete(name, &DeleteParams::default()).await;
    }
    for one in removed.into_iter().chain([&node, &workload, &job]).chain(&worker) {
        apply(&cluster, one).await;
    }

    let mut lines = Vec::new();
    let dry = Uninstall { dry_run: true, ..Uninstall::default() };
    cluster.uninstall(dry, &mut |line| lines.push(line)).await.expect("a dry run");
    let text = |line: &UninstallStep| match line {
        UninstallStep::Change(text) | UninstallStep::Advice(text) => text.clone(),
    };
    for part in ["delete MutatingWebhookConfiguration agentaflow", "Node uninstall-node", "train"] {
        assert!(lines.iter().any(|line| text(line).contains(part)), "{part}: {lines:?}");
    }
    let advice = lines.iter().find(|line| matches!(line, UninstallStep::Advice(_)));
    let advice = advice.map(text).expect("a command that resumes the job");
    assert!(advice.contains("kubectl patch jobs.batch waits -n uninstall-test"), "{advice}");
    for one in removed {
        assert!(read(&cluster, one).await.is_some(), "a dry run changes nothing: {one}");
    }

    let mut done = Vec::new();
    let removal = cluster.uninstall(Uninstall::default(), &mut |line| done.push(line)).await;
    removal.expect("a removal");
    assert_eq!(done, lines, "the dry run listed every change");
    for one in removed {
        assert!(read(&cluster, one).await.is_none(), "{one}");
    }
    for one in &worker {
        assert!(read(&cluster, one).await.is_some(), "the worker stays: {one}");
    }
    let suspended = read(&cluster, &job).await.expect("the job stays");
    assert_eq!(suspended["metadata"]["annotations"], json!({"team": "a"}));
    assert_eq!(suspended["spec"]["suspend"], true);
    let node = read(&cluster, &node).await.expect("the node stays");
    assert_eq!(node["metadata"]["labels"]["agentaflow.gpu/count"], Value::Null);
    assert_eq!(node["metadata"]["labels"]["zone"], "a");
    let annotations = &node["metadata"]["annotations"];
    assert_eq!(annotations["agentaflow.gpu/status"], Value::Null);
    assert_eq!(annotations["agentaflow.gpu/price-per-gpu-hour"], "2.50");
    let found = read(&cluster, &workload).await.expect("the workload stays");
    assert_eq!(found["metadata"]["finalizers"], json!(["example.com/keep"]));

    let freed = json!({"metadata": {"finalizers": null}});
    let patched = api(&cluster, &workload)
        .patch("train", &PatchParams::default(), &Patch::Merge(&freed))
        .await;
    patched.expect("a workload without finalizers");
    for one in [&node, &space].into_iter().chain(&worker) {
        let name = one["metadata"]["name"].as_str().expect("a name");
        let gone = api(&cluster, one).delete(name, &DeleteParams::default()).await;
        gone.expect("a deletion");
    }
    // The other test programs need the kinds, not this namespace.
}

/// Namespace of the manifests.
const INSTALLED: &str = "agentaflow";

/// Objects of `deploy/kubernetes`, in the order of the files, and the rights of `deploy/autoscaling`. Its `APIService` would
/// change the API of other tests.
fn installation() -> Vec<Value> {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let entries = std::fs::read_dir(deploy.join("kubernetes")).expect("a folder of manifests");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files.push(deploy.join("autoscaling/10-rbac.yaml"));
    let read = |file| std::fs::read_to_string(file).expect("a manifest");
    let documents = |file| serde_saphyr::from_multiple::<Value>(&read(file)).expect("YAML");
    files.into_iter().flat_map(documents).filter(|object| !object.is_null()).collect()
}

/// Objects that the programs create.
fn created() -> Vec<Value> {
    let named = |name: &str| json!({"name": name, "namespace": INSTALLED});
    let none = json!({});
    vec![
        object("coordination.k8s.io/v1", "Lease", &named("agentaflow-gpu-scheduler"), &none),
        object("v1", "ConfigMap", &named("agentaflow-scheduler-config"), &none),
        object("v1", "ConfigMap", &named("agentaflow-gpu-scheduler-memory"), &none),
        object("v1", "Secret", &named("agentaflow-webhook-certs"), &none),
    ]
}

/// Installs agentaflow with a workload that has a pod; returns both.
async fn install(cluster: &Cluster) -> [Value; 2] {
    for definition in agentaflow_kube_core::crd::definitions() {
        apply(cluster, &definition).await;
    }
    let workload = object(
        "agentaflow.io/v1",
        "GPUWorkload",
        &json!({"name": "uninstall-test", "namespace": "default"}),
        &json!({"spec": {"gpuMemoryRequired": 1, "podTemplate": {"spec": {"containers": [
            {"name": "c", "image": "i"}]}}}}),
    );
    // Before the webhook, which refuses workloads while no scheduler runs.
    until(async || try_apply(cluster, &workload).await.map_err(|error| error.to_string())).await;
    let uid = read(cluster, &workload).await.expect("a workload")["metadata"]["uid"].take();
    let owner = json!([{"apiVersion": "agentaflow.io/v1", "kind": "GPUWorkload",
        "name": "uninstall-test", "uid": uid, "controller": true}]);
    let metadata =
        json!({"name": "uninstall-test-0", "namespace": "default", "ownerReferences": owner});
    let spec =
        json!({"spec": {"schedulerName": "none", "containers": [{"name": "c", "image": "i"}]}});
    let pod = object("v1", "Pod", &metadata, &spec);
    apply(cluster, &pod).await;
    for one in installation().iter().chain(&created()) {
        if one["kind"] == "PriorityClass" {
            // The value of a class cannot change.
            let name = one["metadata"]["name"].as_str().expect("a name");
            let _ = api(cluster, one).delete(name, &DeleteParams::default()).await;
        }
        apply(cluster, one).await;
    }
    [workload, pod]
}

/// Objects in the namespace of agentaflow, and objects outside of namespaces, with its name or label.
async fn remains(cluster: &Cluster) -> Result<Vec<String>, String> {
    let found = Discovery::new(cluster.client.clone()).run().await;
    let found = found.map_err(|error| error.to_string())?;
    let kinds = found.groups().flat_map(kube::discovery::ApiGroup::recommended_resources);
    let mut remains = Vec::new();
    for (resource, capabilities) in kinds {
        // Events of Kubernetes about deleted objects expire.
        if !capabilities.supports_operation(verbs::LIST) || resource.kind == "Event" {
            continue;
        }
        let client = cluster.client.clone();
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Namespaced => Api::namespaced_with(client, INSTALLED, &resource),
            Scope::Cluster => Api::all_with(client, &resource),
        };
        // A kind may be gone since the discovery.
        let Ok(list) = api.list(&ListParams::default()).await else { continue };
        for one in list {
            let name = one.metadata.name.unwrap_or_default();
            let labels = one.metadata.labels.unwrap_or_default();
            let is_ours = labels.get(LABELS).is_some_and(|part| part == "agentaflow");
            let is_worker =
                labels.get("app.kubernetes.io/name").is_some_and(|name| name.contains("worker"));
            if (is_ours || name.starts_with("agentaflow")) && !is_worker {
                remains.push(format!("{} {name}", resource.kind));
            }
        }
    }
    Ok(remains)
}

/// Waits for a controller of Kubernetes.
async fn until<T>(step: impl AsyncFn() -> Result<T, String>) -> T {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        match step().await {
            Ok(value) => return value,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_uninstall_leaves_nothing_of_a_complete_installation() {
    let _alone = ALONE.lock().await;
    let cluster = cluster(INSTALLED).await;
    let only = async |expected: &[&str]| {
        until(async || {
            let remains = remains(&cluster).await?;
            if remains == expected { Ok(()) } else { Err(format!("{remains:?}")) }
        })
        .await;
    };
    let [workload, pod] = install(&cluster).await;
    cluster.uninstall(Uninstall::default(), &mut |_| ()).await.expect("a removal");
    only(&["Namespace agentaflow"]).await;
    for one in [&workload, &pod] {
        assert!(read(&cluster, one).await.is_some(), "{one} stays");
    }
    install(&cluster).await;
    let everything = Uninstall { delete_workloads: true, ..Uninstall::default() };
    cluster.uninstall(everything, &mut |_| ()).await.expect("a removal");
    only(&[]).await;
    until(async || match read(&cluster, &pod).await {
        None => Ok(()),
        Some(pod) => Err(format!("the pod of the workload is left: {pod}")),
    })
    .await;
    for definition in agentaflow_kube_core::crd::definitions() {
        until(async || match read(&cluster, &definition).await {
            None => Ok(()),
            Some(_) => Err(format!("{} is left", definition["metadata"]["name"])),
        })
        .await;
    }
}
