//! Spans: the steps of a job, with their times.

use agentaflow_api::trace::{SpanId, TraceId};
use agentaflow_api::units::Stamp;
use agentaflow_units::hash64;
use serde_json::{Value, json};

use crate::attribute::{self, Attribute};

/// `SPAN_KIND_INTERNAL`.
const INTERNAL: u8 = 1;
const STATUS_OK: u8 = 1;
const STATUS_ERROR: u8 = 2;

/// A step of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub parent: Option<SpanId>,
    /// One of few names; attributes tell jobs apart.
    pub name: &'static str,
    pub start: Stamp,
    pub end: Stamp,
    pub attributes: Vec<Attribute>,
    pub events: Vec<SpanEvent>,
    pub status: SpanStatus,
}

/// A moment within a span.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanEvent {
    pub at: Stamp,
    pub name: String,
    pub attributes: Vec<Attribute>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SpanStatus {
    #[default]
    Unset,
    Ok,
    /// Message of the failure.
    Error(String),
}

impl Span {
    /// A span without parent, attributes and events. `number` tells spans of equal name apart, such as attempts.
    pub fn new(
        trace_id: TraceId,
        name: &'static str,
        number: u64,
        start: Stamp,
        end: Stamp,
    ) -> Self {
        Self {
            trace_id,
            span_id: span_id(trace_id, name, number),
            parent: None,
            name,
            start,
            // A step of the clock must not make a span end before its start.
            end: end.max(start),
            attributes: Vec::new(),
            events: Vec::new(),
            status: SpanStatus::Unset,
        }
    }

    #[must_use]
    pub fn child_of(mut self, parent: SpanId) -> Self {
        self.parent = Some(parent);
        self
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<crate::AttributeValue>) -> Self {
        self.attributes.push(Attribute::new(name, value));
        self
    }

    pub(crate) fn encode(&self) -> Value {
        let status = match &self.status {
            SpanStatus::Unset => json!({}),
            SpanStatus::Ok => json!({ "code": STATUS_OK }),
            SpanStatus::Error(message) => json!({ "code": STATUS_ERROR, "message": message }),
        };
        let events: Vec<Value> = self.events.iter().map(SpanEvent::encode).collect();
        let mut span = json!({
            "traceId": self.trace_id,
            "spanId": self.span_id,
            "name": self.name,
            "kind": INTERNAL,
            "startTimeUnixNano": nanoseconds(self.start),
            "endTimeUnixNano": nanoseconds(self.end),
            "attributes": attribute::encode(&self.attributes),
            "events": events,
            "status": status,
        });
        if let Some(parent) = self.parent {
            span["parentSpanId"] = json!(parent);
        }
        span
    }
}

impl SpanEvent {
    fn encode(&self) -> Value {
        json!({
            "timeUnixNano": nanoseconds(self.at),
            "name": self.name,
            "attributes": attribute::encode(&self.attributes),
        })
    }
}

/// Id of a span, equal each time it is computed.
pub fn span_id(trace_id: TraceId, name: &str, number: u64) -> SpanId {
    let mut key = trace_id.bytes().to_vec();
    key.extend_from_slice(name.as_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    let bytes = hash64(&key).to_be_bytes();
    // Zero is no valid id.
    SpanId::new(bytes).or_else(|| SpanId::new([1; 8])).expect("not zero")
}

pub(crate) fn nanoseconds(at: Stamp) -> String {
    (i128::from(at.0) * 1_000_000).max(0).to_string()
}
