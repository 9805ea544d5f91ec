//! Agents that are called instead of calling, in the way of the worker system's documents.
//!
//! The server calls `POST {api_endpoint}/jobs/` and `DELETE {api_endpoint}/jobs/{id}`; the agent reports with
//! `POST /gpu-workers/jobs/{id}/status`. A registration names the endpoint, and a registration is all it takes
//! to name one, so the server only calls the address that the registration came from, or one that its operator
//! allows: otherwise anybody with a registration token could make it call anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use url::Url;

use agentaflow_api::link::{Ended, Message, Report, Stop, TaskKey, TaskUpdate};

use crate::core::Core;

/// A call that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Endpoints are asked whether they are there this often.
const PROBE: Duration = Duration::from_secs(5);

/// Endpoints that may not be called and are remembered as told of.
const MOST_TOLD: usize = 10_000;

/// Calls push agents until the server stops.
pub async fn run(
    core: Core,
    mut messages: mpsc::UnboundedReceiver<(i64, Message)>,
    stop: CancellationToken,
) {
    let Ok(client) = client() else {
        tracing::error!("no HTTP client could be made; agents that are pushed to get no work");
        return;
    };
    let mut probes = tokio::time::interval(PROBE);
    let mut told = BTreeSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = probes.tick() => probe_all(&core, &client, &mut told),
            message = messages.recv() => {
                let Some((node, message)) = message else { return };
                deliver(&core, &client, node, message);
            }
        }
    }
}

fn client() -> Result<reqwest::Client, reqwest::Error> {
    agentaflow_api::client::install_crypto();
    reqwest::Client::builder()
        .timeout(PATIENCE)
        // A redirect would lead away from the address that was checked.
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
}

/// Asks every push endpoint whether it is there. One that may not be called is told of once.
fn probe_all(core: &Core, client: &reqwest::Client, told: &mut BTreeSet<(i64, String)>) {
    for (node, endpoint, peer) in core.push_nodes() {
        let base = match allowed(&endpoint, peer.as_deref(), &core.settings().push_allow) {
            Ok(base) => base,
            Err(why) => {
                if told.len() < MOST_TOLD && told.insert((node, endpoint)) {
                    tracing::warn!(node, %why, "a push endpoint is not called");
                    core.push_refused(node, &why);
                }
                core.push_answers(node, false);
                continue;
            }
        };
        let (core, client) = (core.clone(), client.clone());
        tokio::spawn(async move {
            let answers = answers(&client, &base).await;
            core.push_answers(node, answers);
            if answers {
                catch_up(&core, &client, node, &base).await;
            }
        });
    }
}

/// Says again what was not answered for: a call that failed, or that a killed server did not make.
async fn catch_up(core: &Core, client: &reqwest::Client, node: i64, base: &Url) {
    let (tasks, stops) = core.push_due(node);
    for key in tasks {
        start(core, client, node, base, key).await;
    }
    for stop in stops {
        halt(core, client, node, base, &stop).await;
    }
}

async fn answers(client: &reqwest::Client, base: &Url) -> bool {
    let Some(url) = below(base, "health") else { return false };
    client.get(url).send().await.is_ok_and(|response| response.status().is_success())
}

fn deliver(core: &Core, client: &reqwest::Client, node: i64, message: Message) {
    let known: BTreeMap<i64, (String, Option<String>)> =
        core.push_nodes().into_iter().map(|(id, endpoint, peer)| (id, (endpoint, peer))).collect();
    let Some((endpoint, peer)) = known.get(&node).cloned() else { return };
    let (core, client) = (core.clone(), client.clone());
    tokio::spawn(async move {
        let Ok(base) = allowed(&endpoint, peer.as_deref(), &core.settings().push_allow) else {
            return;
        };
        match message {
            Message::Assign(assignment) => start(&core, &client, node, &base, assignment.key).await,
            Message::Stop(stop) => halt(&core, &client, node, &base, &stop).await,
            // The regular look says what was missed.
            Message::Sync { .. } => {}
        }
    });
}

/// Hands a job over: 200 is taken, another answer is not. No answer may be either: the job is taken back before
/// it is given to another.
async fn start(core: &Core, client: &reqwest::Client, node: i64, base: &Url, key: TaskKey) {
    let (Some(body), Some(url)) = (core.push_request(key.job), below(base, "jobs/")) else {
        return;
    };
    let update = match client.post(url).json(&body).send().await {
        // 409: it has it already.
        Ok(response) if response.status().is_success() || response.status().as_u16() == 409 => {
            TaskUpdate::Accepted
        }
        Ok(response) => TaskUpdate::Refused {
            detail: match response.status().as_u16() {
                429 => "its agent says that it is full".to_owned(),
                503 => "its agent says that it is not ready".to_owned(),
                other => format!("its agent answered {other}"),
            },
        },
        Err(error) if error.is_connect() => {
            TaskUpdate::Refused { detail: "its agent cannot be reached".to_owned() }
        }
        Err(_) if delete(client, base, key.job).await => {
            TaskUpdate::Refused { detail: "its agent did not answer".to_owned() }
        }
        Err(_) => return,
    };
    if let Err(error) = core.push_update(node, Report { key, update }).await {
        tracing::warn!(%error, "update of a push agent was not accepted");
    }
}

/// Stops a job. One that the agent does not know any more is over.
async fn halt(core: &Core, client: &reqwest::Client, node: i64, base: &Url, stop: &Stop) {
    if delete(client, base, stop.key.job).await {
        let ended = Ended { stopped: Some(stop.cause), ..Ended::default() };
        let report = Report { key: stop.key, update: TaskUpdate::Ended(Box::new(ended)) };
        if let Err(error) = core.push_update(node, report).await {
            tracing::warn!(%error, "update of a push agent was not accepted");
        }
    }
}

/// Tells an agent to stop a job; true when it is gone or unknown there.
async fn delete(client: &reqwest::Client, base: &Url, job: i64) -> bool {
    let Some(url) = below(base, &format!("jobs/{job}")) else { return false };
    let answer = client.delete(url).send().await;
    answer.is_ok_and(|answer| answer.status().is_success() || answer.status().as_u16() == 404)
}

/// The endpoint as a URL, if it may be called.
fn allowed(endpoint: &str, peer: Option<&str>, allow: &[String]) -> Result<Url, String> {
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
            "`{host}` is neither the address that the node registered from nor allowed with --push-allow"
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
        allowed(endpoint, Some(peer), &allow).is_ok()
    }

    #[test]
    fn only_the_registering_address_and_allowed_ones_are_called() {
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
