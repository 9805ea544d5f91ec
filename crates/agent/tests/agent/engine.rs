//! Just enough of a Docker engine to see what it is asked. Containers are never made; leased ones cannot be listed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// What the engine was asked.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<[AtomicUsize; 2]>);

impl Calls {
    /// How often it was to make a container.
    pub(crate) fn creates(&self) -> usize {
        self.0[0].load(Ordering::Relaxed)
    }

    /// How often it was asked for leased containers.
    pub(crate) fn leased(&self) -> usize {
        self.0[1].load(Ordering::Relaxed)
    }

    fn list(&self, uri: &Uri) -> Response {
        if uri.query().is_some_and(|query| query.contains("leased")) {
            self.0[1].fetch_add(1, Ordering::Relaxed);
            return (StatusCode::INTERNAL_SERVER_ERROR, "not now").into_response();
        }
        Json(json!([])).into_response()
    }
}

/// Listens at this socket until it is aborted.
pub(crate) fn start(socket: &Path) -> (JoinHandle<()>, Calls) {
    let calls = Calls::default();
    let (creates, lists) = (calls.clone(), calls.clone());
    let version = || async { Json(json!({"ApiVersion": "1.44", "MinAPIVersion": "1.24"})) };
    let create = move || {
        creates.0[0].fetch_add(1, Ordering::Relaxed);
        std::future::pending::<()>()
    };
    let routes = Router::new()
        .route("/version", get(version))
        .route("/images/{*rest}", get(|| async { Json(json!({"Id": "sha256:1"})) }))
        .route("/containers/create", post(create))
        .route("/containers/json", get(move |uri: Uri| async move { lists.list(&uri) }));
    // Clients may put a version before everything.
    let routes = routes.clone().nest("/{version}", routes);
    let listener = UnixListener::bind(socket).unwrap();
    let serving = tokio::spawn(async move {
        let _ = axum::serve(listener, routes).await;
    });
    (serving, calls)
}
