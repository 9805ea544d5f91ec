//! Agents: the programs that work for nodes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::lenient;
use crate::node::Health;
use crate::units::{Secret, Stamp};

/// What an agent says about itself when it registers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AgentRegistration {
    /// Its name; unique.
    pub agent_id: String,
    /// Its version.
    pub agent_version: Option<String>,
    /// Its settings; ours say `heartbeat_interval_ms` and `stop_grace_ms`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub config: Map<String, Value>,
    /// What it can do; ours says `stream: true`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub capabilities: Map<String, Value>,
    /// Where it can be called, for agents that are pushed to.
    pub api_endpoint: Option<String>,
    /// Where it can be called by web socket.
    pub websocket_endpoint: Option<String>,
    /// The number of its node.
    #[serde(deserialize_with = "lenient::whole")]
    pub node_id: Option<u64>,
}

/// An agent as the API shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Agent {
    /// Its number.
    pub id: i64,
    /// Its name.
    pub agent_id: String,
    /// Its version.
    pub agent_version: Option<String>,
    /// Its settings.
    pub config: Map<String, Value>,
    /// What it can do.
    pub capabilities: Map<String, Value>,
    /// Where it can be called.
    pub api_endpoint: Option<String>,
    /// Where it can be called by web socket.
    pub websocket_endpoint: Option<String>,
    /// The number of its node.
    pub node_id: i64,
    pub status: AgentStatus,
    /// `healthy`, `unhealthy` or `unknown`.
    pub health_status: Health,
    /// When it was last heard of.
    pub last_heartbeat: Option<Stamp>,
    /// When it registered first.
    pub created_at: Stamp,
    /// When it changed last.
    pub updated_at: Stamp,
    /// When it registered last.
    pub started_at: Option<Stamp>,
    /// The key for its calls; only in the answer to a registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
}

/// Status of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentStatus {
    /// The agent has an open stream, or its push endpoint answers.
    Active,
    /// The server cannot reach the agent.
    #[default]
    Inactive,
}

/// What may be changed about an agent; absent fields stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AgentUpdate {
    /// Its version.
    pub agent_version: Option<String>,
    /// Its settings; replaces all.
    pub config: Option<Map<String, Value>>,
    /// What it can do; replaces all.
    pub capabilities: Option<Map<String, Value>>,
}
