//! Paths of the metrics API.

use std::sync::Arc;

use agentaflow_kube_core::crd::GpuQueue;
use agentaflow_kube_serve::{Access, FrontProxy, Rights};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{Failure, MetricValue, list};
use super::readings::Source;

pub(super) const GROUP: &str = "custom.metrics.k8s.io";
pub(super) const VERSION: &str = "v1beta2";
const PODS: &str = "pods";
const QUEUES: &str = "gpuqueues.agentaflow.io";
/// Mean utilization of the GPUs of a pod in percent.
const GPU_UTILIZATION: &str = "gpu_utilization";
/// Pending workloads of a queue.
const QUEUE_DEPTH: &str = "queue_depth";
/// Selects all pods.
const ALL: &str = "*";

pub(super) struct Metrics {
    client: Client,
    front_proxy: FrontProxy,
    rights: Rights,
    source: Source,
}

type Answer = Result<Json<Value>, Failure>;

pub(super) fn router(client: &Client, namespace: &str, front_proxy: FrontProxy) -> Router {
    let metrics = Metrics {
        client: client.clone(),
        front_proxy,
        rights: Rights::new(client.clone()),
        source: Source::new(client, namespace),
    };
    let root = "/apis/custom.metrics.k8s.io/v1beta2";
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/apis/custom.metrics.k8s.io", get(async || Json(group())))
        .route(root, get(async || Json(resources())))
        .route(
            &format!("{root}/namespaces/{{namespace}}/{{resource}}/{{name}}/{{metric}}"),
            get(namespaced),
        )
        .route(&format!("{root}/{{resource}}/{{name}}/{{metric}}"), get(cluster))
        .fallback(async || Failure::not_found("the path"))
        .with_state(Arc::new(metrics))
}

/// Versions of the group, for discovery.
fn group() -> Value {
    let version = json!({"groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION});
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP,
        "versions": [version], "preferredVersion": version,
    })
}

/// Metrics of the version, for discovery.
fn resources() -> Value {
    let resource = |resource: &str, metric: &str| {
        json!({
            "name": format!("{resource}/{metric}"), "singularName": "", "namespaced": true,
            "kind": "MetricValueList", "verbs": ["get"],
        })
    };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [resource(PODS, GPU_UTILIZATION), resource(QUEUES, QUEUE_DEPTH)],
    })
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selectors {
    label_selector: Option<String>,
    metric_label_selector: Option<String>,
}

/// A metric of objects.
#[derive(Debug, Deserialize)]
struct Wanted {
    /// None for a path without namespace.
    namespace: Option<String>,
    resource: String,
    name: String,
    metric: String,
}

async fn namespaced(
    State(metrics): State<Arc<Metrics>>,
    Path(wanted): Path<Wanted>,
    Query(selectors): Query<Selectors>,
    headers: HeaderMap,
) -> Answer {
    metrics.answer(&headers, &wanted, &selectors).await
}

async fn cluster(
    State(metrics): State<Arc<Metrics>>,
    Path(wanted): Path<Wanted>,
    Query(selectors): Query<Selectors>,
    headers: HeaderMap,
) -> Answer {
    metrics.answer(&headers, &wanted, &selectors).await
}

impl Metrics {
    async fn answer(&self, headers: &HeaderMap, wanted: &Wanted, selectors: &Selectors) -> Answer {
        self.authorize(headers, wanted).await?;
        if selectors.metric_label_selector.as_ref().is_some_and(|selector| !selector.is_empty()) {
            let message = "the metrics of agentaflow have no labels: omit `metricLabelSelector`";
            return Err(Failure::bad_request(message));
        }
        match (wanted.resource.as_str(), wanted.metric.as_str(), &wanted.namespace) {
            (PODS, GPU_UTILIZATION, Some(namespace)) => {
                self.gpu_utilization(namespace, &wanted.name, selectors).await
            }
            (QUEUES, QUEUE_DEPTH, namespace) => {
                self.queue_depth(namespace.as_deref(), &wanted.name).await
            }
            (resource, metric, _) => {
                Err(Failure::not_found(format!("metric {metric} of {resource}")))
            }
        }
    }

    /// The API server forwards only permitted requests; a review makes this port safe on its own.
    async fn authorize(&self, headers: &HeaderMap, wanted: &Wanted) -> Result<(), Failure> {
        let user = self.front_proxy.user(headers);
        let user = user.ok_or_else(|| Failure::forbidden("the request names no user"))?;
        let access = Access {
            verb: "get",
            group: GROUP,
            resource: wanted.resource.clone(),
            subresource: wanted.metric.clone(),
            namespace: wanted.namespace.clone().unwrap_or_default(),
            name: wanted.name.clone(),
        };
        if self.rights.allow(&user, &access).await? {
            return Ok(());
        }
        let Wanted { resource, metric, .. } = wanted;
        let message = format!("user {} cannot get {resource}/{metric} in {GROUP}", user.name);
        Err(Failure::forbidden(message))
    }

    /// Pods without a report are left out: autoscalers have rules for missing values.
    async fn gpu_utilization(&self, namespace: &str, name: &str, selectors: &Selectors) -> Answer {
        let names = if name == ALL {
            self.pods(namespace, selectors.label_selector.as_deref().unwrap_or_default()).await?
        } else {
            vec![name.to_owned()]
        };
        let readings = self.source.current().await?;
        let value = |pod: &String| {
            let reading = readings.of(namespace, pod)?;
            let object =
                json!({"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": pod});
            Some(value(object, GPU_UTILIZATION, reading.at, reading.quantity()))
        };
        let values: Vec<MetricValue> = names.iter().filter_map(value).collect();
        if values.is_empty() && name != ALL {
            return Err(Failure::not_found(format!(
                "metric {GPU_UTILIZATION} of pod {namespace}/{name}"
            )));
        }
        Ok(list(&values))
    }

    async fn pods(&self, namespace: &str, selector: &str) -> Result<Vec<String>, Failure> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let selected = ListParams::default().labels(selector).match_any();
        let found = pods.list_metadata(&selected).await?;
        Ok(found.items.into_iter().filter_map(|pod| pod.metadata.name).collect())
    }

    /// A request in a namespace finds only the queues that serve it.
    async fn queue_depth(&self, namespace: Option<&str>, name: &str) -> Answer {
        let queues: Api<GpuQueue> = Api::all(self.client.clone());
        let all = queues.list(&ListParams::default().match_any()).await?;
        let serves = |queue: &&GpuQueue| {
            let mut served = queue.spec.namespaces.iter();
            namespace.is_none_or(|namespace| served.any(|one| one == namespace || one == "*"))
        };
        let mut found =
            all.items.iter().filter(|queue| queue.metadata.name.as_deref() == Some(name));
        let Some(queue) = found.next().filter(serves) else {
            return Err(Failure::not_found(format!("GPUQueue {name} of this namespace")));
        };
        let object = json!({"kind": "GPUQueue", "apiVersion": "agentaflow.io/v1", "name": name});
        let pending = queue.status.as_ref().map_or(0, |status| status.pending);
        Ok(list(&[value(object, QUEUE_DEPTH, Timestamp::now(), pending.to_string())]))
    }
}

fn value(object: Value, metric: &str, at: Timestamp, quantity: String) -> MetricValue {
    let metric = json!({"name": metric});
    MetricValue { described_object: object, metric, timestamp: at, value: quantity }
}
