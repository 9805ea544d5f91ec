//! Agents that the server calls, according to the documented push protocol.
//!
//! The server calls `POST {api_endpoint}/jobs/` and `DELETE {api_endpoint}/jobs/{id}`; the agent reports with
//! `POST /gpu-workers/jobs/{id}/status`. A registration names the endpoint. The server only calls the address that the
//! registration came from, or one that its operator allows: otherwise a registration token could direct it anywhere.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use url::Url;

use agentaflow_api::ids::{JobId, NodeId};
use agentaflow_api::link::{Ended, Message, Report, Stop, TaskKey, TaskUpdate};

use crate::core::{AgentMessage, Core, PushNode};

/// Timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of health probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Endpoints without permission that are remembered as reported.
const MAX_REPORTED: usize = 10_000;

/// A push endpoint without permission.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ForbiddenEndpoint {
    node: NodeId,
    endpoint: String,
}

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
    let Ok(http) = http_client() else {
        tracing::error!("Cannot create an HTTP client; push agents get no work");
        return;
    };
    let mut probes = tokio::time::interval(PROBE_INTERVAL);
    let mut reported = BTreeSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = probes.tick() => probe_all(&core, &http, &mut reported),
            message = messages.recv() => {
                let Some(message) = message else { return };
                deliver(&core, &http, message);
            }
        }
    }
}

fn http_client() -> Result<reqwest::Client, reqwest::Error> {
    agentaflow_api::client::install_crypto();
    reqwest::Client::builder()
        .timeout(CALL_TIMEOUT)
        // A redirect would lead away from the address that was checked.
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
}

/// Probes every push endpoint. An endpoint without permission is reported once.
fn probe_all(core: &Core, http: &reqwest::Client, reported: &mut BTreeSet<ForbiddenEndpoint>) {
    for push in core.push_nodes() {
        let node = push.id;
        match PushClient::new(core, http, &push) {
            Ok(client) => {
                tokio::spawn(async move { client.probe().await });
            }
            Err(reason) => {
                let forbidden = ForbiddenEndpoint { node, endpoint: push.endpoint };
                if reported.len() < MAX_REPORTED && reported.insert(forbidden) {
                    tracing::warn!(%node, %reason, "Push endpoint is not permitted");
                    core.record_push_refused(node, &reason);
                }
                core.record_probe(node, false);
            }
        }
    }
}

fn deliver(core: &Core, http: &reqwest::Client, message: AgentMessage) {
    let AgentMessage { node, message } = message;
    let Some(push) = core.push_nodes().into_iter().find(|push| push.id == node) else { return };
    let Ok(client) = PushClient::new(core, http, &push) else { return };
    tokio::spawn(async move {
        match message {
            Message::Assign(assignment) => client.start(assignment.key).await,
            Message::Stop(stop) => client.stop(&stop).await,
            // The probe repeats unconfirmed messages.
            Message::Sync { .. } => {}
        }
    });
}

impl PushClient {
    fn new(core: &Core, http: &reqwest::Client, push: &PushNode) -> Result<Self, String> {
        let base =
            permitted_url(&push.endpoint, push.peer.as_deref(), &core.settings().push_allow)?;
        Ok(Self { core: core.clone(), http: http.clone(), node: push.id, base })
    }

    /// Records if the agent answers, and repeats unconfirmed messages: a call that failed, or that a killed server did
    /// not make.
    async fn probe(&self) {
        let answers = match below(&self.base, "health") {
            Some(url) => {
                let response = self.http.get(url).send().await;
                response.is_ok_and(|response| response.status().is_success())
            }
            None => false,
        };
        self.core.record_probe(self.node, answers);
        if answers {
            let unconfirmed = self.core.unconfirmed_pushes(self.node);
            for key in unconfirmed.tasks {
                self.start(key).await;
            }
            for stop in unconfirmed.stops {
                self.stop(&stop).await;
            }
        }
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

    /// Deletes a job; true if the agent stopped it or does not know it.
    async fn delete(&self, job: JobId) -> bool {
        let Some(url) = below(&self.base, &format!("jobs/{job}")) else { return false };
        let response = self.http.delete(url).send().await;
        response.is_ok_and(|response| {
            response.status().is_success() || response.status().as_u16() == 404
        })
    }
}

/// URL of an endpoint, if the server may call it.
fn permitted_url(endpoint: &str, peer: Option<&str>, allow: &[String]) -> Result<Url, String> {
    let url: Url = endpoint.parse().map_err(|_| format!("`{endpoint}` is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https")
        || !url.username().is_empty()
        || url.password().is_some()
    {
        return Err(format!("`{endpoint}` is not a plain http URL"));
    }
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let with_port = format!("{host}:{}", url.port_or_known_default().unwrap_or(80));
    let listed = allow.iter().any(|allowed| *allowed == host || *allowed == with_port);
    let same =
        |peer: &str| match (peer.parse::<std::net::IpAddr>(), host.parse::<std::net::IpAddr>()) {
            (Ok(peer), Ok(host)) => peer.to_canonical() == host.to_canonical(),
            _ => false,
        };
    if listed || peer.is_some_and(same) {
        Ok(url)
    } else {
        Err(format!(
            "`{host}` is neither the address that the node registered from nor permitted with --push-allow"
        ))
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

    fn may(endpoint: &str, peer: &str, allow: &[&str]) -> bool {
        let allow: Vec<String> = allow.iter().map(ToString::to_string).collect();
        permitted_url(endpoint, Some(peer), &allow).is_ok()
    }

    #[test]
    fn only_the_registering_address_and_permitted_ones_are_called() {
        assert!(may("http://10.0.0.7:8080", "10.0.0.7", &[]));
        assert!(may("http://[::1]:8080", "::1", &[]));
        assert!(may("http://127.0.0.1:9000", "::ffff:127.0.0.1", &[]));
        assert!(!may("http://10.0.0.8:8080", "10.0.0.7", &[]));
        assert!(!may("http://metadata.internal/", "10.0.0.7", &[]));
        assert!(may("http://worker-1:8080", "10.0.0.7", &["worker-1"]));
        assert!(!may("http://worker-1:9090", "10.0.0.7", &["worker-1:8080"]));
        assert!(!may("file:///etc/passwd", "10.0.0.7", &[]));
        assert!(!may("http://user:pass@10.0.0.7/", "10.0.0.7", &[]));
    }

    #[test]
    fn paths_are_added_below_the_endpoint() {
        let base: Url = "http://h:1/agent?x=1".parse().unwrap();
        assert_eq!(below(&base, "jobs/").unwrap().as_str(), "http://h:1/agent/jobs/");
    }
}
