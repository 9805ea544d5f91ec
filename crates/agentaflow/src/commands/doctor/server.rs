//! A server: whether it answers, who we are to it, and what of it does not work.

use agentaflow_api::Stamp;
use agentaflow_api::account::User;
use agentaflow_api::client::user::JobQuery;
use agentaflow_api::client::{Client, ClientError};
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::node::{Node, NodeStatus};
use agentaflow_console::format::one_line;
use serde_json::Value;

use super::{Check, clock_check};
use crate::failure::numberless;
use crate::listing::node_name;

/// Jobs and nodes that are named one by one.
const NAMED: usize = 5;

pub(super) async fn checks(client: &Client) -> Vec<Check> {
    let place = client.base().as_str().trim_end_matches('/').to_owned();
    let version: Value = match client.get("/version").json().await {
        Ok(version) => version,
        Err(error) => {
            return vec![Check::fail(
                "server",
                numberless(&one_line(&error.to_string())),
                format!(
                    "is it running? `agentaflow up` starts one here; from a GPU host, `curl {place}/healthz` must answer: \
                     look at the address, the firewall and the certificate"
                ),
            )];
        }
    };
    let mut checks = vec![version_check(&place, version["version"].as_str().unwrap_or("unknown"))];
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
    checks.extend(client.jobs(&query).await.map(|jobs| waiting(&jobs)).ok());
    checks
}

fn version_check(place: &str, theirs: &str) -> Check {
    let ours = env!("CARGO_PKG_VERSION");
    if theirs == ours {
        return Check::ok("server", format!("{place}, version {theirs}"));
    }
    Check::warn(
        "server",
        format!("{place} has version {theirs}, this program {ours}"),
        "use the same version on both sides; newer ones only add things",
    )
}

/// Compares clocks, where the server says what time it is.
fn clock(version: &Value) -> Option<Check> {
    let theirs: Stamp = serde_json::from_value(version.get("time")?.clone()).ok()?;
    Some(clock_check(theirs.0.saturating_sub(Stamp::now().0), "the server", "tokens and logs"))
}

fn token(error: &ClientError) -> Check {
    match error.status() {
        Some(401 | 403) => Check::fail(
            "token",
            "the server does not know it, or it has ended",
            "`agentaflow login URL --user NAME` makes a new one; the one of a local server is in its data folder",
        ),
        _ => Check::fail(
            "token",
            numberless(&one_line(&error.to_string())),
            "try again; if it stays so, look at the server's log",
        ),
    }
}

fn nodes_check(nodes: &[Node]) -> Vec<Check> {
    if nodes.is_empty() {
        return vec![Check::fail(
            "nodes",
            "none has registered",
            "on a GPU host: `agentaflow agent --server URL` with REGISTRATION_TOKEN from `agentaflow token create --worker NAME`; \
             a wrong token is told in the agent's log as 401",
        )];
    }
    let taking = nodes.iter().filter(|node| node.status == NodeStatus::Active && node.reachable);
    let mut checks =
        vec![Check::ok("nodes", format!("{} of {} take work", taking.count(), nodes.len()))];
    for node in
        nodes.iter().filter(|node| node.status != NodeStatus::Active || !node.reachable).take(NAMED)
    {
        let name = node_name(node);
        checks.push(match node.status {
            NodeStatus::Inactive => Check::fail(
                "node",
                format!("{name} is not heard of"),
                "look at the agent there (`systemctl status`, its log) and at the network between the two",
            ),
            NodeStatus::Maintenance => {
                Check::warn("node", format!("{name} is closed"), format!("`agentaflow uncordon {name}` opens it"))
            }
            NodeStatus::Error => Check::fail("node", format!("{name} says that something is wrong"), "its agent's log says what"),
            NodeStatus::Pending | NodeStatus::Active => Check::warn(
                "node",
                format!("{name} is registered, and no work can reach it"),
                "start an agent there, or let its push endpoint answer",
            ),
        });
    }
    if nodes.iter().any(|node| node.spec.simulated) {
        checks.push(Check::warn(
            "gpus",
            "some are SIMULATED",
            "jobs on them get no device; run an agent on a GPU host",
        ));
    }
    checks
}

fn waiting(jobs: &[Job]) -> Check {
    if jobs.is_empty() {
        return Check::ok("queue", "nothing waits");
    }
    let reason = |job: &Job| {
        let why = job.wait_reason.as_deref().map(one_line).unwrap_or_default();
        format!("job {}: {why}", job.handle())
    };
    let reasons: Vec<_> = jobs.iter().take(NAMED).map(reason).collect();
    Check::warn(
        "queue",
        format!("{} waiting: {}", jobs.len(), reasons.join("; ")),
        "`agentaflow explain JOB` says what would start now",
    )
}
