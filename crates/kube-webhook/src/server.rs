//! HTTPS server of the webhook.

use agentaflow_kube_core::slim::PriorityClass;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use bytes::Bytes;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::certificates::{self, Identity};
use super::owners::Owners;
use super::pods::{self, Class, Rules};
use super::review::{AdmissionResult, Request, Review};
use super::{Options, WebhookError, configuration, jobs, queues, workloads};

/// Maximum request body in bytes: a request contains an object at most twice, and the API server rejects objects above
/// three megabytes.
const LARGEST_REQUEST: usize = 7 << 20;
/// Concurrent requests about pods, and about other objects; further requests wait without using memory.
const CONCURRENT_REQUESTS: usize = 16;
/// Timeout of a request; no API server waits longer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for reading a priority class. The whole admission may take three seconds.
const CLASS_TIMEOUT: Duration = Duration::from_millis(800);
/// Time between two checks of the certificate.
const CERTIFICATE_INTERVAL: Duration = Duration::from_mins(1);
/// Delay before the cluster is queried again after a failure.
const RETRY: Duration = Duration::from_secs(2);
/// Grace period for open requests at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

pub(super) async fn serve(
    options: Options,
    client: Client,
    stop: CancellationToken,
) -> Result<(), WebhookError> {
    let address = options.listen;
    let listen = |source| WebhookError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(listen)?;
    listener.set_nonblocking(true).map_err(listen)?;
    let (identity, tls) = tokio::select! {
        first = first_identity(&options, &client) => first,
        () = stop.cancelled() => return Ok(()),
    };
    let handle = Handle::new();
    let server = axum_server::from_tcp_rustls(listener, tls.clone()).map_err(listen)?;
    let router = router(Arc::new(WebhookState {
        owners: Owners::new(client.clone()),
        client: client.clone(),
        options: options.clone(),
    }));
    let server = server.handle(handle.clone()).serve(router.into_make_service());
    tokio::pin!(server);
    let ended = |source| WebhookError::Serve { address, source };
    tokio::select! {
        result = &mut server => return result.map_err(ended),
        () = keep_identity(&options, &client, identity, &tls) => {}
        () = stop.cancelled() => {}
    }
    handle.graceful_shutdown(Some(SHUTDOWN_GRACE));
    server.await.map_err(ended)
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

/// Waits for the first certificate.
async fn first_identity(options: &Options, client: &Client) -> (Identity, RustlsConfig) {
    loop {
        let found = certificates::current(options, client).await;
        match found.and_then(|identity| Ok((identity.server()?, identity))) {
            Ok((server, identity)) => {
                return (identity, RustlsConfig::from_config(server));
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(error, "admission has no certificate yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Renews the certificate and the CA bundle of the configurations; never returns.
async fn keep_identity(options: &Options, client: &Client, first: Identity, tls: &RustlsConfig) {
    let mut shown = first;
    loop {
        let found = certificates::current(options, client).await;
        let trusted = match found.and_then(|identity| Ok((identity.server()?, identity))) {
            Ok((server, identity)) => {
                // The API server must trust a certificate before it is served.
                let trusted = trust(options, client, &identity).await;
                if trusted && identity != shown {
                    tls.reload_from_config(server);
                    tracing::info!("admission serves a new certificate");
                    shown = identity;
                }
                trusted
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "cannot check the certificate");
                false
            }
        };
        tokio::time::sleep(if trusted { CERTIFICATE_INTERVAL } else { RETRY }).await;
    }
}

async fn trust(options: &Options, client: &Client, identity: &Identity) -> bool {
    let Some(bundle) = identity.bundle() else { return true };
    match configuration::install(options, client, &bundle).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "cannot write the webhook configurations `{}`", options.configuration);
            false
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
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
