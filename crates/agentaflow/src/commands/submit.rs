//! `agentaflow submit`: hands in a job and leaves it alone.

use agentaflow_api::client::{Client, ClientError};
use agentaflow_api::job::{Job, JobCreate};
use anyhow::Result;

use crate::connect::{Connect, block_on};
use crate::job_args::JobArgs;
use crate::listing;
use crate::output::{self, Format};

/// Hand in a job and print its number
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// `json` prints the whole job
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    output: Format,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let job = args.job.job()?;
    let client = args.connect.client()?;
    let job = block_on(async { Ok(hand_in(&client, &job).await?) })?;
    if args.output == Format::Json {
        return output::print(&listing::json(&job)?);
    }
    output::print(&format!("{}\n", job.id))
}

/// Hands in a job, once more if the answer got lost: the key keeps it from becoming two.
pub(crate) async fn hand_in(client: &Client, job: &JobCreate) -> Result<Job, ClientError> {
    let key = key();
    match client.submit(job, Some(&key)).await {
        Err(ClientError::Unreachable { .. }) => client.submit(job, Some(&key)).await,
        answer => answer,
    }
}

/// A key that nobody else has. It is no secret.
fn key() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    let now = agentaflow_api::Stamp::now().0;
    let random = || RandomState::new().hash_one(now);
    format!("cli-{:016x}{:016x}", random(), random())
}
