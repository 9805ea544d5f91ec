//! Admission on a real API server, which calls back to this process over TLS.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use agentaflow_kube_core::crd;
use agentaflow_kube_webhook::{Options, configurations, serve};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// A separate name: schedulers of other tests keep their configurations.
const CONFIGURATION: &str = "agentaflow-webhook-test";

/// Operations of a test on the cluster.
struct Cluster {
    client: Client,
    stop: CancellationToken,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A client; impersonates `user` if given.
async fn client(user: Option<&str>) -> Client {
    let path =
        std::env::var("AGENTAFLOW_TEST_KUBE").expect("AGENTAFLOW_TEST_KUBE names a kubeconfig");
    let file = Kubeconfig::read_from(path).unwrap();
    let mut config =
        Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = user.map(ToOwned::to_owned);
    Client::try_from(config).unwrap()
}

impl Cluster {
    async fn start() -> Self {
        let client = client(None).await;
        for definition in crd::definitions() {
            apply(&client, &definition).await.unwrap();
        }
        for priority in [5, 9] {
            let class = json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": {"name": format!("agentaflow-{priority}")}, "value": priority - 5,
            });
            apply(&client, &class).await.unwrap();
        }
        for name in ["agentaflow", "webhook-plain"] {
            apply(
                &client,
                &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            )
            .await
            .unwrap();
        }
        apply(
            &client,
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": "webhook-team", "labels": {"agentaflow.gpu/scheduling": "enabled"}}}),
        )
        .await
        .unwrap();
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let options = Options {
            listen: free,
            url: Some(format!("https://{free}")),
            configuration: CONFIGURATION.to_owned(),
            namespaces: ["webhook-team", "webhook-plain", "kube-system"].map(str::to_owned).into(),
            ..Options::default()
        };
        // A configuration that reaches the webhook through a service is already installed.
        for installed in configurations(&Options { url: None, ..options.clone() }) {
            apply(&client, &installed).await.unwrap();
        }
        let stop = CancellationToken::new();
        tokio::spawn(serve(options, client.clone(), stop.clone()));
        let cluster = Self { client, stop };
        cluster.until_asked().await;
        cluster
    }

    /// Waits until the API server uses the new configurations.
    async fn until_asked(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let pod = self.create("webhook-team", &pod("probe", &json!({}))).await;
            if pod.is_ok_and(|pod| pod["spec"]["schedulerName"] == "agentaflow") {
                return;
            }
            assert!(Instant::now() < deadline, "the API server never asked");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Creates an object of a new kind, which the API server serves after a moment.
    async fn create_when_served(&self, namespace: &str, object: &Value) -> Value {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match create(&self.client, namespace, object, false).await {
                Ok(made) => return made,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Creates the object as a dry run.
    async fn create(&self, namespace: &str, object: &Value) -> Result<Value, String> {
        create(&self.client, namespace, object, true).await
    }
}

async fn create(
    client: &Client,
    namespace: &str,
    object: &Value,
    dry_run: bool,
) -> Result<Value, String> {
    let resource = resource(object);
    let api: Api<DynamicObject> = if object["kind"] == "GPUQueue" {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, &resource)
    };
    let parameters = PostParams { dry_run, ..PostParams::default() };
    let object = serde_json::from_value(object.clone()).unwrap();
    match api.create(&parameters, &object).await {
        Ok(object) => Ok(serde_json::to_value(object).unwrap()),
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(error) => panic!("{error}"),
    }
}

async fn apply(client: &Client, object: &Value) -> Result<(), kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(object));
    let name = object["metadata"]["name"].as_str().unwrap();
    api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(object)).await.map(|_| ())
}

fn resource(object: &Value) -> ApiResource {
    let (version, kind) =
        (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

fn pod(name: &str, metadata: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"containers": [
            {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}},
        ]},
    });
    pod["metadata"]["name"] = name.into();
    pod
}

fn workload(spec: &Value) -> Value {
    let mut workload = json!({
        "apiVersion": "agentaflow.io/v1", "kind": "GPUWorkload", "metadata": {"name": "train"},
        "spec": {
            "gpuMemoryRequired": 8192,
            "podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        workload["spec"][key] = value.clone();
    }
    workload
}

fn says(result: Result<Value, String>, words: &[&str]) {
    let said = result.err().unwrap_or_default();
    assert_eq!(said.is_empty(), words.is_empty(), "{said}");
    for word in words {
        assert!(said.contains(word), "no `{word}` in: {said}");
    }
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_admission_names_fields_and_remedies_and_gives_pods_their_scheduler() {
    let client = client(None).await;
    let ended = tokio::spawn(async {
        let cluster = Cluster::start().await;
        pods_get_our_name_where_asked(&cluster).await;
        owners_are_read(&cluster).await;
        pods_of_other_operators_are_not_asked_about(&cluster).await;
        opted_in_jobs_are_suspended(&cluster).await;
        bad_workloads_are_refused(&cluster).await;
        gangs_beyond_a_quota_give_a_warning(&cluster).await;
        strangers_cannot_borrow_our_rights(&cluster).await;
        bad_queues_are_refused(&cluster).await;
        changes_that_are_not_of_the_spec_always_pass(&cluster).await;
    })
    .await;
    // Without a running webhook the configuration would block all workloads.
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind});
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(&object));
        let _ = api.delete(CONFIGURATION, &DeleteParams::default()).await;
    }
    ended.unwrap();
}

async fn pods_get_our_name_where_asked(cluster: &Cluster) {
    let annotated = json!({"annotations": {"agentaflow.gpu/priority": "9"}});
    // A user may name any owner; only a built-in controller keeps a pod from the agentaflow scheduler.
    let owned = |version: &str, controller: bool| {
        let mut metadata = annotated.clone();
        metadata["ownerReferences"] = json!([{"apiVersion": version, "kind": "DaemonSet",
            "name": "d", "uid": "u", "controller": controller}]);
        metadata
    };
    for (namespace, metadata, scheduler) in [
        ("webhook-team", json!({}), "agentaflow"),
        ("webhook-plain", json!({}), "default-scheduler"),
        ("webhook-plain", annotated.clone(), "agentaflow"),
        ("webhook-plain", owned("apps/v1", true), "default-scheduler"),
        ("webhook-plain", owned("apps/v1", false), "agentaflow"),
        ("webhook-plain", owned("example.com/v1", true), "agentaflow"),
        ("kube-system", annotated, "default-scheduler"),
    ] {
        let made = cluster.create(namespace, &pod("p", &metadata)).await.unwrap();
        assert_eq!(made["spec"]["schedulerName"], scheduler, "{namespace} {metadata}");
        // The annotation becomes a priority class, and the API server fills in its value.
        let asked = scheduler == "agentaflow" && !metadata["annotations"].is_null();
        let class = if asked { json!(["agentaflow-9", 4]) } else { json!([null, 0]) };
        let spec = &made["spec"];
        assert_eq!(json!([spec["priorityClassName"], spec["priority"]]), class, "{metadata}");
    }
}

async fn owners_are_read(cluster: &Cluster) {
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "generateName": "owner-", "annotations": {"agentaflow.gpu/scheduling-strategy": "pack"},
        },
        "spec": {"suspend": true, "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
    });
    let job = create(&cluster.client, "webhook-plain", &job, false).await.unwrap();
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "controller": true,
        "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]});
    let child = pod("p", &json!({"ownerReferences": [owner]}));
    let made = cluster.create("webhook-plain", &child).await.unwrap();
    assert_eq!(made["spec"]["schedulerName"], "agentaflow");
    assert_eq!(made["metadata"]["annotations"]["agentaflow.gpu/scheduling-strategy"], "pack");
    // The API server does not ask about pods of Jobs and Deployments without GPUs.
    let mut without = child;
    without["spec"]["containers"][0]["resources"] = json!({});
    let made = cluster.create("webhook-plain", &without).await.unwrap();
    assert_eq!(made["spec"]["schedulerName"], "default-scheduler");
    let jobs: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), "webhook-plain", &resource(&job));
    jobs.delete(job["metadata"]["name"].as_str().unwrap(), &DeleteParams::background())
        .await
        .unwrap();
}

/// Of pods without GPUs, the API server asks only about pods whose owner is of the group of a unit.
async fn pods_of_other_operators_are_not_asked_about(cluster: &Cluster) {
    for (group, scheduler) in [("example.com", "default-scheduler"), ("kubeflow.org", "agentaflow")]
    {
        let name = format!("rigs.{group}");
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": name},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"kind": "Rig", "plural": "rigs", "singular": "rig"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {
                    "openAPIV3Schema": {"type": "object"}}}],
            },
        });
        apply(&cluster.client, &definition).await.unwrap();
        let version = format!("{group}/v1");
        let rig = json!({
            "apiVersion": version, "kind": "Rig",
            "metadata": {"name": "rig", "annotations": {"agentaflow.gpu/scheduling-strategy": "pack"}},
        });
        let rig = cluster.create_when_served("webhook-plain", &rig).await;
        let owner = json!({"apiVersion": version, "kind": "Rig", "controller": true,
            "name": "rig", "uid": rig["metadata"]["uid"]});
        let mut child = pod("p", &json!({"ownerReferences": [owner]}));
        let with_gpu = cluster.create("webhook-plain", &child).await.unwrap();
        assert_eq!(with_gpu["spec"]["schedulerName"], "agentaflow", "{group}");
        child["spec"]["containers"][0]["resources"] = json!({});
        let without = cluster.create("webhook-plain", &child).await.unwrap();
        assert_eq!(without["spec"]["schedulerName"], scheduler, "{group}");
        let definitions: Api<DynamicObject> =
            Api::all_with(cluster.client.clone(), &resource(&definition));
        definitions.delete(&name, &DeleteParams::default()).await.unwrap();
    }
}

async fn opted_in_jobs_are_suspended(cluster: &Cluster) {
    let job = |gpu: bool, annotations: &Value| {
        let limits = if gpu { json!({"nvidia.com/gpu": "1"}) } else { json!({}) };
        let container = json!({"name": "c", "image": "i", "resources": {"limits": limits}});
        json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "j", "annotations": annotations},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
        })
    };
    let asked = json!({"agentaflow.gpu/priority": "9"});
    let out = json!({"agentaflow.gpu/unit": "false"});
    for (namespace, gpu, annotations, taken) in [
        ("webhook-team", true, json!({}), true),
        ("webhook-team", false, json!({}), false),
        ("webhook-team", true, out, false),
        ("webhook-plain", true, json!({}), false),
        ("webhook-plain", false, asked, true),
    ] {
        let made = cluster.create(namespace, &job(gpu, &annotations)).await.unwrap();
        let spec = &made["spec"];
        let scheduler = spec["template"]["spec"]["schedulerName"].as_str();
        let expected = if taken { "agentaflow" } else { "default-scheduler" };
        let found = (scheduler.unwrap_or("default-scheduler"), spec["suspend"] == true);
        assert_eq!(found, (expected, taken), "{namespace} {gpu} {annotations}");
    }
}

async fn bad_workloads_are_refused(cluster: &Cluster) {
    let containers =
        |containers: Value| json!({"podTemplate": {"spec": {"containers": containers}}});
    for (spec, words) in [
        (json!({}), &[][..]),
        (json!({"podTemplate": {}}), &["spec.podTemplate.spec.containers"]),
        (
            containers(json!([{"name": "c", "image": ""}])),
            &["spec.podTemplate.spec.containers[0].image: Required value"],
        ),
        (
            containers(json!([{"name": "c", "image": "i", "imagePolicy": "x"}])),
            &["spec.podTemplate", "imagePolicy"],
        ),
        (
            containers(json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}])),
            &["spec.podTemplate.spec.containers", "`a`, `b`"],
        ),
        (
            json!({"gpuRequirements": {"exclusiveAccess": false}}),
            &["spec.gpuRequirements.exclusiveAccess"],
        ),
        (json!({"gpuRequirements": {"migProfile": "1g.5gb"}}), &["spec.gpuMemoryRequired", "5120"]),
        (json!({"queue": "gone"}), &["spec.queue", "`gone`"]),
        (json!({"priority": 11}), &["spec.priority"]),
        (json!({"estimatedDuration": "4 hours"}), &["spec.estimatedDuration"]),
    ] {
        says(cluster.create("webhook-plain", &workload(&spec)).await, words);
    }
}

async fn gangs_beyond_a_quota_give_a_warning(cluster: &Cluster) {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "webhook-plain"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "8"}},
    });
    let quotas: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), "webhook-plain", &resource(&quota));
    let force = PatchParams::apply("test").force();
    quotas.patch("gpus", &force, &Patch::Apply(&quota)).await.unwrap();
    // The API server refuses pods while the status of a quota is unknown.
    let deadline = Instant::now() + Duration::from_secs(30);
    while quotas.get("gpus").await.unwrap().data["status"]["hard"].is_null() {
        assert!(Instant::now() < deadline, "the quota has no status");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (gang, expected) in [(4, false), (5, true)] {
        let gpus = json!({"gpuCount": 2});
        let spec = json!({"gangSize": gang, "gpuRequirements": gpus});
        let body = serde_json::to_vec(&workload(&spec)).unwrap();
        let path = "/apis/agentaflow.io/v1/namespaces/webhook-plain/gpuworkloads?dryRun=All";
        let request = http::Request::post(path).header("content-type", "application/json");
        let response = cluster.client.send(request.body(body.into()).unwrap()).await.unwrap();
        assert!(response.status().is_success(), "{}", response.status());
        let warnings = response.headers().get_all("warning");
        let warns = warnings
            .iter()
            .any(|text| text.to_str().is_ok_and(|text| text.contains("requests.nvidia.com/gpu")));
        assert_eq!(warns, expected, "a gang of {gang}: {:?}", response.headers());
    }
    quotas.delete("gpus", &DeleteParams::default()).await.unwrap();
}

async fn strangers_cannot_borrow_our_rights(cluster: &Cluster) {
    for (kind, name, rules, subject) in [
        (
            "Role",
            "workloads",
            json!([{"apiGroups": ["agentaflow.io"], "resources": ["*"], "verbs": ["*"]}]),
            None,
        ),
        ("RoleBinding", "workloads", json!(null), Some("workloads")),
    ] {
        let mut object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
        match subject {
            None => object["rules"] = rules,
            Some(role) => {
                object["roleRef"] =
                    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role});
                object["subjects"] = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "stranger"}]);
            }
        }
        let _ = create(&cluster.client, "webhook-plain", &object, false).await;
    }
    let stranger = client(Some("stranger")).await;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let refused =
            create(&stranger, "webhook-plain", &workload(&json!({})), true).await.unwrap_err();
        // The message of the webhook names pods; a denied role names GPU workloads only.
        if refused.contains("`stranger`") && refused.contains("pods in namespace `webhook-plain`") {
            return;
        }
        // The API server applies a new role after a moment.
        assert!(Instant::now() < deadline, "{refused}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn bad_queues_are_refused(cluster: &Cluster) {
    let queue = |spec: Value| json!({"apiVersion": "agentaflow.io/v1", "kind": "GPUQueue", "metadata": {"name": "q"}, "spec": spec});
    for (spec, words) in [
        (json!({"namespaces": ["a"], "limit": {"cpu": 64, "memory": "1Ti"}}), &[][..]),
        (json!({"parent": "nobody"}), &["spec.parent", "`nobody`"]),
        (json!({"parent": "q"}), &["spec.parent", "`q`"]),
        (json!({"guaranteed": {"cpu": "2"}, "limit": {"cpu": "1"}}), &["spec.guaranteed.cpu"]),
        (json!({"guaranteed": {"gpus": 2}, "limit": {"gpus": 1}}), &["spec", "guaranteed.gpus"]),
        (json!({"limit": {"memory": "1 TB"}}), &["spec.limit.memory"]),
        (json!({"namespaces": [""]}), &["spec.namespaces[0]"]),
    ] {
        says(cluster.create("", &queue(spec)).await, words);
    }
}

async fn changes_that_are_not_of_the_spec_always_pass(cluster: &Cluster) {
    let mut stored = workload(&json!({}));
    stored["metadata"] = json!({"generateName": "train-", "finalizers": ["agentaflow.io/cleanup"]});
    let stored = create(&cluster.client, "webhook-plain", &stored, false).await.unwrap();
    let name = stored["metadata"]["name"].as_str().unwrap();
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), "webhook-plain", &resource(&stored));
    let patch = |patch: Value| {
        let api = api.clone();
        async move { api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await }
    };
    let refused = patch(json!({"spec": {"queue": "gone"}})).await.unwrap_err().to_string();
    assert!(refused.contains("spec.queue"), "{refused}");
    let fixed = patch(json!({"spec": {"gangSize": 2}})).await.unwrap_err().to_string();
    assert!(fixed.contains("spec.gangSize"), "{fixed}");
    // The webhook is unreachable; removal of a finalizer must still work.
    cluster.stop.cancel();
    api.delete(name, &DeleteParams::default()).await.unwrap();
    patch(json!({"metadata": {"finalizers": null}})).await.unwrap();
    assert!(api.get_opt(name).await.unwrap().is_none());
}
