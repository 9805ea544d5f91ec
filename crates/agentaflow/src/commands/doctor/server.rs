//! Checks of a server: connection, token, nodes and pending jobs.

use agentaflow_api::Stamp;
use agentaflow_api::account::User;
use agentaflow_api::client::user::JobQuery;
use agentaflow_api::client::{CertificateProblem, Client, ClientError};
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::node::{Node, NodeStatus};
use agentaflow_console::format::one_line;
use serde_json::Value;

use super::{Check, clock_check};
use crate::failure::without_os_code;
use crate::listing::node_name;

/// Jobs and nodes listed by name.
const MAX_LISTED: usize = 5;

const DAY_MS: i64 = 24 * 3600 * 1000;
/// Remaining lifetime of a certificate below which the check warns.
const EXPIRY_MARGIN_DAYS: i64 = 14;

const RENEWAL: &str = "replace the files of --tls-cert and --tls-key; the server reads them again within seconds. With \
                       --tls-self-signed run `rm tls-cert.pem` in the data directory of the server, which creates a \
                       certificate with the same key";

pub(super) async fn checks(client: &Client) -> Vec<Check> {
    let address = client.base().as_str().trim_end_matches('/').to_owned();
    let version: Value = match client.get("/version").json().await {
        Ok(version) => version,
        Err(ClientError::Untrusted { problem: CertificateProblem::Expired, .. }) => {
            return vec![Check::fail("certificate", "expired", RENEWAL)];
        }
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
    let expires = client.certificate_expiry().await.ok().flatten();
    checks.extend(expires.map(|expires| certificate(expires, Stamp::now())));
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

/// A pinned certificate is accepted after its expiry.
fn certificate(expires: Stamp, now: Stamp) -> Check {
    let (day, left_ms) = (expires.day(), expires.0.saturating_sub(now.0));
    if left_ms <= 0 {
        return Check::fail("certificate", format!("expired on {day}"), RENEWAL);
    }
    let days = left_ms / DAY_MS;
    if days < EXPIRY_MARGIN_DAYS {
        return Check::warn("certificate", format!("expires on {day}, in {days} days"), RENEWAL);
    }
    Check::ok("certificate", format!("expires on {day}"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::CheckStatus;

    #[test]
    fn an_early_expiry_is_a_warning_and_a_past_one_a_failure_with_the_renewal() {
        let now = Stamp(1_800_000_000_000);
        let in_days = |days: i64| certificate(Stamp(now.0 + days * DAY_MS), now);
        assert_eq!(in_days(14), Check::ok("certificate", "expires on 2027-01-29"));
        let soon = in_days(13);
        assert_eq!(
            (soon.status, soon.found.as_str()),
            (CheckStatus::Warn, "expires on 2027-01-28, in 13 days")
        );
        let past = in_days(-1);
        assert_eq!(
            (past.status, past.found.as_str()),
            (CheckStatus::Fail, "expired on 2027-01-14")
        );
        assert!(past.fix.is_some_and(|fix| fix.contains("rm tls-cert.pem")));
    }
}
