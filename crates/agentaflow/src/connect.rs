//! How commands reach the server.

use std::future::Future;

use agentaflow_api::client::Client;
use anyhow::{Context as _, Result};

use crate::context;

/// Which server to speak to.
#[derive(Debug, clap::Args)]
pub(crate) struct Connect {
    /// Context to use instead of the current one (see `agentaflow context`)
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    context: Option<String>,
}

impl Connect {
    /// A client for the server that is meant.
    pub(crate) fn client(&self) -> Result<Client> {
        let target = context::target(self.context.as_deref())?;
        Ok(Client::new(&target.server, target.token)?)
    }
}

/// Runs a command that waits for the network, on this thread alone.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start")?.block_on(work)
}
