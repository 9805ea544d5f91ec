//! `agentaflow jobs`: lists jobs.

use agentaflow_api::client::user::JobQuery;
use agentaflow_api::job::JobStatus;
use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};

use crate::connect::{Connect, block_on};
use crate::listing::{self, JOBS};
use crate::output::{self, Format};

/// List your jobs; admins see everybody's
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only jobs with one of these statuses
    #[arg(long, value_name = "STATUS,…", value_delimiter = ',', value_parser = statuses())]
    status: Vec<JobStatus>,
    /// At most so many, the newest
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    limit: u64,
    /// How to print the list
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    output: Format,
    #[command(flatten)]
    connect: Connect,
}

fn statuses() -> impl clap::builder::TypedValueParser<Value = JobStatus> {
    PossibleValuesParser::new(JobStatus::ALL.map(JobStatus::as_str)).map(|word| {
        let known = JobStatus::ALL.into_iter().find(|status| status.as_str() == word);
        known.unwrap_or_default()
    })
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let query = JobQuery { status: args.status.clone(), limit: Some(args.limit), skip: None };
    let jobs = block_on(async { args.connect.backend().await?.jobs(&query).await })?;
    output::print(&listing::listing(&JOBS, &jobs, args.output, "There are no such jobs.")?)
}
