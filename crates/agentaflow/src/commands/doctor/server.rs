//! Checks of a server: connection, token, nodes and pending jobs.

use agentaflow_api::Stamp;
use agentaflow_api::account::User;
use agentaflow_api::client::user::JobQuery;
use agentaflow_api::client::{Client, ClientError};
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::node::{Node, NodeStatus};
use agentaflow_console::format::one_line;
use serde_json::Value;

use super::{Check, clock_check};
use crate::failure::without_os_code;
use crate::listing::node_name;

/// Jobs and nodes listed by name.
const MAX_LISTED: usize = 5;

pub(super) async fn checks(client: &Client) -> Vec<Check> {
    let address = client.base().as_str().trim_end_matches('/').to_owned();
    let version: Value = match client.get("/version").json().await {
        Ok(version) => version,
        Err(error) => {
            return vec![Check::fail(
                "server",
                without_os_code(&one_line(&error.to_string())),
                format!(
                    "run `curl {address}/healthz` and check address, firewall and certificate; start a local server with \
                     `agentaflow up`"
                ),
            )];
        }
    };
    let mut checks =
        vec![version_check(&address, version["version"].as_str().unwrap_or("unknown"))];
    checks.extend(clock(&version));
    match client.get("/auth/me").json::<User>().await {
        Ok(me) => {
            let role = format!("{:?}", me.role).to_lowercase();
            checks.push(Check::ok("token", format!("{} ({role})", me.username)));
        }
        Err(error) => {
            checks.push(token(&error));
            return checks;
        }
    }
    checks.extend(client.nodes().await.map(|nodes| nodes_check(&nodes)).unwrap_or_default());
    let query = JobQuery { status: vec![JobStatus::Pending], limit: Some(1000), skip: None };
    checks.extend(client.jobs(&query).await.map(|jobs| pending(&jobs)).ok());
    checks
}

fn version_check(address: &str, server: &str) -> Check {
    let client = env!("CARGO_PKG_VERSION");
    if server == client {
        return Check::ok("server", format!("{address}, version {server}"));
    }
    Check::warn(
        "server",
        format!("{address} has version {server}, this client {client}"),
        "use the same version of client and server",
    )
}

/// Compares clocks, if the server reports its time.
fn clock(version: &Value) -> Option<Check> {
    let server: Stamp = serde_json::from_value(version.get("time")?.clone()).ok()?;
    Some(clock_check(server.0.saturating_sub(Stamp::now().0), "the server", "tokens and logs"))
}

fn token(error: &ClientError) -> Check {
    match error.status() {
        Some(401 | 403) => Check::fail(
            "token",
            "unknown or expired",
            "run `agentaflow login URL --user NAME`; the token of a local server is in its data directory",
        ),
        _ => Check::fail(
            "token",
            without_os_code(&one_line(&error.to_string())),
            "retry, and check the log of the server",
        ),
    }
}

fn nodes_check(nodes: &[Node]) -> Vec<Check> {
    if nodes.is_empty() {
        return vec![Check::fail(
            "nodes",
            "no node registered",
            "on a GPU host, run `agentaflow agent --server URL` with REGISTRATION_TOKEN from `agentaflow token create --registration`; \
             a wrong token is a 401 in the log of the agent",
        )];
    }
    let ready = nodes.iter().filter(|node| node.status == NodeStatus::Active && node.reachable);
    let mut checks =
        vec![Check::ok("nodes", format!("{} of {} ready", ready.count(), nodes.len()))];
    for node in nodes
        .iter()
        .filter(|node| node.status != NodeStatus::Active || !node.reachable)
        .take(MAX_LISTED)
    {
        let name = node_name(node);
        checks.push(match node.status {
            NodeStatus::Inactive => Check::fail(
                "node",
                format!("{name}: no heartbeat"),
                "check the agent (`systemctl status`, its log) and the network",
            ),
            NodeStatus::Maintenance => Check::warn(
                "node",
                format!("{name} is cordoned"),
                format!("run `agentaflow uncordon {name}`"),
            ),
            NodeStatus::Error => Check::fail(
                "node",
                format!("{name} reports an error"),
                "check the log of its agent",
            ),
            NodeStatus::Pending | NodeStatus::Active => Check::warn(
                "node",
                format!("{name} is registered but unreachable"),
                "start its agent, or make its push endpoint reachable",
            ),
        });
    }
    if nodes.iter().any(|node| node.spec.simulated) {
        checks.push(Check::warn(
            "gpus",
            "some GPUs are SIMULATED",
            "jobs on them get no device; run an agent on a GPU host",
        ));
    }
    checks
}

fn pending(jobs: &[Job]) -> Check {
    if jobs.is_empty() {
        return Check::ok("queue", "no pending jobs");
    }
    let reason = |job: &Job| {
        let reason = job.wait_reason.as_deref().map(one_line).unwrap_or_default();
        format!("job {}: {reason}", job.handle())
    };
    let reasons: Vec<_> = jobs.iter().take(MAX_LISTED).map(reason).collect();
    Check::warn(
        "queue",
        format!("{} pending: {}", jobs.len(), reasons.join("; ")),
        "run `agentaflow explain JOB` for details",
    )
}
