//! A running server and a small client for it.

use std::net::SocketAddr;

use agentaflow_server::serve::{self, Running};
use agentaflow_server::settings::Settings;
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

/// A server in its own directory.
pub(crate) struct Site {
    pub(crate) running: Running,
    pub(crate) client: reqwest::Client,
    pub(crate) folder: tempfile::TempDir,
}

/// Response of the server.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        if self.text.is_empty() { Value::Null } else { self.json() }
    }

    /// Asserts the form of an error and returns its body.
    #[track_caller]
    pub(crate) fn refused(self, status: u16) -> Value {
        let body = self.expect(status);
        assert!(body["detail"].as_str().is_some_and(|words| words.len() > 5), "{body}");
        assert!(body["code"].as_str().is_some_and(|word| !word.is_empty()), "{body}");
        body
    }
}

impl Site {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let running = start(&folder, change).await;
        agentaflow_api::client::install_crypto();
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .unwrap();
        Self { running, client, folder }
    }

    /// Restarts the server in the same directory.
    pub(crate) async fn again(self) -> Self {
        self.again_with(|_| {}).await
    }

    pub(crate) async fn again_with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let Self { running, client, folder } = self;
        running.stop().await;
        let running = start(&folder, change).await;
        Self { running, client, folder }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.running.url())
    }

    pub(crate) fn admin(&self) -> &str {
        self.running.admin_token.expose()
    }

    pub(crate) fn registration(&self) -> &str {
        self.running.registration_token.expose()
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        self.client.request(method, self.url(path))
    }

    /// Sends a call with a token (empty for none) and a body (null for none).
    pub(crate) async fn call(&self, token: &str, method: &str, path: &str, body: Value) -> Reply {
        let mut request = self.request(method, path);
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        if !body.is_null() {
            request = request.json(&body);
        }
        send(request).await
    }

    pub(crate) async fn get(&self, token: &str, path: &str) -> Reply {
        self.call(token, "GET", path, Value::Null).await
    }

    pub(crate) async fn post(&self, token: &str, path: &str, body: Value) -> Reply {
        self.call(token, "POST", path, body).await
    }

    /// Creates a user with the password `correct horse`, and returns a key of the user.
    pub(crate) async fn user(&self, name: &str, role: &str) -> String {
        let user = json!({"username": name, "password": "correct horse", "role": role});
        self.post(self.admin(), "/users", user).await.expect(201);
        let login = json!({"username": name, "password": "correct horse"});
        let tokens = self.post("", "/auth/login", login).await.expect(200);
        tokens["access_token"].as_str().unwrap().to_owned()
    }

    /// Registers a node and returns the response.
    pub(crate) async fn node(&self, name: &str) -> Value {
        let node = json!({"node_name": name, "gpu_count": 2, "gpu_type": "RTX 4090", "gpu_memory_total": 49152,
            "cpu_cores": 16, "memory_total": 32768});
        self.post(self.registration(), "/gpu-workers/nodes/register", node).await.expect(200)
    }

    /// State of the store as text, to detect writes.
    pub(crate) async fn written(&self) -> String {
        let store = self.running.core.store();
        let loaded = store.load("2026-01").await.unwrap();
        let jobs: Vec<_> = loaded.jobs.iter().map(|job| (job.id, job.state.status)).collect();
        let users: Vec<_> = loaded.users.iter().map(|user| format!("{user:?}")).collect();
        let nodes: Vec<_> = loaded.nodes.iter().map(|node| (node.id, node.updated_at)).collect();
        let queues: Vec<_> = loaded.queues.iter().map(|queue| format!("{queue:?}")).collect();
        format!("{:?} {jobs:?} {users:?} {nodes:?} {queues:?}", loaded.last)
    }
}

pub(crate) async fn send(request: RequestBuilder) -> Reply {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Reply { status, headers, text: response.text().await.unwrap() }
}

async fn start(folder: &tempfile::TempDir, change: impl FnOnce(&mut Settings)) -> Running {
    let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut settings = Settings::new(listen, folder.path().join("data"));
    change(&mut settings);
    serve::start(settings).await.unwrap()
}
