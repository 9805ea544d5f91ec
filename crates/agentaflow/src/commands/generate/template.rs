//! `agentaflow generate-template`: writes a commented `GPUWorkload`.

use std::path::PathBuf;

use anyhow::Result;

use super::write;

const TEMPLATE: &str = include_str!("../../../../../examples/kubernetes/gpuworkload.yaml");

/// Write a commented GPUWorkload template
#[derive(Debug, clap::Args)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// File to write; `-` for stdout
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    write::write(TEMPLATE, Some(&args.file), args.force)
}
