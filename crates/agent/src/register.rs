//! Registers the node and the agent, and does so again whenever the server no longer knows them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::{info, warn};

use agentaflow_api::agent::AgentRegistration;
use agentaflow_api::client::{Client, ClientError};
use agentaflow_api::error::{ErrorBody, ErrorCode};
use agentaflow_api::node::Heartbeat;
use agentaflow_api::units::Secret;
use agentaflow_backoff::BackoffPolicy;

use crate::backoff::RECONNECT;
use crate::gpus::GpuWatch;
use crate::identity::{self, Credentials};
use crate::lease::Lease;
use crate::session::{Session, Sessions};
use crate::settings::AgentSettings;
use crate::{clock, facts};

/// Retry interval of a refused registration: an operator has to act first.
const REFUSED_DELAY: Duration = Duration::from_secs(10);

/// Everything a registration needs.
pub(crate) struct Registrar {
    pub(crate) settings: Arc<AgentSettings>,
    pub(crate) client: Client,
    pub(crate) agent_id: String,
    /// How tasks can be run here; a way may be added later.
    pub(crate) runtimes: Arc<Mutex<Vec<String>>>,
    pub(crate) sessions: Sessions,
    pub(crate) lease: Lease,
    pub(crate) gpus: Arc<GpuWatch>,
}

impl Registrar {
    /// Keeps the agent registered, for ever.
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
                    warn!("this registration holds no longer; registering again");
                    backoff.sleep().await;
                }
                Err(error) if matches!(error.status(), Some(400..=499)) && !error.is_passing() => {
                    self.explain(&error);
                    refused.sleep().await;
                }
                Err(error) => {
                    warn!(%error, "cannot register yet; trying again");
                    backoff.sleep().await;
                }
            }
        }
    }

    async fn register(&self) -> Result<Session, ClientError> {
        let Some(token) = &self.settings.registration_token else {
            return self.resume().ok_or_else(no_token);
        };
        match self.register_with(token).await {
            Err(error) if matches!(error.status(), Some(401 | 403)) => {
                // The token may have been revoked since; the key that it once gave is still good until proven
                // otherwise, and running tasks need it.
                self.resume_once().await.ok_or(error)
            }
            other => other,
        }
    }

    async fn register_with(&self, token: &Secret) -> Result<Session, ClientError> {
        let client = self.client.with_token(token.clone());
        let sent = clock::boot_ms();
        let runtimes = self.runtimes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let node = facts::registration(&self.settings, &self.gpus, runtimes);
        let node = client.register_node(&node).await?;
        let agent = client.register_agent(&self.agent(node.id)).await?;
        let api_key = agent.api_key.ok_or_else(|| ClientError::Garbled {
            url: self.client.base().to_string(),
            cause: "the registration gave no key".to_owned(),
        })?;
        self.lease.renew(sent);
        let credentials =
            Credentials { server: self.client.base().to_string(), node_id: node.node_id, api_key };
        if let Err(error) = identity::write_credentials(&self.settings.state_dir, &credentials) {
            warn!(%error, "cannot keep the key of the registration");
        }
        Ok(self.session(credentials))
    }

    /// The session of an earlier registration, as it was kept.
    fn resume(&self) -> Option<Session> {
        let found =
            identity::read_credentials(&self.settings.state_dir, self.client.base().as_str())?;
        Some(self.session(found))
    }

    /// The same, if the server still takes its key.
    async fn resume_once(&self) -> Option<Session> {
        let session = self.resume()?;
        let beat = Heartbeat {
            node_id: Some(Value::from(session.node_id.as_str())),
            ..Heartbeat::default()
        };
        let heard = session.client.heartbeat(&session.node_id, &beat, REFUSED_DELAY).await;
        if heard.is_ok() {
            warn!(
                "the registration token is refused; going on with the key of an earlier registration"
            );
        }
        heard.ok().map(|_| session)
    }

    fn session(&self, credentials: Credentials) -> Session {
        Session {
            client: self.client.with_token(credentials.api_key),
            agent_id: self.agent_id.clone(),
            node_id: credentials.node_id,
        }
    }

    fn agent(&self, node: i64) -> AgentRegistration {
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
            node_id: u64::try_from(node).ok(),
        }
    }

    fn explain(&self, error: &ClientError) {
        let what = match error.status() {
            Some(401 | 403) => {
                "the server refuses the registration token: give the agent a valid one (REGISTRATION_TOKEN, or the file `registration-token` in the server's data directory)"
            }
            _ => "the server refuses the registration",
        };
        warn!(server = %self.client.base(), %error, "{what}; trying again");
    }
}

fn no_token() -> ClientError {
    ClientError::Refused {
        status: 401,
        body: ErrorBody::new(
            ErrorCode::Unauthenticated,
            "no registration token, and no key of an earlier registration",
        ),
    }
}
