//! The generic format: all fields of the message as JSON.

use agentaflow_api::alert::{Alert, AlertKind, Severity};
use agentaflow_api::units::Stamp;
use serde::Serialize;
use serde_json::Value;

use super::Origin;
use crate::message::Message;

/// Version of the format; it rises with an incompatible change.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Body<'a> {
    version: u32,
    /// Equal in every attempt; also in the header `Idempotency-Key`.
    id: &'a str,
    /// `firing` or `resolved`.
    status: &'static str,
    kind: AlertKind,
    severity: Severity,
    title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<String>,
    at: Stamp,
    alerts: Vec<&'a Alert>,
}

pub fn payload(message: &Message, origin: Origin<'_>) -> Value {
    let body = Body {
        version: VERSION,
        id: &message.id,
        status: message.status(),
        kind: message.kind,
        severity: message.severity(),
        title: message.title(),
        cluster: origin.cluster,
        link: origin.link(),
        at: message.at,
        alerts: message.alerts().collect(),
    };
    serde_json::to_value(body).unwrap_or_default()
}
