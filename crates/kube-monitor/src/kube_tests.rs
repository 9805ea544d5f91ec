//! Tests of the monitor with a real API server.

use agentaflow_kube_core::crd::{GpuNode, GpuNodePhase, GpuStatus};
use agentaflow_kube_core::names;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agentaflow_gpu::{Device, DeviceProcess, GpuError, GpuSource, Host, Sample};
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt as _, ResourceExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::kubelet::tests::{self as kubelet, FakeKubelet};
use super::{Settings, connect, run};

/// Generous timeout for loaded machines.
const SOON: Duration = Duration::from_secs(45);

/// GPUs with scripted readings.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    broken: Option<String>,
    samples: Vec<Sample>,
    /// Number of samples.
    looks: u32,
}

impl Scripted {
    fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.0.lock().unwrap());
    }

    fn read<T>(&self, read: impl Fn(&Sample) -> T) -> Result<Vec<T>, GpuError> {
        let script = self.0.lock().unwrap();
        match &script.broken {
            Some(message) => Err(GpuError::Broken(message.clone())),
            None => Ok(script.samples.iter().map(read).collect()),
        }
    }
}

impl GpuSource for Scripted {
    fn host(&self) -> Host {
        Host { driver: Some("580.1".into()), cuda: None, source: "nvml" }
    }

    fn devices(&self) -> Result<Vec<Device>, GpuError> {
        self.read(|sample| Device {
            uuid: sample.uuid.clone(),
            name: "NVIDIA A100".into(),
            memory: 40_960,
            ..Device::default()
        })
    }

    fn sample(&self) -> Result<Vec<Sample>, GpuError> {
        self.set(|script| script.looks += 1);
        self.read(Sample::clone)
    }

    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError> {
        Ok(Vec::new())
    }
}

fn sample(number: usize) -> Sample {
    Sample {
        uuid: format!("GPU-{number}"),
        utilization: Some(10),
        memory_used: Some(100),
        temperature: Some(40),
        ..Sample::default()
    }
}

/// Node, namespace and monitor, deleted at the end of the test.
struct TestNode {
    client: Client,
    name: String,
    gpus: Scripted,
    folder: tempfile::TempDir,
    stop: CancellationToken,
}

impl TestNode {
    async fn set(name: &str) -> Self {
        let path = std::env::var_os("AGENTAFLOW_TEST_KUBE").map(PathBuf::from);
        let path = path.expect("AGENTAFLOW_TEST_KUBE names the kubeconfig of a control plane");
        let client = connect(Some(Path::new(&path))).await.unwrap();
        let name = format!("monitor-{name}-{}", std::process::id());
        let gpus = Scripted::default();
        gpus.set(|script| script.samples = (0..2).map(sample).collect());
        let folder = tempfile::tempdir().unwrap();
        let stage = Self { client, name, gpus, folder, stop: CancellationToken::new() };
        stage.prepare().await;
        stage
    }

    async fn prepare(&self) {
        let kinds = Api::all(self.client.clone());
        // Another test may have created it.
        let _ = kinds.create(&PostParams::default(), &GpuNode::crd()).await;
        let object =
            |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": self.name}});
        let namespace: Namespace = serde_json::from_value(object("Namespace")).unwrap();
        let namespaces = Api::all(self.client.clone());
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        let mut node: Node = serde_json::from_value(object("Node")).unwrap();
        node.labels_mut().insert("kept".into(), "as-it-was".into());
        self.nodes().create(&PostParams::default(), &node).await.unwrap();
        wait_for("GPUNodes served", async || self.gpu_nodes().list(&ListParams::default()).await)
            .await;
    }

    fn settings(&self) -> Settings {
        let gpus = self.gpus.clone();
        Settings {
            node: self.name.clone(),
            namespace: self.name.clone(),
            interval: Duration::from_millis(200),
            refresh: Duration::from_secs(2),
            goal: 80,
            gpus: Arc::new(move || Ok(Box::new(gpus.clone()))),
            pod_resources: self.folder.path().join("kubelet.sock"),
            proc: "/proc".into(),
            health: None,
            metrics: None,
            metrics_access: agentaflow_metrics::Access::Open,
            dcgm_names: false,
            once: false,
        }
    }

    fn start(&self) {
        tokio::spawn(run(self.client.clone(), self.settings(), self.stop.clone()));
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn gpu_nodes(&self) -> Api<GpuNode> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    async fn label(&self, key: &str) -> Option<String> {
        self.nodes().get(&self.name).await.unwrap().labels().get(key).cloned()
    }

    /// Waits until the `GPUNode` meets the condition.
    async fn published(&self, what: &str, fits: impl Fn(&GpuNode) -> bool) -> GpuNode {
        wait_for(what, async || {
            let node = self.gpu_nodes().get(&self.name).await.map_err(|error| error.to_string())?;
            if fits(&node) { Ok(node) } else { Err(format!("{:?}", node.status)) }
        })
        .await
    }

    async fn wait_for_event(&self, reason: &str) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let own = ListParams::default().fields(&format!("involvedObject.name={}", self.name));
        wait_for(reason, async || {
            let events = events.list(&own).await.unwrap().items;
            let reasons: Vec<String> =
                events.into_iter().filter_map(|event| event.reason).collect();
            let there = reasons.iter().any(|there| there == reason);
            there.then_some(()).ok_or_else(|| format!("{reasons:?}"))
        })
        .await;
    }

    async fn clear(self) {
        self.stop.cancel();
        let now = DeleteParams::default().grace_period(0);
        let _ = self.nodes().delete(&self.name, &now).await;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let _ = namespaces.delete(&self.name, &now).await;
    }
}

async fn wait_for<T, E: Display>(what: &str, mut check: impl AsyncFnMut() -> Result<T, E>) -> T {
    let started = Instant::now();
    loop {
        match check().await {
            Ok(value) => return value,
            Err(now) => {
                assert!(started.elapsed() < SOON, "waited for: {what}\nwhat there is: {now}");
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn gpu(node: &GpuNode, number: usize) -> GpuStatus {
    node.status.clone().unwrap_or_default().gpu_status.get(number).cloned().unwrap_or_default()
}

fn phase(node: &GpuNode) -> Option<GpuNodePhase> {
    node.status.as_ref().and_then(|status| status.phase)
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_the_gpus_of_a_node_appear_and_an_unhealthy_one_goes_and_comes_back() {
    let stage = TestNode::set("unhealthy").await;
    stage.start();
    let node = stage.published("the GPUNode", |node| gpu(node, 1).available).await;
    assert_eq!(node.spec.gpu_devices.len(), 2);
    assert_eq!(node.owner_references()[0].kind, "Node");
    assert_eq!(node.labels().get(names::MANAGED_BY).map(String::as_str), Some("agentaflow"));
    let conditions = node.status.unwrap().conditions;
    assert!(conditions.iter().all(|condition| condition.status == "True"), "{conditions:?}");
    assert_eq!(conditions[0].observed_generation, node.metadata.generation);
    wait_for("labels", async || {
        let count = stage.label(names::NODE_COUNT).await;
        (count.as_deref() == Some("2")).then_some(()).ok_or("none yet")
    })
    .await;
    assert_eq!(stage.label(names::NODE_SCHEDULABLE).await.as_deref(), Some("true"));
    assert_eq!(stage.label(names::NODE_TIER).await.as_deref(), Some("low"));
    assert_eq!(stage.label("kept").await.as_deref(), Some("as-it-was"));

    stage.gpus.set(|script| script.samples[1].temperature = Some(96));
    stage.published("a GPU out", |node| gpu(node, 0).available && !gpu(node, 1).available).await;
    stage.wait_for_event("GPUOverheated").await;
    stage.gpus.set(|script| script.samples[1].temperature = Some(40));
    stage.published("both back", |node| gpu(node, 1).available).await;
    stage.wait_for_event("GPURecovered").await;

    stage.gpus.set(|script| {
        script.samples.pop();
    });
    let lost = stage.published("a lost GPU", |node| !gpu(node, 1).available).await;
    assert_eq!(lost.spec.gpu_devices.len(), 2);

    stage.gpus.set(|script| script.broken = Some("version mismatch".into()));
    let node =
        stage.published("no driver", |node| phase(node) == Some(GpuNodePhase::Unavailable)).await;
    assert!(gpu(&node, 0).reason.unwrap().contains("version mismatch"));
    stage.wait_for_event("GPUDriverFailed").await;
    stage.clear().await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_a_quiet_node_is_still_confirmed_and_deleted_objects_are_restored() {
    let stage = TestNode::set("quiet").await;
    stage.start();
    let confirmed = async || {
        let node = stage.nodes().get(&stage.name).await.unwrap();
        let told = node.annotations().get(names::NODE_LAST_UPDATE).cloned();
        told.ok_or("no last-update")
    };
    let first = wait_for("the first confirmation", confirmed).await;
    wait_for("a later confirmation", async || {
        let now = confirmed().await?;
        if now > first { Ok(()) } else { Err("as before") }
    })
    .await;

    let before = stage.gpu_nodes().get(&stage.name).await.unwrap().uid();
    stage.gpu_nodes().delete(&stage.name, &DeleteParams::default()).await.unwrap();
    stage.published("a new GPUNode", |node| node.uid() != before && gpu(node, 0).available).await;

    let cordon = json!({"spec": {"unschedulable": true}});
    let params = PatchParams::default();
    stage.nodes().patch(&stage.name, &params, &Patch::Merge(&cordon)).await.unwrap();
    stage.published("maintenance", |node| phase(node) == Some(GpuNodePhase::Maintenance)).await;
    let open = json!({"spec": {"unschedulable": false}});
    stage.nodes().patch(&stage.name, &params, &Patch::Merge(&open)).await.unwrap();
    stage.published("active again", |node| phase(node) == Some(GpuNodePhase::Active)).await;
    stage.clear().await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_a_pod_learns_which_devices_the_kubelet_gave_it() {
    let stage = TestNode::set("pods").await;
    let fake = FakeKubelet::default();
    let ids = ["GPU-1::0", "GPU-0::1"];
    fake.list.lock().unwrap().pods = vec![crate::kubelet::PodResources {
        namespace: stage.name.clone(),
        ..kubelet::pod("train", vec![vec![kubelet::devices("nvidia.com/gpu", &ids)]])
    }];
    let server = kubelet::serve(fake, &stage.settings().pod_resources);
    let pods: Api<Pod> = Api::namespaced(stage.client.clone(), &stage.name);
    let pod: Pod = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train"},
        "spec": {
            "nodeName": stage.name,
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
        },
    }))
    .unwrap();
    // The service account is created a moment after the namespace.
    wait_for("the pod", async || pods.create(&PostParams::default(), &pod).await).await;
    stage.start();
    wait_for("its devices", async || {
        let told = pods.get("train").await.unwrap().annotations().get(names::POD_DEVICES).cloned();
        if told.as_deref() == Some("GPU-0,GPU-1") { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await;
    let holder = format!("{}/train", stage.name);
    stage
        .published("who has them", |node| gpu(node, 1).current_workload.as_deref() == Some(&holder))
        .await;
    let _ = pods.delete("train", &DeleteParams::default().grace_period(0)).await;
    server.abort();
    stage.clear().await;
}

/// Proxy to the API server that can be interrupted: connections end, and new ones are refused.
async fn cable(kubeconfig: &Path) -> (Client, tokio::sync::watch::Sender<bool>) {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.unwrap();
    let server = config.cluster_url.authority().unwrap().to_string();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    config.cluster_url = format!("https://{address}").parse().unwrap();
    let (plug, plugged) = tokio::sync::watch::channel(true);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (server, mut plugged) = (server.clone(), plugged.clone());
            tokio::spawn(async move {
                let Ok(mut far) = tokio::net::TcpStream::connect(server).await else { return };
                tokio::select! {
                    _ = plugged.wait_for(|plugged| !plugged) => {}
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                }
            });
        }
    });
    (Client::try_from(config).unwrap(), plug)
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_changes_during_an_outage_of_the_api_server_are_written_after_it() {
    let stage = TestNode::set("away").await;
    let kubeconfig = std::env::var_os("AGENTAFLOW_TEST_KUBE").map(PathBuf::from).unwrap();
    let (client, plug) = cable(&kubeconfig).await;
    let monitor = tokio::spawn(run(client, stage.settings(), stage.stop.clone()));
    stage.published("the GPUNode", |node| gpu(node, 1).available).await;
    plug.send_replace(false);
    stage.gpus.set(|script| {
        script.samples[0].temperature = Some(99);
        script.looks = 0;
    });
    let before = stage.gpu_nodes().get(&stage.name).await.unwrap();
    wait_for("some turns without an answer", async || {
        let looks = stage.gpus.0.lock().unwrap().looks;
        if looks > 3 { Ok(()) } else { Err(looks) }
    })
    .await;
    assert!(!monitor.is_finished());
    let away = stage.gpu_nodes().get(&stage.name).await.unwrap();
    assert_eq!(away.resource_version(), before.resource_version(), "the cable was pulled");
    stage.gpus.set(|script| script.samples[0].temperature = Some(40));
    plug.send_replace(true);
    stage.wait_for_event("GPUOverheated").await;
    stage.wait_for_event("GPURecovered").await;
    stage.published("all well", |node| gpu(node, 0).available).await;
    stage.stop.cancel();
    monitor.await.unwrap().unwrap();
    stage.clear().await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_once_publishes_and_ends_or_reports_an_error() {
    let stage = TestNode::set("once").await;
    let once = || {
        run(
            stage.client.clone(),
            Settings { once: true, ..stage.settings() },
            CancellationToken::new(),
        )
    };
    once().await.unwrap();
    assert_eq!(stage.label(names::NODE_COUNT).await.as_deref(), Some("2"));
    stage.gpus.set(|script| script.broken = Some("version mismatch".into()));
    let problem = once().await.unwrap_err().to_string();
    assert!(problem.contains("version mismatch"), "{problem}");
    stage.published("no driver", |node| phase(node) == Some(GpuNodePhase::Unavailable)).await;
    let nowhere = Settings { once: true, node: "nowhere".into(), ..stage.settings() };
    let problem =
        run(stage.client.clone(), nowhere, CancellationToken::new()).await.unwrap_err().to_string();
    assert!(problem.contains("no node `nowhere`"), "{problem}");
    stage.clear().await;
}
