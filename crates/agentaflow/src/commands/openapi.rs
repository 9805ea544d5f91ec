//! `agentaflow openapi`: the API's description, for the committed copy.

use anyhow::Result;

use crate::output;

/// Print the description of the API (OpenAPI 3.1)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<()> {
    output::print(&agentaflow_server::http::openapi_json())
}
