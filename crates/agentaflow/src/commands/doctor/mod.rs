//! `agentaflow doctor`: looks for what usually goes wrong, and says how to mend it.

mod cluster;
mod host;
mod server;

use std::fmt::Write as _;
use std::process::ExitCode;

use agentaflow_console::format;
use anyhow::Result;
use serde::Serialize;

use crate::backend::Backend;
use crate::connect::{Connect, block_on};
use crate::failure::{self, NoServer};
use crate::list::OneFormat;
use crate::output;

/// Check this machine and the server or cluster; every line says ok, warn or fail, and how to mend it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It looks at the driver and NVML, Docker and its GPU runtime, control groups, ports and \
disk of this machine, at the server (reachable, token, version, clock, nodes that take no work, jobs that wait) or \
at the cluster (API server, clock, kinds, rights, scheduler and its leader and version, webhook, monitor, device \
plugin, GPU nodes, workloads that wait). Ends \
with 1 when something fails."
)]
pub(crate) struct Args {
    /// How to print it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    /// Only look at the server or cluster, not at this machine
    #[arg(long)]
    remote_only: bool,
    #[command(flatten)]
    connect: Connect,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Skip,
    Warn,
    Fail,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    verdict: Verdict,
    name: &'static str,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, name, found: found.into(), fix: None }
    }

    fn skip(name: &'static str, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Skip, name, found: found.into(), fix: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, name, found: found.into(), fix: Some(fix.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, name, found: found.into(), fix: Some(fix.into()) }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut checks =
        if args.remote_only { Vec::new() } else { host::checks(port_of_server(&args.connect)) };
    checks.extend(block_on(async { Ok(remote(&args.connect).await) })?);
    args.output.print(&checks, |checks| Ok(text(checks)))?;
    let failed = checks.iter().any(|check| check.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Where on this machine the server listens that we know, if it is here.
fn port_of_server(connect: &Connect) -> Option<u16> {
    let client = connect.client().ok()?;
    let host = client.base().host_str()?;
    let here = matches!(host, "127.0.0.1" | "localhost" | "[::1]");
    client.base().port_or_known_default().filter(|_| here)
}

async fn remote(connect: &Connect) -> Vec<Check> {
    match connect.backend().await {
        Ok(Backend::Server(client)) => server::checks(&client).await,
        Ok(Backend::Cluster(cluster)) => cluster::checks(&cluster).await,
        Err(error) if error.is::<NoServer>() => vec![Check::warn(
            "context",
            "no server and no cluster is known",
            "`agentaflow up` starts a server here; `agentaflow login URL` remembers another; a kubeconfig makes a \
             cluster known",
        )],
        Err(error) => vec![Check::fail(
            "context",
            failure::sentence(&error),
            "`agentaflow context` lists the contexts, `agentaflow context use NAME` chooses one",
        )],
    }
}

/// A clock that is off by more than this confuses tokens, leases and logs.
const SKEW_MS: i64 = 5_000;

/// What to think of somebody's clock that is ahead of ours by so many milliseconds.
fn clock_check(ahead: i64, whose: &str, needed_by: &str) -> Check {
    if ahead.abs() <= SKEW_MS {
        return Check::ok("clock", format!("agrees with that of {whose}"));
    }
    let by = format::short_time(ahead.unsigned_abs() as f64 / 1000.0);
    let side = if ahead < 0 { "behind" } else { "ahead" };
    let fix = format!("set both by NTP (`timedatectl set-ntp true`): {needed_by} depend on it");
    Check::warn("clock", format!("that of {whose} is {by} {side}"), fix)
}

/// Where what was found stands.
const INDENT: &str = "                      ";

fn text(checks: &[Check]) -> String {
    let mut text = String::new();
    for Check { verdict, name, found, fix } in checks {
        let (word, colour) = match verdict {
            Verdict::Ok => ("ok", 32),
            Verdict::Skip => ("skip", 2),
            Verdict::Warn => ("warn", 33),
            Verdict::Fail => ("FAIL", 31),
        };
        let word = format!("{word:<4}");
        let word =
            if output::stdout_colour() { format!("\u{1b}[{colour}m{word}\u{1b}[0m") } else { word };
        // Colours take no room.
        let found = output::wrapped(found, &format!("      {name:<14}  "), INDENT);
        text.push_str(&found.replacen("      ", &format!("{word}  "), 1));
        if let Some(fix) = fix {
            text.push_str(&output::wrapped(fix, "      → ", "        "));
        }
    }
    let count = |wanted| checks.iter().filter(|check| check.verdict == wanted).count();
    let _ = writeln!(
        text,
        "\n{} ok, {} to look at, {} to mend",
        count(Verdict::Ok),
        count(Verdict::Warn),
        count(Verdict::Fail)
    );
    text
}
