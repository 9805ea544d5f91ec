//! `agentaflow doctor`: checks for common problems and suggests fixes.

mod cluster;
mod host;
mod server;

use std::fmt::Write as _;
use std::process::ExitCode;

use agentaflow_console::format;
use agentaflow_kube_core::names;
use anyhow::Result;
use serde::Serialize;

use crate::backend::Backend;
use crate::connect::{Connect, block_on};
use crate::failure::{self, NoServer};
use crate::list::OneFormat;
use crate::output;

/// Check this machine and the server or cluster, and suggest fixes
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Checks the driver, NVML, Docker, its GPU runtime, cgroups, ports and disk of this machine; \
the connection, certificate, token, version, clock, nodes and pending jobs of a server; or the API server, clock, CRDs, permissions, \
scheduler, leader, webhook, monitor, device plugin, GPU nodes and pending workloads of a cluster. Exits with 1 if a \
check fails."
)]
pub(crate) struct Args {
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    /// Check only the server or cluster, not this machine
    #[arg(long)]
    remote_only: bool,
    /// schedulerName of agentaflow in the cluster
    #[arg(long, value_name = "NAME", default_value = names::SCHEDULER_NAME)]
    scheduler_name: String,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckStatus {
    Ok,
    Skip,
    Warn,
    Fail,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    status: CheckStatus,
    name: &'static str,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { status: CheckStatus::Ok, name, found: found.into(), fix: None }
    }

    fn skip(name: &'static str, found: impl Into<String>) -> Self {
        Self { status: CheckStatus::Skip, name, found: found.into(), fix: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { status: CheckStatus::Warn, name, found: found.into(), fix: Some(fix.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { status: CheckStatus::Fail, name, found: found.into(), fix: Some(fix.into()) }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut checks =
        if args.remote_only { Vec::new() } else { host::checks(local_server_port(&args.connect)) };
    checks.extend(block_on(async { Ok(remote(args).await) })?);
    args.output.print(&checks, |checks| Ok(text(checks)))?;
    let failed = checks.iter().any(|check| check.status == CheckStatus::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Port of the server of the current context, if the server is local.
fn local_server_port(connect: &Connect) -> Option<u16> {
    let client = connect.client().ok()?;
    let host = client.base().host_str()?;
    let here = matches!(host, "127.0.0.1" | "localhost" | "[::1]");
    client.base().port_or_known_default().filter(|_| here)
}

async fn remote(args: &Args) -> Vec<Check> {
    match args.connect.backend().await {
        Ok(Backend::Server(client)) => server::checks(&client).await,
        Ok(Backend::Cluster(cluster)) => cluster::checks(&cluster, &args.scheduler_name).await,
        Err(error) if error.is::<NoServer>() => vec![Check::warn(
            "context",
            "no server or cluster configured",
            "run `agentaflow up` to start a server, `agentaflow login URL` to use one, or set KUBECONFIG for a cluster",
        )],
        Err(error) => vec![Check::fail(
            "context",
            failure::sentence(&error),
            "run `agentaflow context list`, and select a context with `agentaflow context use NAME`",
        )],
    }
}

/// Clock skew above which tokens, leases and logs are unreliable.
const MAX_SKEW_MS: i64 = 5_000;

/// Check of a remote clock that is `ahead_ms` milliseconds ahead of the local one.
fn clock_check(ahead_ms: i64, remote: &str, dependents: &str) -> Check {
    if ahead_ms.abs() <= MAX_SKEW_MS {
        return Check::ok("clock", format!("in sync with {remote}"));
    }
    let by = format::short_time(ahead_ms.unsigned_abs() as f64 / 1000.0);
    let side = if ahead_ms < 0 { "behind" } else { "ahead" };
    let fix = format!(
        "enable NTP on both sides (`timedatectl set-ntp true`): {dependents} depend on synchronized clocks"
    );
    Check::warn("clock", format!("{remote} is {by} {side}"), fix)
}

/// Indent of the finding.
const INDENT: &str = "                      ";

fn text(checks: &[Check]) -> String {
    let mut text = String::new();
    for Check { status, name, found, fix } in checks {
        let (word, colour) = match status {
            CheckStatus::Ok => ("ok", 32),
            CheckStatus::Skip => ("skip", 2),
            CheckStatus::Warn => ("warn", 33),
            CheckStatus::Fail => ("FAIL", 31),
        };
        let word = format!("{word:<4}");
        let word =
            if output::stdout_colour() { format!("\u{1b}[{colour}m{word}\u{1b}[0m") } else { word };
        // Colour codes have no width, so they are inserted after wrapping.
        let found = output::wrapped(found, &format!("      {name:<14}  "), INDENT);
        text.push_str(&found.replacen("      ", &format!("{word}  "), 1));
        if let Some(fix) = fix {
            text.push_str(&output::wrapped(fix, "      → ", "        "));
        }
    }
    let count = |wanted| checks.iter().filter(|check| check.status == wanted).count();
    let _ = writeln!(
        text,
        "\n{} ok, {} warnings, {} failed",
        count(CheckStatus::Ok),
        count(CheckStatus::Warn),
        count(CheckStatus::Fail)
    );
    text
}
