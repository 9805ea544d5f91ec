//! `agentaflow version`: which program this is, and which server it speaks to.

use agentaflow_kube_client::Failure;
use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use crate::backend::Backend;
use crate::connect::{Connect, block_on};
use crate::failure::{NoServer, Usage, sentence};
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
    let server = if args.client { None } else { theirs_or_why_not(&args.connect)? };
    let versions = Versions { client: env!("CARGO_PKG_VERSION"), server };
    args.output.print(&versions, |versions| {
        let server = versions.server.as_ref().map(|server| format!("server      {server}\n"));
        Ok(format!("agentaflow  {}\n{}", versions.client, server.unwrap_or_default()))
    })
}

/// The version of whoever answers. Nobody need answer, but who is meant and does not is worth a word.
fn theirs_or_why_not(connect: &Connect) -> Result<Option<String>> {
    match block_on(theirs(connect)) {
        Err(error) if error.is::<NoServer>() => Ok(None),
        Err(error) if error.is::<Usage>() => Err(error),
        Err(error) => {
            eprintln!("the version of the server is not known: {}", sentence(&error));
            Ok(None)
        }
        known => known,
    }
}

async fn theirs(connect: &Connect) -> Result<Option<String>> {
    match connect.backend().await? {
        Backend::Server(client) => {
            let told: Value = client.get("/version").json().await?;
            Ok(told["version"].as_str().map(str::to_owned))
        }
        Backend::Cluster(cluster) => {
            let told = cluster.client.apiserver_version().await.map_err(Failure::from)?;
            Ok(Some(format!("Kubernetes {}", told.git_version)))
        }
    }
}
