//! Identifiers of distributed traces, as in W3C Trace Context.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Name of the header and, in upper case, of the environment variable.
pub const TRACEPARENT: &str = "traceparent";

/// Version that this program writes.
const VERSION: u8 = 0;
/// Flag of a trace that its participants record.
const SAMPLED: u8 = 1;

/// Text that is no identifier of a trace or span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an identifier of a trace")]
pub struct InvalidTrace;

macro_rules! identifier {
    ($(#[$meta:meta])* $name:ident, $bytes:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// None for zero, which is invalid.
            pub fn new(bytes: [u8; $bytes]) -> Option<Self> {
                (bytes != [0; $bytes]).then_some(Self(bytes))
            }

            pub fn bytes(self) -> [u8; $bytes] {
                self.0
            }
        }

        impl fmt::Display for $name {
            /// Lower-case hexadecimal digits.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidTrace;

            fn from_str(text: &str) -> Result<Self, InvalidTrace> {
                let mut bytes = [0; $bytes];
                if text.len() != 2 * $bytes {
                    return Err(InvalidTrace);
                }
                for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
                    *byte = hexadecimal(digits)?;
                }
                Self::new(bytes).ok_or(InvalidTrace)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .pattern(Some(format!("^[0-9a-f]{{{}}}$", 2 * $bytes)))
                    .into()
            }
        }

        impl ToSchema for $name {}
    };
}

identifier!(
    /// Identifier of a trace: all spans of one job have the same.
    TraceId,
    16
);
identifier!(
    /// Identifier of a span within its trace.
    SpanId,
    8
);

/// Trace of a request, and the span that caused the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    pub trace_id: TraceId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SpanId>,
}

impl TraceContext {
    /// Value of `traceparent` for work that `span` causes.
    pub fn traceparent(trace_id: TraceId, span: SpanId) -> String {
        format!("{VERSION:02x}-{trace_id}-{span}-{SAMPLED:02x}")
    }
}

impl FromStr for TraceContext {
    type Err = InvalidTrace;

    /// Reads `traceparent`; later versions may append fields.
    fn from_str(text: &str) -> Result<Self, InvalidTrace> {
        let mut fields = text.trim().split('-');
        let mut next = || fields.next().ok_or(InvalidTrace);
        let version = hexadecimal(next()?.as_bytes())?;
        let (trace_id, parent) = (next()?.parse()?, next()?.parse()?);
        hexadecimal(next()?.as_bytes())?;
        if version == u8::MAX || (version == VERSION && fields.next().is_some()) {
            return Err(InvalidTrace);
        }
        Ok(Self { trace_id, parent: Some(parent) })
    }
}

/// Reads two lower-case hexadecimal digits.
fn hexadecimal(digits: &[u8]) -> Result<u8, InvalidTrace> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(InvalidTrace),
    };
    match digits {
        [high, low] => Ok(digit(*high)? << 4 | digit(*low)?),
        _ => Err(InvalidTrace),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_trace_parent_is_read_and_written_unchanged() {
        let text = format!("00-{TRACE}-{SPAN}-01");
        let context: TraceContext = text.parse().unwrap();
        assert_eq!(context.trace_id.to_string(), TRACE);
        assert_eq!(TraceContext::traceparent(context.trace_id, context.parent.unwrap()), text);
        let later = format!("01-{TRACE}-{SPAN}-03-more");
        assert_eq!(later.parse::<TraceContext>(), Ok(context));
    }

    #[test]
    fn malformed_trace_parents_are_rejected() {
        let zeros = "0".repeat(32);
        for text in [
            String::new(),
            TRACE.to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}é-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-1"),
        ] {
            assert_eq!(text.parse::<TraceContext>(), Err(InvalidTrace), "{text}");
        }
    }
}
