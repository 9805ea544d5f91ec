//! Options about the certificate of a server.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use agentaflow_api::client::{CertificateProblem, Client, ClientError, Fingerprint, Trust};
use anyhow::{Context as _, Result};

use crate::connect::block_on;
use crate::context::variable;
use crate::failure::usage;

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TrustArgs {
    /// Fingerprint of the server's public key, as logged by `agentaflow server --tls-self-signed` [default:
    /// `AGENTAFLOW_SERVER_FINGERPRINT`]
    #[arg(long, value_name = "SHA256", conflicts_with = "ca_cert", help_heading = "TLS")]
    server_fingerprint: Option<Fingerprint>,
    /// PEM file of the authority that signed the server's certificate [default: `AGENTAFLOW_CA_CERT`]
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    ca_cert: Option<PathBuf>,
}

/// Accepted certificate of a server, as stored in a context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerTrust {
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) ca_cert: Option<PathBuf>,
}

impl TrustArgs {
    /// Options, else the variables of the environment.
    pub(crate) fn chosen(&self) -> Result<ServerTrust> {
        if self.server_fingerprint.is_none() && self.ca_cert.is_none() {
            return ServerTrust::of_environment();
        }
        let ca_cert = self.ca_cert.as_ref().map(std::path::absolute).transpose();
        let ca_cert = ca_cert.context("cannot resolve the path of --ca-cert")?;
        Ok(ServerTrust { fingerprint: self.server_fingerprint, ca_cert })
    }
}

impl ServerTrust {
    pub(crate) fn of_environment() -> Result<Self> {
        let fingerprint = variable("AGENTAFLOW_SERVER_FINGERPRINT");
        let fingerprint = fingerprint.map(|text| text.parse::<Fingerprint>()).transpose();
        let fingerprint = fingerprint
            .map_err(|problem| usage(format!("AGENTAFLOW_SERVER_FINGERPRINT: {problem}")))?;
        Ok(Self { fingerprint, ca_cert: variable("AGENTAFLOW_CA_CERT").map(PathBuf::from) })
    }

    /// None for the authorities of the system.
    pub(crate) fn trust(&self) -> Result<Option<Trust>> {
        Ok(match (&self.fingerprint, &self.ca_cert) {
            (Some(pin), _) => Some(Trust::Pinned(*pin)),
            (None, Some(path)) => Some(Trust::Authority(read(path)?)),
            (None, None) => None,
        })
    }

    /// Asks the user about a server whose certificate no known authority signed.
    pub(crate) fn confirm(mut self, server: &str) -> Result<Self> {
        if self.trust()?.is_some() || !server.trim().starts_with("https://") {
            return Ok(self);
        }
        let client = Client::new(server, None)?;
        let tried = block_on(async { Ok(client.get("/healthz").nothing().await) })?;
        let Err(ClientError::Untrusted { problem: CertificateProblem::UnknownIssuer, .. }) = tried
        else {
            return Ok(self);
        };
        let found = block_on(async { Ok(Client::fingerprint(server).await?) })?;
        if !io::stdin().is_terminal() {
            return Err(usage(format!(
                "no trusted authority signed the certificate of {server}, and stdin is no terminal to \
                 ask on; compare {found} with the log of the server and use --server-fingerprint {found}, or use --ca-cert FILE"
            )));
        }
        eprintln!("No trusted authority signed the certificate of {server}.");
        eprintln!("Fingerprint: {found}");
        eprint!("Is this the fingerprint in the log of the server? [y/N] ");
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).context("cannot read the answer")?;
        if !matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
            return Err(usage("the server is not trusted; nothing was sent"));
        }
        self.fingerprint = Some(found);
        Ok(self)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read the authority `{}`", path.display()))
}
