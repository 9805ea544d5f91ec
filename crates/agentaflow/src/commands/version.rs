//! `agentaflow version`: versions of client and server.

use agentaflow_kube_client::Failure;
use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use crate::backend::Backend;
use crate::connect::{Connect, block_on};
use crate::failure::{NoServer, UsageError, sentence};
use crate::list::OneFormat;

/// Show the version of this program, and of the server or cluster
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Client version only
    #[arg(long)]
    client: bool,
    /// Output format
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
    let server = if args.client { None } else { server_version_or_warning(&args.connect)? };
    let versions = Versions { client: env!("CARGO_PKG_VERSION"), server };
    args.output.print(&versions, |versions| {
        let server = versions.server.as_ref().map(|server| format!("server      {server}\n"));
        Ok(format!("agentaflow  {}\n{}", versions.client, server.unwrap_or_default()))
    })
}

/// The server version, if a server is configured. An unreachable server is a warning.
fn server_version_or_warning(connect: &Connect) -> Result<Option<String>> {
    match block_on(server_version(connect)) {
        Err(error) if error.is::<NoServer>() => Ok(None),
        Err(error) if error.is::<UsageError>() => Err(error),
        Err(error) => {
            eprintln!("warning: cannot read the server version: {}", sentence(&error));
            Ok(None)
        }
        version => version,
    }
}

async fn server_version(connect: &Connect) -> Result<Option<String>> {
    match connect.backend().await? {
        Backend::Server(client) => {
            let version: Value = client.get("/version").json().await?;
            Ok(version["version"].as_str().map(str::to_owned))
        }
        Backend::Cluster(cluster) => {
            let version = cluster.client.apiserver_version().await.map_err(Failure::from)?;
            Ok(Some(format!("Kubernetes {}", version.git_version)))
        }
    }
}
