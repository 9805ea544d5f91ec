//! The cluster of the benchmark: pods made, bound and deleted in bulk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::core::WatchEvent;
use serde_json::json;

/// Calls at a time: as many as our scheduler makes.
const AT_A_TIME: usize = 48;

/// The service account of our scheduler.
const ACCOUNT: &str = "/api/v1/namespaces/agentaflow/serviceaccounts/agentaflow-scheduler/token";

/// A cluster with KWOK's nodes.
pub(crate) struct Cluster {
    pub(crate) kubeconfig: PathBuf,
    /// With the rights and the token of our scheduler, as it has them in a cluster.
    pub(crate) as_scheduler: PathBuf,
    client: kube::Client,
    scheduler: kube::Client,
    batches: AtomicUsize,
}

impl Cluster {
    pub(crate) async fn connect(kubeconfig: &Path) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut read = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let client = client(&read).await;
        let body = json!({"spec": {"expirationSeconds": 7200}}).to_string().into_bytes();
        let request = http::Request::post(ACCOUNT).header("content-type", "application/json");
        let request = request.body(body).expect("a request");
        let answer: serde_json::Value = client.request(request).await.expect("a token");
        let token = answer["status"]["token"].as_str().expect("a token").to_owned();
        for user in &mut read.auth_infos {
            let token = Some(token.clone().into());
            user.auth_info = Some(AuthInfo { token, ..AuthInfo::default() });
        }
        let name = format!("agentaflow-bench-{}.json", std::process::id());
        let as_scheduler = std::env::temp_dir().join(name);
        let text = serde_json::to_string(&read).expect("a kubeconfig");
        std::fs::write(&as_scheduler, text).expect("it can be written");
        Self {
            kubeconfig: kubeconfig.to_owned(),
            scheduler: self::client(&read).await,
            as_scheduler,
            client,
            batches: AtomicUsize::new(0),
        }
    }

    pub(crate) async fn size(&self) -> (usize, u64) {
        let nodes = self.nodes().await;
        let gpus = nodes.iter().filter_map(|node| {
            node.status.as_ref()?.allocatable.as_ref()?.get("nvidia.com/gpu")?.0.parse::<u64>().ok()
        });
        (nodes.len(), gpus.sum())
    }

    async fn nodes(&self) -> Vec<Node> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.list(&ListParams::default()).await.expect("nodes").items
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Makes pods that name a scheduler.
    pub(crate) async fn create_pods(
        &self,
        scheduler: &str,
        count: usize,
        gpus: impl Fn(usize) -> u32,
    ) {
        // Names are never used twice: KWOK would take a new pod for the old one that it removes.
        let batch = self.batches.fetch_add(1, Ordering::Relaxed);
        let made = stream::iter(0..count).map(|number| {
            let name = format!("{scheduler}-{batch}-{number}");
            let gpus = gpus(number);
            async move { self.create_pod(scheduler, &name, gpus).await }
        });
        made.buffer_unordered(AT_A_TIME).collect::<Vec<()>>().await;
    }

    pub(crate) async fn create_pod(&self, scheduler: &str, name: &str, gpus: u32) {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "labels": { "bench": scheduler } },
            "spec": {
                "schedulerName": scheduler,
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "work",
                    "image": "none",
                    "resources": {
                        "requests": { "cpu": "1", "memory": "4Gi" },
                        "limits": { "nvidia.com/gpu": gpus.to_string() },
                    },
                }],
            },
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        self.pods().create(&PostParams::default(), &pod).await.expect("a pod is made");
    }

    /// Binds every pod to the next node with room, with no thinking at all.
    pub(crate) async fn bind_plainly(&self, scheduler: &str) {
        let nodes: Vec<String> =
            self.nodes().await.into_iter().filter_map(|node| node.metadata.name).collect();
        let labels = ListParams::default().labels(&format!("bench={scheduler}"));
        let pods = self.pods().list(&labels).await.expect("pods").items;
        let bound = stream::iter(pods.iter().enumerate()).map(|(number, pod)| {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let binding = json!({
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": { "name": name },
                "target": { "apiVersion": "v1", "kind": "Node", "name": nodes[number % nodes.len()] },
            });
            let body = binding.to_string().into_bytes();
            let path = format!("/api/v1/namespaces/default/pods/{name}/binding");
            async move {
                let request = http::Request::post(path).header("content-type", "application/json");
                let request = request.body(body).expect("a request");
                self.scheduler.request::<serde_json::Value>(request).await.expect("a binding");
            }
        });
        bound.buffer_unordered(AT_A_TIME).collect::<Vec<()>>().await;
    }

    /// Time from the first bound pod to the last. Watches only the names of bound pods, to take little of the API
    /// server's time.
    pub(crate) async fn bound(&self, scheduler: &str, count: usize) -> Duration {
        let labels = format!("bench={scheduler}");
        let mut seen = std::collections::HashSet::new();
        let mut began = None;
        let mut version = "0".to_owned();
        while seen.len() < count {
            let watch =
                WatchParams::default().labels(&labels).fields("spec.nodeName!=").timeout(60);
            let Ok(events) = self.pods().watch_metadata(&watch, &version).await else { continue };
            let mut events = events.boxed();
            while let Ok(Some(event)) = events.try_next().await {
                let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
                version = pod.metadata.resource_version.clone().unwrap_or(version);
                began.get_or_insert_with(Instant::now);
                seen.insert(pod.metadata.name);
                if seen.len() == count {
                    break;
                }
            }
        }
        began.map_or(Duration::ZERO, |began| began.elapsed())
    }

    /// Pods with the condition `PodScheduled=False` when `at` ends, and the time until all have it; none after `limit`.
    pub(crate) async fn conditions(
        &self,
        scheduler: &str,
        count: usize,
        at: impl Future<Output = ()>,
        limit: Duration,
    ) -> (usize, Option<Duration>) {
        let labels = format!("bench={scheduler}");
        let list = ListParams::default().labels(&labels);
        let listed = self.pods().list_metadata(&list).await.expect("pods");
        let version = listed.metadata.resource_version.unwrap_or_default();
        let watch = WatchParams::default().labels(&labels).timeout(290);
        let mut events = self.pods().watch(&watch, &version).await.expect("a watch").boxed();
        let (began, mut seen, mut early) = (Instant::now(), std::collections::HashSet::new(), None);
        tokio::pin!(at);
        while began.elapsed() < limit && seen.len() < count {
            tokio::select! {
                () = &mut at, if early.is_none() => early = Some(seen.len()),
                event = events.try_next() => {
                    if let Ok(Some(WatchEvent::Modified(pod))) = event
                        && has_condition(&pod)
                    {
                        seen.insert(pod.metadata.name);
                    }
                }
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
        }
        let all = (seen.len() == count).then(|| began.elapsed());
        (early.unwrap_or(seen.len()), all)
    }

    /// Deletes the pods of a scheduler and waits until they are gone.
    pub(crate) async fn delete_pods(&self, scheduler: &str) {
        let labels = ListParams::default().labels(&format!("bench={scheduler}"));
        let now = DeleteParams::default().grace_period(0);
        let left = Arc::new(AtomicUsize::new(1));
        while left.load(Ordering::Relaxed) > 0 {
            let found = self.pods().list_metadata(&labels).await.expect("pods").items;
            left.store(found.len(), Ordering::Relaxed);
            let gone = stream::iter(found).map(|pod| {
                let (now, name) = (now.clone(), pod.metadata.name.unwrap_or_default());
                async move { drop(self.pods().delete(&name, &now).await) }
            });
            gone.buffer_unordered(AT_A_TIME).collect::<Vec<()>>().await;
        }
    }
}

fn has_condition(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| {
        all.iter().any(|one| one.type_ == "PodScheduled" && one.status == "False")
    })
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.as_scheduler);
    }
}

async fn client(kubeconfig: &Kubeconfig) -> kube::Client {
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await;
    kube::Client::try_from(config.expect("a cluster")).expect("a client")
}
