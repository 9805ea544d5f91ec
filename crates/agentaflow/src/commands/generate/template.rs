//! `agentaflow generate-template`: a commented `GPUWorkload` to begin with.

use std::path::PathBuf;

use anyhow::Result;

use super::write;

/// The example that the repository has, which the API server takes.
const TEMPLATE: &str = include_str!("../../../../../examples/kubernetes/gpuworkload.yaml");

/// Write a commented GPUWorkload to begin with
#[derive(Debug, clap::Args)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// File to write; `-` is stdout
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Overwrite the file if it is there
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    write::write(TEMPLATE, Some(&args.file), args.force)
}
