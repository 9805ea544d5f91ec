//! Custom metrics of the scheduler: autoscalers of Kubernetes use them through the API server, and no other client reaches
//! them.

use std::path::Path;
use std::process::Command;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::kube_permissions::{assert_nothing_denied, kubeconfig_of_role};
use crate::plans::alone;
use crate::service::service;
use crate::support::{NodePlan, PodPlan, Scheduler, Share, free_port, repository, wait_for};

const ROOT: &str = "/apis/custom.metrics.k8s.io/v1beta2";
const AUTOSCALER: &str = "system:serviceaccount:kube-system:horizontal-pod-autoscaler";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn autoscalers_scale_deployments_by_gpu_utilization_and_by_queue_depth() {
    let _alone = alone().await;
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(4)).await;
    let (mut scheduler, _) = start(&share).await;

    deployment(&share, "serve", 1).await;
    autoscaler(&share, &["--target", "serve", "--value", "50"]).await;
    report(&share, &node, "serve", 90.0).await;
    scaled(&share, "serve", 2).await;
    // The mean of both pods is below the target, and one pod is enough for their sum.
    report(&share, &node, "serve", 20.0).await;
    scaled(&share, "serve", 1).await;

    let queue = format!("{}-team", share.id);
    create_queue(&share, &queue, &share.namespace).await;
    deployment(&share, "drain", 0).await;
    autoscaler(&share, &["--target", "drain", "--queue", &queue, "--value", "2"]).await;
    let waiting = ["w-0", "w-1", "w-2", "w-3", "w-4"];
    for name in waiting {
        share.create_pod(&share.one_gpu(name).gpus(8)).await;
    }
    scaled(&share, "drain", 3).await;
    for name in waiting {
        share.delete_pod(name).await;
    }
    scaled(&share, "drain", 1).await;
    assert_nothing_denied(&mut scheduler);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn custom_metrics_are_given_only_to_the_front_proxy_and_to_users_with_the_right() {
    let _alone = alone().await;
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(4)).await;
    let (_scheduler, port) = start(&share).await;
    share.create_pod(&share.one_gpu("train").label("app", "train")).await;
    share.bound("train").await;
    report(&share, &node, "train", 75.0).await;

    let pods = format!("{ROOT}/namespaces/{}/pods", share.namespace);
    let path = format!("{pods}/*/gpu_utilization?labelSelector=app%3Dtrain");
    let values = wait_for("the utilization of the pod", async || {
        let answer = share.request("GET", &path, None).await;
        if answer.status != 200 {
            return Err(answer.body);
        }
        let items = answer.json()["items"].take();
        if items[0].is_null() { Err(items.to_string()) } else { Ok(items) }
    })
    .await;
    assert_eq!(values.as_array().map(Vec::len), Some(1), "{values}");
    assert_eq!(values[0]["value"], "75000m");
    assert_eq!(values[0]["describedObject"]["name"], "train");
    let unknown = share.request("GET", &format!("{pods}/missing/gpu_utilization"), None).await;
    assert_eq!((unknown.status, unknown.json()["reason"].take()), (404, json!("NotFound")));

    let (own, other) = (format!("{}-own", share.id), format!("{}-other", share.id));
    create_queue(&share, &own, &share.namespace).await;
    create_queue(&share, &other, "elsewhere").await;
    let depth = |queue: &str| {
        format!("{ROOT}/namespaces/{}/gpuqueues.agentaflow.io/{queue}/queue_depth", share.namespace)
    };
    assert_eq!(share.request("GET", &depth(&own), None).await.status, 200);
    assert_eq!(share.request("GET", &depth(&other), None).await.status, 404, "another team's");

    let direct = Direct { share: &share, port, path: &path };
    assert_eq!(direct.status(None, Some(AUTOSCALER)).await, None, "no certificate");
    assert_eq!(direct.status(Some("admin"), Some(AUTOSCALER)).await, None, "another authority");
    let proxy = Some("front-proxy-client");
    assert_eq!(direct.status(proxy, Some(AUTOSCALER)).await, Some(200));
    assert_eq!(
        direct.status(proxy, Some("system:serviceaccount:default:default")).await,
        Some(403)
    );
    assert_eq!(direct.status(proxy, None).await, Some(403), "no user");
}

/// Starts the scheduler with the rights of `deploy`, as the adapter of the control plane; also returns its port.
async fn start(share: &Share) -> (Scheduler, u16) {
    share.apply_file("deploy/crds").await;
    let kubeconfig = kubeconfig_of_role(share).await;
    apply_rights(share).await;
    let port = free_port();
    service(share, &[("custom-metrics", 9444, port)]).await;
    let text = manifest("20-api-service.yaml");
    let mut object: Value = serde_saphyr::from_str(&text).expect("YAML");
    // Other tests remove the objects with the label.
    object["metadata"]["labels"] = json!({});
    object["spec"]["service"]["namespace"] = json!(share.namespace);
    share.apply_object(object).await;
    let address = format!("127.0.0.1:{port}");
    let extra = ["--custom-metrics", &address];
    let mut scheduler = Scheduler::launch(PROGRAM, share, &kubeconfig, "scheduler", &extra);
    scheduler.ready().await;
    wait_for("the API server reaches the metrics", async || {
        let answer = share.request("GET", ROOT, None).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    (scheduler, port)
}

/// Rights of `deploy/autoscaling` for the account of the share. The binding in the namespace of Kubernetes goes with its
/// owner.
async fn apply_rights(share: &Share) {
    let rights = manifest("10-rbac.yaml")
        .replace("namespace: agentaflow\n", &format!("namespace: {}\n", share.namespace))
        .replace("name: agentaflow-scheduler\n", &format!("name: scheduler-{}\n", share.id))
        .replace("name: agentaflow-custom-metrics\n", &format!("name: metrics-{}\n", share.id));
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(&rights).expect("YAML");
    let mut binding = documents.pop().expect("the binding in kube-system");
    let mut owner = None;
    for document in documents {
        owner = Some(share.apply_object(document).await);
    }
    let owner = owner.expect("a binding of the cluster").metadata;
    binding["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "name": owner.name, "uid": owner.uid,
    }]);
    share.apply_object(binding).await;
}

fn manifest(name: &str) -> String {
    let file = repository().join("deploy/autoscaling").join(name);
    std::fs::read_to_string(file).expect("a manifest")
}

/// A Deployment with one pod with this number of GPUs.
async fn deployment(share: &Share, name: &str, gpus: u32) {
    let labels = json!({"app": name});
    let pod = if gpus == 0 { PodPlan::new("") } else { share.one_gpu("") };
    let template = pod.label("app", name).spec("restartPolicy", json!("Always")).template();
    let object = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": share.namespace},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    });
    share.apply_object(object).await;
    scaled(share, name, 1).await;
}

/// The autoscaler that the program generates, with the shortest delay.
async fn autoscaler(share: &Share, arguments: &[&str]) {
    let mut generate = Command::new(PROGRAM);
    generate.args(["generate", "hpa", "--scale-down-delay", "1s"]).args(arguments);
    let output = generate.output().expect("the program");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    share.apply(&String::from_utf8_lossy(&output.stdout)).await;
}

/// A report of the monitor of the node: each pod with this label has one GPU.
async fn report(share: &Share, node: &str, app: &str, utilization: f64) {
    let pods = share.pods(&format!("app={app}")).await;
    let gpus: Vec<Value> = pods
        .iter()
        .enumerate()
        .map(|(index, pod)| {
            let name = pod.metadata.name.as_deref().expect("a name");
            json!({
                "id": format!("GPU-{index}"), "available": true, "utilization": utilization,
                "currentWorkload": format!("{}/{name}", share.namespace),
            })
        })
        .collect();
    let object = json!({
        "apiVersion": "agentaflow.io/v1",
        "kind": "GPUNode",
        "metadata": {"name": node, "namespace": share.namespace},
        "spec": {"nodeName": node, "gpuDevices": []},
    });
    share.apply_object(object).await;
    let now = jiff::Timestamp::now().to_string();
    let status = json!({"status": {"phase": "Active", "lastUpdated": now, "gpuStatus": gpus}});
    let path =
        format!("/apis/agentaflow.io/v1/namespaces/{}/gpunodes/{node}/status", share.namespace);
    let answer = share.request("PATCH", &path, Some(&status)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

async fn create_queue(share: &Share, name: &str, namespace: &str) {
    let queue = json!({
        "apiVersion": "agentaflow.io/v1",
        "kind": "GPUQueue",
        "metadata": {"name": name},
        "spec": {"namespaces": [namespace]},
    });
    share.apply_object(queue).await;
}

/// Waits until the Deployment has this number of available pods.
async fn scaled(share: &Share, name: &str, replicas: u64) {
    let path = format!("/apis/apps/v1/namespaces/{}/deployments/{name}", share.namespace);
    let autoscaler = format!(
        "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers/{name}",
        share.namespace
    );
    wait_for(&format!("{name} has {replicas} pods"), async || {
        let found = share.request("GET", &path, None).await.json();
        let status = &found["status"];
        let (wanted, available) = (&found["spec"]["replicas"], &status["availableReplicas"]);
        if *wanted == replicas && *available == replicas && status["replicas"] == replicas {
            return Ok(());
        }
        let autoscaler = share.request("GET", &autoscaler, None).await.json()["status"].take();
        Err(format!("{status} {autoscaler}"))
    })
    .await;
}

/// Requests to the port of the scheduler, past the API server.
struct Direct<'a> {
    share: &'a Share,
    port: u16,
    path: &'a str,
}

impl Direct<'_> {
    /// Status of the response to a client with this certificate of the control plane; none without a connection.
    async fn status(&self, certificate: Option<&str>, user: Option<&str>) -> Option<u16> {
        let folder = self.share.cluster.kubeconfig.parent().unwrap_or(Path::new("/"));
        let file = |name: &str, ending: &str| folder.join(format!("certificates/{name}.{ending}"));
        let identity = certificate.map(|name| {
            json!({"client-certificate": file(name, "crt"), "client-key": file(name, "key")})
        });
        let client = insecure_client(self.port, identity).await;
        let mut request = http::Request::get(self.path);
        if let Some(user) = user {
            request = request.header("X-Remote-User", user).header("X-Remote-Group", "g");
        }
        let request = request.body(kube::client::Body::empty()).expect("a request");
        client.send(request).await.ok().map(|answer| answer.status().as_u16())
    }
}

/// Client for an HTTPS port on the loopback interface; it accepts every certificate.
pub(crate) async fn insecure_client(port: u16, identity: Option<Value>) -> Client {
    let server = format!("https://127.0.0.1:{port}");
    let config: Kubeconfig = serde_json::from_value(json!({
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "u", "user": identity.unwrap_or(json!({}))}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }))
    .expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
    let mut config = config.expect("a complete kubeconfig");
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}
