//! Export of traces and of GPU metrics by OTLP over HTTP, as JSON.
//!
//! Open [`span`] for the data, and `exporter.rs` for its way to the receiver. The crate collects nothing: a driver makes
//! the spans of a job from records that survive a restart, and their ids are derived from the trace and the name, so a
//! repeated export repeats the same spans.

mod attribute;
mod collector;
mod exporter;
mod hardware;
pub mod span;

pub use attribute::{Attribute, AttributeValue};
pub use collector::{Collector, InvalidCollector};
pub use exporter::{ExportError, Exporter, Resource};
pub use hardware::push_gpu_metrics;
pub use span::{Span, SpanEvent, SpanStatus};
