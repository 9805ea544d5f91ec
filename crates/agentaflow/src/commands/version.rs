//! `agentaflow version`: which program this is, and which server it speaks to.

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use crate::backend::Backend;
use crate::connect::{Connect, block_on};
use crate::list::OneFormat;

/// Show the version of this program, and of the server or cluster
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this program's
    #[arg(long)]
    client: bool,
    /// How to print it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, Serialize)]
struct Versions {
    client: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let server =
        if args.client { None } else { block_on(async { Ok(theirs(&args.connect).await) })? };
    let versions = Versions { client: env!("CARGO_PKG_VERSION"), server };
    args.output.print(&versions, |versions| {
        let server = versions.server.as_ref().map(|server| format!("server      {server}\n"));
        Ok(format!("agentaflow  {}\n{}", versions.client, server.unwrap_or_default()))
    })
}

/// The version of whoever answers; nobody need answer.
async fn theirs(connect: &Connect) -> Option<String> {
    match connect.backend().await.ok()? {
        Backend::Server(client) => {
            let told: Value = client.get("/version").json().await.ok()?;
            Some(told["version"].as_str()?.to_owned())
        }
        Backend::Cluster(cluster) => {
            let told = cluster.client.apiserver_version().await.ok()?;
            Some(format!("Kubernetes {}", told.git_version))
        }
    }
}
