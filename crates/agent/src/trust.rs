//! Trust in the server: an option, the fingerprint of an earlier registration, the authorities of the system, or a proof
//! by the registration token.
//!
//! With the proof the agent identifies a server with a self-signed certificate before it sends the token: the server
//! shows that it knows the token, for the public key of this connection.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tracing::{info, warn};
use url::Url;

use agentaflow_api::agent::{ServerProof, ServerProofRequest};
use agentaflow_api::client::{
    CertificateProblem, Client, ClientError, Fingerprint, Trust, UnreachableCause, server_proof,
    token_hash,
};
use agentaflow_api::units::Secret;

use crate::identity;
use crate::settings::AgentSettings;

/// File of the pinned public key in the state directory.
pub(crate) const NAME: &str = "server-fingerprint.json";

/// Pinned public key of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PinnedServer {
    server: String,
    fingerprint: Fingerprint,
}

/// Creates the client of the server once its certificate is trusted.
#[derive(Debug)]
pub(crate) struct Connector {
    settings: Arc<AgentSettings>,
    base: Url,
    client: OnceCell<Client>,
}

impl Connector {
    pub(crate) fn new(settings: Arc<AgentSettings>) -> Result<Self, ClientError> {
        // The address must be valid. Plain HTTP with a fingerprint is an error.
        let trust = settings.trust.clone().unwrap_or(Trust::Nothing);
        let client = match Client::trusting(&settings.server, None, &trust) {
            Err(_) if settings.trust.is_none() => Client::new(&settings.server, None)?,
            client => client?,
        };
        Ok(Self { base: client.base().clone(), settings, client: OnceCell::new() })
    }

    pub(crate) fn base(&self) -> &Url {
        &self.base
    }

    /// The client, without a token.
    pub(crate) async fn client(&self) -> Result<Client, ClientError> {
        self.client.get_or_try_init(|| self.connect()).await.cloned()
    }

    async fn connect(&self) -> Result<Client, ClientError> {
        let server = &self.settings.server;
        if let Some(trust) = self.settings.trust.clone().or_else(|| self.pinned()) {
            return Client::trusting(server, None, &trust);
        }
        if self.base.scheme() != "https" {
            return Client::new(server, None);
        }
        // Fails on a machine without authorities.
        let Ok(client) = Client::new(server, None) else { return self.identify().await };
        match client.get("/healthz").nothing().await {
            Err(ClientError::Untrusted { problem: CertificateProblem::UnknownIssuer, .. }) => {
                self.identify().await
            }
            Err(error @ (ClientError::Untrusted { .. } | ClientError::Unreachable { .. })) => {
                Err(error)
            }
            _ => Ok(client),
        }
    }

    fn pinned(&self) -> Option<Trust> {
        let bytes = std::fs::read(self.settings.state_dir.join(NAME)).ok()?;
        let found: PinnedServer = serde_json::from_slice(&bytes).ok()?;
        (found.server == self.base.as_str()).then_some(Trust::Pinned(found.fingerprint))
    }

    /// Pins the public key of a server that proves its knowledge of the registration token.
    async fn identify(&self) -> Result<Client, ClientError> {
        let server = &self.settings.server;
        let found = Client::fingerprint(server).await?;
        let client = Client::trusting(server, None, &Trust::Pinned(found))?;
        let proven = match &self.settings.registration_token {
            Some(token) => prove(&client, token, &found).await?,
            None => false,
        };
        if !proven {
            let url = self.base.to_string();
            return Err(ClientError::Untrusted {
                url,
                problem: CertificateProblem::NotPinned { found },
            });
        }
        info!(fingerprint = %found, "the server knows the registration token; its public key is pinned");
        let pinned = PinnedServer { server: self.base.to_string(), fingerprint: found };
        let bytes = serde_json::to_vec(&pinned).unwrap_or_default();
        if let Err(error) = identity::write_private(&self.settings.state_dir, NAME, &bytes) {
            warn!(%error, "cannot save the fingerprint of the server");
        }
        Ok(client)
    }
}

async fn prove(client: &Client, token: &Secret, found: &Fingerprint) -> Result<bool, ClientError> {
    let random = || {
        identity::random_name().map_err(|error| ClientError::Unreachable {
            url: client.base().to_string(),
            cause: UnreachableCause::Other(error.to_string()),
        })
    };
    let nonce = format!("{}{}{}", random()?, random()?, random()?);
    let asked = ServerProofRequest { nonce };
    let answer = client.post("/auth/server-proof").body(&asked).json::<ServerProof>().await;
    match answer {
        Ok(answer) => {
            Ok(answer.proofs.contains(&server_proof(&token_hash(token), &asked.nonce, found)))
        }
        // A proxy with TLS before a server without: only an option can establish trust.
        Err(error) if error.status() == Some(404) => Ok(false),
        Err(error) => Err(error),
    }
}
