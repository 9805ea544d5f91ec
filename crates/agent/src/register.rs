//! Registers the node and the agent, and registers again whenever the server rejects the session.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::{info, warn};

use agentaflow_api::agent::AgentRegistration;
use agentaflow_api::client::{Client, ClientError};
use agentaflow_api::error::{ErrorBody, ErrorCode};
use agentaflow_api::ids::NodeId;
use agentaflow_api::node::Heartbeat;
use agentaflow_api::units::Secret;
use agentaflow_backoff::BackoffPolicy;

use crate::backoff::RECONNECT;
use crate::gpus::GpuWatch;
use crate::guardian::client::Guardian;
use crate::identity::{self, Credentials};
use crate::lease::Lease;
use crate::session::{Session, Sessions};
use crate::settings::AgentSettings;
use crate::trust::Connector;
use crate::{clock, facts, trust};

/// Retry interval of a refused registration: an operator has to act first.
const REFUSED_DELAY: Duration = Duration::from_secs(10);

pub(crate) struct Registrar {
    pub(crate) settings: Arc<AgentSettings>,
    pub(crate) connector: Connector,
    pub(crate) agent_id: String,
    /// Names of the runtimes; Docker may be added later.
    pub(crate) runtimes: Arc<Mutex<Vec<String>>>,
    pub(crate) sessions: Sessions,
    pub(crate) lease: Lease,
    pub(crate) gpus: Arc<GpuWatch>,
    /// Guardian of process jobs.
    pub(crate) guardian: Option<Guardian>,
}

impl Registrar {
    /// Keeps the agent registered; never ends.
    pub(crate) async fn run(self) {
        let mut current = self.sessions.subscribe();
        let mut backoff = RECONNECT.start();
        let mut refused = BackoffPolicy::new(REFUSED_DELAY, REFUSED_DELAY).with_jitter().start();
        loop {
            match self.register().await {
                Ok(session) => {
                    info!(node = session.node_id, agent = session.agent_id, "registered");
                    self.sessions.begin(session);
                    if current.wait_for(Option::is_none).await.is_err() {
                        return;
                    }
                    warn!("the server rejected the session; registering again");
                    backoff.sleep().await;
                }
                Err(error @ ClientError::Untrusted { .. }) => {
                    self.log_untrusted(&error);
                    refused.sleep().await;
                }
                Err(error) if matches!(error.status(), Some(400..=499)) && !error.is_passing() => {
                    self.log_rejection(&error);
                    refused.sleep().await;
                }
                Err(error) => {
                    warn!(%error, "cannot register; retrying");
                    backoff.sleep().await;
                }
            }
        }
    }

    async fn register(&self) -> Result<Session, ClientError> {
        let client = self.connector.client().await?;
        let Some(token) = &self.settings.registration_token else {
            return self.resume(&client).ok_or_else(no_token);
        };
        // The key of an earlier registration updates its node from any address.
        let known = identity::read_credentials(&self.settings.state_dir, client.base().as_str());
        if let Some(known) = known {
            match self.register_with(&client, &known.api_key).await {
                Err(error) if matches!(error.status(), Some(401 | 403)) => {}
                other => return other,
            }
        }
        match self.register_with(&client, token).await {
            Err(error) if matches!(error.status(), Some(401 | 403)) => {
                // The operator may have revoked the token. The API key of an earlier registration may still be
                // valid, and running tasks need a session.
                self.resume_if_accepted(&client).await.ok_or(error)
            }
            other => other,
        }
    }

    async fn register_with(&self, base: &Client, token: &Secret) -> Result<Session, ClientError> {
        let client = base.with_token(token.clone());
        let sent = clock::boot_ms();
        let runtimes = self.runtimes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let control = self.guardian.as_ref().and_then(Guardian::device_control);
        let private_tmp = self.guardian.as_ref().is_some_and(Guardian::has_private_tmp);
        let node = facts::registration(&self.settings, &self.gpus, runtimes, control, private_tmp);
        let node = client.register_node(&node).await?;
        // Workers behind one address keep their agents apart by the keys of their nodes.
        let own = node.api_key.clone().map_or_else(|| client.clone(), |key| base.with_token(key));
        let agent = own.register_agent(&self.agent(node.id)).await?;
        let api_key = agent.api_key.ok_or_else(|| ClientError::Garbled {
            url: base.base().to_string(),
            cause: "the response has no `api_key`".to_owned(),
        })?;
        // The first heartbeat follows at once and brings the length of the lease.
        self.lease.renew(sent, self.settings.shortest_lease());
        let credentials =
            Credentials { server: base.base().to_string(), node_id: node.node_id, api_key };
        if let Err(error) = identity::write_credentials(&self.settings.state_dir, &credentials) {
            warn!(%error, "cannot save the API key");
        }
        Ok(self.session(base, credentials))
    }

    /// Session with the saved API key, not yet tried.
    fn resume(&self, client: &Client) -> Option<Session> {
        let found = identity::read_credentials(&self.settings.state_dir, client.base().as_str())?;
        Some(self.session(client, found))
    }

    /// Session with the saved API key, if the server accepts a heartbeat with it.
    async fn resume_if_accepted(&self, client: &Client) -> Option<Session> {
        let session = self.resume(client)?;
        let heartbeat = Heartbeat {
            node_id: Some(Value::from(session.node_id.as_str())),
            ..Heartbeat::default()
        };
        let answer = session.client.heartbeat(&session.node_id, &heartbeat, REFUSED_DELAY).await;
        if answer.is_ok() {
            warn!(
                "the server rejects the registration token; using the API key of an earlier registration"
            );
        }
        answer.ok().map(|_| session)
    }

    fn session(&self, client: &Client, credentials: Credentials) -> Session {
        Session {
            client: client.with_token(credentials.api_key),
            agent_id: self.agent_id.clone(),
            node_id: credentials.node_id,
        }
    }

    fn agent(&self, node: NodeId) -> AgentRegistration {
        let interval = self.settings.heartbeat_interval.as_millis() as u64;
        let grace = self.settings.stop_grace.as_millis() as u64;
        let config = [("heartbeat_interval_ms", interval), ("stop_grace_ms", grace)];
        AgentRegistration {
            agent_id: self.agent_id.clone(),
            agent_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            config: config
                .map(|(name, value)| (name.to_owned(), Value::from(value)))
                .into_iter()
                .collect(),
            capabilities: Map::from_iter([("stream".to_owned(), Value::Bool(true))]),
            api_endpoint: None,
            websocket_endpoint: None,
            node_id: Some(node),
        }
    }

    fn log_untrusted(&self, error: &ClientError) {
        let known = self.settings.state_dir.join(trust::NAME);
        warn!(
            server = %self.connector.base(), %error,
            "nothing was sent to the server; compare the fingerprint with the log of the server and use \
             --server-fingerprint, or use --ca-cert; `{}` has the fingerprint of an earlier registration",
            known.display()
        );
    }

    fn log_rejection(&self, error: &ClientError) {
        let message = match error.status() {
            Some(403) if error.code() == Some(ErrorCode::ApprovalRequired) => {
                "an admin must approve this machine"
            }
            Some(401 | 403) => {
                "the server rejects the registration token; set REGISTRATION_TOKEN to the content of `registration-token` in the server's data directory"
            }
            _ => "the server rejects the registration",
        };
        warn!(server = %self.connector.base(), %error, "{message}; retrying");
    }
}

fn no_token() -> ClientError {
    ClientError::Refused {
        status: 401,
        body: Box::new(ErrorBody::new(
            ErrorCode::Unauthenticated,
            "no registration token and no API key of an earlier registration",
        )),
    }
}
