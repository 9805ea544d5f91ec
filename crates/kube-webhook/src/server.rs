//! HTTPS server of the webhook.

use agentaflow_kube_core::slim::PriorityClass;
use agentaflow_kube_serve::{Port, ServeError, Trust};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::owners::Owners;
use super::pods::{self, Class, Rules};
use super::review::{AdmissionResult, Request, Review};
use super::{Options, configuration, jobs, queues, workloads};

/// Maximum request body in bytes: a request contains an object at most twice, and the API server rejects objects above
/// three megabytes.
const LARGEST_REQUEST: usize = 7 << 20;
/// Concurrent requests about pods, and about other objects; further requests wait without using memory.
const CONCURRENT_REQUESTS: usize = 16;
/// Timeout of a request; no API server waits longer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for reading a priority class. The whole admission may take three seconds.
const CLASS_TIMEOUT: Duration = Duration::from_millis(800);

pub(super) async fn serve(
    options: Options,
    client: Client,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let state = Arc::new(WebhookState {
        owners: Owners::new(client.clone()),
        client: client.clone(),
        options: options.clone(),
    });
    let port = Port::bind("admission", options.listen, options.certificate(), None)?;
    port.serve(client, router(state.clone()), Configurations(state), stop).await
}

/// The webhook configurations.
struct Configurations(Arc<WebhookState>);

impl Trust for Configurations {
    async fn trust(&self, bundle: &str) -> bool {
        let WebhookState { options, client, .. } = &*self.0;
        match configuration::install(options, client, bundle).await {
            Ok(()) => true,
            Err(error) => {
                let name = &options.configuration;
                tracing::warn!(%error, "cannot write the webhook configurations `{name}`");
                false
            }
        }
    }
}

/// Shared state of the handlers.
struct WebhookState {
    client: Client,
    owners: Owners,
    options: Options,
}

/// Validating a workload makes the API server send a request about its pods: pods have their own concurrency limit,
/// so that the handlers cannot deadlock.
fn router(state: Arc<WebhookState>) -> Router {
    bounded(pod_routes())
        .merge(bounded(other_routes()))
        .route("/healthz", get(async || "ok"))
        .with_state(state)
}

fn pod_routes() -> Router<Arc<WebhookState>> {
    Router::new()
        .route(
            "/mutate-pods",
            post(async |State(state): State<Arc<WebhookState>>, body: Bytes| {
                answer(&body, async |request| state.pod(request, false).await).await
            }),
        )
        .route(
            "/mutate-pods/opted-in",
            post(async |State(state): State<Arc<WebhookState>>, body: Bytes| {
                answer(&body, async |request| state.pod(request, true).await).await
            }),
        )
}

fn other_routes() -> Router<Arc<WebhookState>> {
    Router::new()
        .route(
            "/mutate-jobs",
            post(async |State(state): State<Arc<WebhookState>>, body: Bytes| {
                answer(&body, async |request| jobs::take(state.rules(false), request)).await
            }),
        )
        .route(
            "/mutate-jobs/opted-in",
            post(async |State(state): State<Arc<WebhookState>>, body: Bytes| {
                answer(&body, async |request| jobs::take(state.rules(true), request)).await
            }),
        )
        .route(
            "/validate-workloads",
            post(async |State(state): State<Arc<WebhookState>>, body: Bytes| {
                let scheduler = &state.options.scheduler_name;
                answer(&body, async |request| {
                    workloads::validate(&state.client, scheduler, request).await
                })
                .await
            }),
        )
        .route(
            "/validate-queues",
            post(async |State(state): State<Arc<WebhookState>>, body: Bytes| {
                answer(&body, async |request| state.queue(request).await).await
            }),
        )
}

/// Adds a concurrency limit and a body limit.
fn bounded(routes: Router<Arc<WebhookState>>) -> Router<Arc<WebhookState>> {
    let places = Arc::new(Semaphore::new(CONCURRENT_REQUESTS));
    routes
        .layer(DefaultBodyLimit::max(LARGEST_REQUEST))
        .layer(middleware::from_fn_with_state(places, limit_concurrency))
}

/// Limits concurrent requests before their bodies are read.
async fn limit_concurrency(
    State(places): State<Arc<Semaphore>>,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    let answer = async {
        let _place = places.acquire().await;
        next.run(request).await
    };
    let slow = |_| StatusCode::REQUEST_TIMEOUT.into_response();
    tokio::time::timeout(REQUEST_TIMEOUT, answer).await.unwrap_or_else(slow)
}

async fn answer(
    body: &[u8],
    decide: impl AsyncFnOnce(&Request) -> AdmissionResult,
) -> Result<Json<Value>, (StatusCode, String)> {
    let review: Review = serde_json::from_slice(body).map_err(|error| {
        (StatusCode::BAD_REQUEST, format!("this is not an AdmissionReview: {error}"))
    })?;
    if !review.request.is_of_a_namespace_or_none() {
        let words = "invalid namespace";
        return Err((StatusCode::BAD_REQUEST, words.to_owned()));
    }
    let verdict = decide(&review.request).await;
    if !verdict.problems.is_empty() {
        tracing::debug!(
            namespace = review.request.namespace,
            user = review.request.user_info.username,
            problems = verdict.message(),
            "refused"
        );
    }
    Ok(Json(verdict.answer(&review.request.uid)))
}

impl WebhookState {
    fn rules(&self, opted_in: bool) -> Rules<'_> {
        Rules { scheduler: &self.options.scheduler_name, home: &self.options.namespace, opted_in }
    }

    async fn pod(&self, request: &Request, opted_in: bool) -> AdmissionResult {
        let rules = self.rules(opted_in);
        if !pods::is_eligible(rules, request) {
            return AdmissionResult::default();
        }
        let owners = self.owners.of(&request.namespace, &request.object).await;
        let class = match pods::replaceable_class(&request.object, &owners) {
            Some(name) => self.origin_of(name).await,
            None => Class::Default,
        };
        pods::take(rules, &request.object, &owners, class)
    }

    /// A class that cannot be read in time counts as explicit: the pod keeps it.
    async fn origin_of(&self, class: &str) -> Class {
        let api: Api<PriorityClass> = Api::all(self.client.clone());
        let found = tokio::time::timeout(CLASS_TIMEOUT, api.get_opt(class)).await;
        let found = found.ok().and_then(Result::ok).flatten();
        let is_default = found.and_then(|class| class.global_default).unwrap_or(false);
        if is_default { Class::Default } else { Class::Explicit }
    }

    async fn queue(&self, request: &Request) -> AdmissionResult {
        if !request.changes_spec() {
            return AdmissionResult::default();
        }
        let spec = match serde_json::from_value(request.object["spec"].clone()) {
            Ok(spec) => spec,
            Err(error) => {
                return AdmissionResult::refuse(format!("cannot decode the queue: {error}"));
            }
        };
        let name = request.object["metadata"]["name"].as_str().unwrap_or_default();
        match workloads::all_queues(&self.client).await {
            Ok(others) => queues::check(name, &spec, &others),
            Err(error) => {
                tracing::warn!(%error, "admission cannot read the queues");
                queues::check(name, &spec, &queues::Queues::new())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::Body;
    use serde_json::json;
    use tower::ServiceExt as _;

    use super::*;

    /// API server that never responds, and counts requests.
    fn silent(asked: Arc<AtomicUsize>) -> Client {
        let never = move |_: http::Request<kube::client::Body>| {
            asked.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        };
        Client::new(tower::service_fn(never), "default")
    }

    fn question(path: &str, object: &Value) -> http::Request<Body> {
        let request =
            json!({"uid": "1", "operation": "CREATE", "namespace": "team", "object": object});
        let body = Body::from(json!({ "request": request }).to_string());
        http::Request::post(path).body(body).unwrap()
    }

    #[tokio::test]
    async fn pods_are_answered_while_any_number_of_workloads_is_being_checked() {
        let asked = Arc::new(AtomicUsize::new(0));
        let client = silent(asked.clone());
        let owners = Owners::new(client.clone());
        let router = router(Arc::new(WebhookState { owners, client, options: Options::default() }));
        let spec = json!({"gpuMemoryRequired": 0, "podTemplate": {}});
        let workload = json!({"apiVersion": "agentaflow.io/v1", "kind": "GPUWorkload", "metadata": {}, "spec": spec});
        for _ in 0..2 * CONCURRENT_REQUESTS {
            tokio::spawn(router.clone().oneshot(question("/validate-workloads", &workload)));
        }
        while asked.load(Ordering::Relaxed) < CONCURRENT_REQUESTS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let pod = json!({"metadata": {"name": "w-0"}, "spec": {"schedulerName": "agentaflow"}});
        let answered = router.oneshot(question("/mutate-pods", &pod));
        let answered = tokio::time::timeout(Duration::from_secs(3), answered).await;
        assert_eq!(answered.expect("an answer in time").unwrap().status(), StatusCode::OK);
        assert_eq!(
            asked.load(Ordering::Relaxed),
            CONCURRENT_REQUESTS,
            "the others wait their turn"
        );
    }
}
