//! Agents that the server calls, according to the documented push protocol.
//!
//! The server calls `POST {api_endpoint}/jobs/` and `DELETE {api_endpoint}/jobs/{id}`; the agent reports with
//! `POST /gpu-workers/jobs/{id}/status`. A registration names the endpoint. The server only calls the address that the
//! registration came from, or one that its operator allows (`endpoint.rs`).
//!
//! The original worker answers nothing while a container runs, and knows none of its jobs after a restart. A probe
//! therefore tells an agent that does not answer from a port that accepts no connections, and the server asks an agent
//! that answers for its jobs with `GET {api_endpoint}/jobs/{id}`.

mod endpoint;
mod probe;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use url::Url;

use agentaflow_api::ids::{JobId, NodeId};
use agentaflow_api::link::{Ended, Message, Report, Stop, TaskKey, TaskUpdate};

use crate::core::{AgentMessage, Core, JobAnswer, PushNode, PushReach};
use endpoint::{Endpoint, EndpointProblem, permitted};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a connection attempt; shorter than that of a call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of health probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Endpoints without permission that are remembered as reported.
const MAX_REPORTED: usize = 10_000;
/// Clients of named endpoints that are kept.
const MAX_CLIENTS: usize = 1_000;

/// A push endpoint without permission.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ForbiddenEndpoint {
    node: NodeId,
    endpoint: String,
    problem: EndpointProblem,
}

/// Calls to all push agents. Cheap to clone.
#[derive(Clone)]
struct Pusher {
    core: Core,
    clients: Arc<Clients>,
    reported: Arc<Mutex<BTreeSet<ForbiddenEndpoint>>>,
}

/// A probe under way: at most one for each node.
#[derive(Debug)]
struct Probe {
    endpoint: String,
    task: JoinHandle<()>,
}

/// HTTP clients. A client of a named endpoint connects to the checked address and does not resolve the name again.
#[derive(Default)]
struct Clients(Mutex<FxHashMap<(String, SocketAddr), reqwest::Client>>);

/// Client of the agent of one node.
#[derive(Clone)]
struct PushClient {
    core: Core,
    http: reqwest::Client,
    node: NodeId,
    base: Url,
}

/// Calls push agents until the server stops.
pub async fn run(
    core: Core,
    mut messages: mpsc::UnboundedReceiver<AgentMessage>,
    stop: CancellationToken,
) {
    let pusher = Pusher { core, clients: Arc::default(), reported: Arc::default() };
    let mut probes = BTreeMap::new();
    let mut interval = tokio::time::interval(PROBE_INTERVAL);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = interval.tick() => pusher.probe_all(&mut probes),
            message = messages.recv() => {
                let Some(message) = message else { return };
                pusher.deliver(message);
            }
        }
    }
}

impl Clients {
    fn of(&self, endpoint: &Endpoint) -> Result<reqwest::Client, reqwest::Error> {
        let host = endpoint.url.host_str().unwrap_or_default().to_owned();
        let key = (host, endpoint.address);
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        let client = http_client(endpoint)?;
        if clients.len() >= MAX_CLIENTS {
            clients.clear();
        }
        clients.insert(key, client.clone());
        Ok(client)
    }
}

fn http_client(endpoint: &Endpoint) -> Result<reqwest::Client, reqwest::Error> {
    agentaflow_api::client::install_crypto();
    let mut builder = probe::with_keepalive(reqwest::Client::builder())
        .timeout(CALL_TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
        // An idle connection that the agent closes at the same moment would look like a failed call.
        .pool_max_idle_per_host(0)
        // A redirect would lead away from the address that was checked.
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    if let Some(name) = endpoint.url.domain() {
        builder = builder.resolve(name, endpoint.address);
    }
    if endpoint.url.scheme() == "http" {
        // Plain HTTP needs no system certificates, which take time and memory to read.
        builder = builder.tls_certs_only([]);
    }
    builder.build()
}

impl Pusher {
    /// Probes every push endpoint without a probe under way, and ends probes of former endpoints.
    fn probe_all(&self, probes: &mut BTreeMap<NodeId, Probe>) {
        let mut nodes: BTreeMap<NodeId, PushNode> =
            self.core.push_nodes().into_iter().map(|push| (push.id, push)).collect();
        probes.retain(|node, probe| {
            let current = nodes.get(node).is_some_and(|push| push.endpoint == probe.endpoint);
            if !current {
                probe.task.abort();
            }
            current && !probe.task.is_finished()
        });
        nodes.retain(|node, _| !probes.contains_key(node));
        for (node, push) in nodes {
            let (pusher, endpoint) = (self.clone(), push.endpoint.clone());
            let task = tokio::spawn(async move {
                if let Some(client) = pusher.client(push).await {
                    client.probe().await;
                }
            });
            probes.insert(node, Probe { endpoint, task });
        }
    }

    fn deliver(&self, message: AgentMessage) {
        let AgentMessage { node, message } = message;
        let mut nodes = self.core.push_nodes().into_iter();
        let Some(push) = nodes.find(|push| push.id == node) else { return };
        let pusher = self.clone();
        tokio::spawn(async move {
            let Some(client) = pusher.client(push).await else { return };
            match message {
                Message::Assign(assignment) => client.start(assignment.key).await,
                Message::Stop(stop) => client.stop(&stop).await,
                // The probe repeats unconfirmed messages.
                Message::Sync { .. } => {}
            }
        });
    }

    /// Client of a permitted endpoint. An endpoint without permission counts as unreachable and is reported once.
    async fn client(&self, push: PushNode) -> Option<PushClient> {
        let node = push.id;
        let allow = &self.core.settings().push_allow;
        let checked = permitted(&push.endpoint, push.peer.as_deref(), allow).await;
        let endpoint = match checked {
            Ok(endpoint) => endpoint,
            Err(problem) => {
                self.report(ForbiddenEndpoint { node, endpoint: push.endpoint, problem });
                self.core.record_probe(node, PushReach::Unreachable);
                return None;
            }
        };
        match self.clients.of(&endpoint) {
            Ok(http) => {
                Some(PushClient { core: self.core.clone(), http, node, base: endpoint.url })
            }
            Err(error) => {
                tracing::error!(%error, %node, "Cannot create an HTTP client for a push endpoint");
                None
            }
        }
    }

    fn report(&self, forbidden: ForbiddenEndpoint) {
        let (node, reason) = (forbidden.node, forbidden.problem.to_string());
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() < MAX_REPORTED && reported.insert(forbidden) {
            drop(reported);
            tracing::warn!(%node, %reason, "Push endpoint is not permitted");
            self.core.record_push_refused(node, &reason);
        }
    }
}

impl PushClient {
    /// Records if the agent answers, repeats unconfirmed messages (a call that failed, or that a killed server did not
    /// make), and asks for the jobs that the agent should have.
    async fn probe(&self) {
        let reach = self.reach().await;
        self.core.record_probe(self.node, reach);
        if reach != PushReach::Answers {
            return;
        }
        let work = self.core.push_work(self.node);
        for key in work.unconfirmed {
            match self.query_job(key.job).await {
                Some(JobAnswer::Known) => {
                    self.apply(Report { key, update: TaskUpdate::Accepted }).await;
                }
                _ => self.start(key).await,
            }
        }
        for stop in work.stops {
            self.stop(&stop).await;
        }
        for key in work.confirmed {
            let Some(answer) = self.query_job(key.job).await else { continue };
            if let Err(error) = self.core.record_job_answer(self.node, key, answer).await {
                tracing::warn!(%error, node = %self.node, "Cannot record the answer of a push agent");
            }
        }
    }

    async fn reach(&self) -> PushReach {
        let Some(url) = below(&self.base, "health") else { return PushReach::Unreachable };
        let silent = || self.core.record_probe(self.node, PushReach::Accepts);
        probe::reach(&self.http, url, CALL_TIMEOUT, silent).await
    }

    /// Asks the agent for a job; none without an answer.
    async fn query_job(&self, job: JobId) -> Option<JobAnswer> {
        let url = below(&self.base, &format!("jobs/{job}"))?;
        let response = self.http.get(url).send().await.ok()?;
        if response.status().as_u16() == 404 {
            return Some(JobAnswer::NoSuchPage);
        }
        let answer: Value = response.error_for_status().ok()?.json().await.ok()?;
        let not_found = answer.get("status").and_then(Value::as_str) == Some("not_found");
        Some(if not_found { JobAnswer::NotFound } else { JobAnswer::Known })
    }

    /// Sends a job: 200 accepts it, any other status refuses it. Without a response the job is withdrawn before it is
    /// placed elsewhere.
    async fn start(&self, key: TaskKey) {
        let (Some(body), Some(url)) = (self.core.push_request(key.job), below(&self.base, "jobs/"))
        else {
            return;
        };
        let refused = |detail: &str| TaskUpdate::Refused { detail: detail.to_owned() };
        let update = match self.http.post(url).json(&body).send().await {
            // 409: the agent has the job already.
            Ok(response) if response.status().is_success() || response.status().as_u16() == 409 => {
                TaskUpdate::Accepted
            }
            Ok(response) => match response.status().as_u16() {
                429 => refused("the agent is at its limit (429)"),
                503 => refused("the agent is not ready (503)"),
                status => refused(&format!("the agent answered {status}")),
            },
            Err(error) if error.is_connect() => refused("the agent cannot be reached"),
            Err(_) if self.delete(key.job).await => refused("the agent did not answer"),
            Err(_) => return,
        };
        self.apply(Report { key, update }).await;
    }

    /// Stops a job. A job that the agent does not know has ended.
    async fn stop(&self, stop: &Stop) {
        if self.delete(stop.key.job).await {
            let ended = Ended { stopped: Some(stop.cause), ..Ended::default() };
            self.apply(Report { key: stop.key, update: TaskUpdate::Ended(Box::new(ended)) }).await;
        }
    }

    async fn apply(&self, report: Report) {
        if let Err(error) = self.core.apply_push_update(self.node, report).await {
            tracing::warn!(%error, node = %self.node, "Cannot apply an update of a push agent");
        }
    }

    /// Deletes a job; true if the agent stopped it or certainly does not have it.
    async fn delete(&self, job: JobId) -> bool {
        let Some(url) = below(&self.base, &format!("jobs/{job}")) else { return false };
        let Ok(response) = self.http.delete(url).send().await else { return false };
        // An agent that has just accepted a job does not know it before it starts it.
        let unknown = response.status().as_u16() == 404 && self.core.is_settled(job);
        response.status().is_success() || unknown
    }
}

fn below(base: &Url, path: &str) -> Option<Url> {
    let mut base = base.clone();
    base.set_query(None);
    base.set_fragment(None);
    if !base.path().ends_with('/') {
        base.set_path(&format!("{}/", base.path()));
    }
    base.join(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A played agent that answers one request and returns its first line.
    async fn answer_once(listener: tokio::net::TcpListener, head: &'static str) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 1024];
        let read = stream.read(&mut bytes).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
        text.lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn a_call_connects_to_the_checked_address_and_follows_no_redirect() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // No resolver knows this name.
        let url: Url = format!("http://worker.invalid:{}/agent", address.port()).parse().unwrap();
        let http = Clients::default().of(&Endpoint { url: url.clone(), address }).unwrap();
        let moved =
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
        let agent = tokio::spawn(answer_once(listener, moved));
        let answer = http.get(below(&url, "health").unwrap()).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 302);
        assert_eq!(agent.await.unwrap(), "GET /agent/health HTTP/1.1");
    }

    #[test]
    fn paths_are_added_below_the_endpoint() {
        let base: Url = "http://h:1/agent?x=1".parse().unwrap();
        assert_eq!(below(&base, "jobs/").unwrap().as_str(), "http://h:1/agent/jobs/");
    }
}
