//! Agents: the programs that run jobs on nodes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::ids::{AgentId, NodeId};
use crate::lenient;
use crate::node::Health;
use crate::units::{Secret, Stamp};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AgentRegistration {
    /// Unique name.
    pub agent_id: String,
    pub agent_version: Option<String>,
    /// Settings; agentaflow agents send `heartbeat_interval_ms` and `stop_grace_ms`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub config: Map<String, Value>,
    /// Capabilities; agentaflow agents send `stream: true`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub capabilities: Map<String, Value>,
    /// URL of the agent, for agents that the server pushes jobs to.
    pub api_endpoint: Option<String>,
    pub websocket_endpoint: Option<String>,
    #[serde(deserialize_with = "lenient::id")]
    pub node_id: Option<NodeId>,
}

/// An agent with its state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Agent {
    pub id: AgentId,
    pub agent_id: String,
    pub agent_version: Option<String>,
    pub config: Map<String, Value>,
    pub capabilities: Map<String, Value>,
    pub api_endpoint: Option<String>,
    pub websocket_endpoint: Option<String>,
    pub node_id: NodeId,
    pub status: AgentStatus,
    pub health_status: Health,
    /// Time of the last heartbeat.
    pub last_heartbeat: Option<Stamp>,
    /// Time of the first registration.
    pub created_at: Stamp,
    /// Time of the last change.
    pub updated_at: Stamp,
    /// Time of the last registration.
    pub started_at: Option<Stamp>,
    /// Key for the calls of the agent; only in the response to a registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentStatus {
    /// The agent has an open stream, or its push endpoint answers.
    Active,
    /// The server cannot reach the agent.
    #[default]
    Inactive,
}

/// Changes to an agent; absent fields stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AgentUpdate {
    pub agent_version: Option<String>,
    /// Replaces all settings.
    pub config: Option<Map<String, Value>>,
    /// Replaces all capabilities.
    pub capabilities: Option<Map<String, Value>>,
}

/// Question of an agent that does not know the server yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerProofRequest {
    /// Random text of 16 to 128 characters.
    pub nonce: String,
}

/// Answer: proofs that this server knows the registration tokens and serves with this public key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerProof {
    /// SHA-256 of the public key of the certificate: `sha256:…`.
    pub fingerprint: String,
    /// One HMAC-SHA256 for each valid registration token, over nonce and fingerprint, with the hash of the token as key.
    pub proofs: Vec<String>,
}
