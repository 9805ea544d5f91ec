//! `agentaflow openapi`: prints the API description for `docs/openapi.json`.

use anyhow::Result;

use crate::output;

/// Print the OpenAPI 3.1 description of the REST API
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<()> {
    output::print(&agentaflow_server::http::openapi_json())
}
