//! Fake Docker daemon that counts requests. Creates never finish, and lists of leased containers fail.

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

#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<[AtomicUsize; 2]>);

impl Calls {
    pub(crate) fn creates(&self) -> usize {
        self.0[0].load(Ordering::Relaxed)
    }

    /// Number of lists of leased containers.
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

/// Listens at this socket until the task is aborted.
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
    // Clients may prefix the path with a version.
    let routes = routes.clone().nest("/{version}", routes);
    let listener = UnixListener::bind(socket).unwrap();
    let serving = tokio::spawn(async move {
        let _ = axum::serve(listener, routes).await;
    });
    (serving, calls)
}
