//! Typed identifiers and amounts that are plain integers in JSON.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

macro_rules! integer {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(
            Clone,
            Copy,
            Debug,
            Default,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl $name {
            /// The number after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIntError;

            fn from_str(text: &str) -> Result<Self, ParseIntError> {
                text.parse().map(Self)
            }
        }

        impl From<i64> for $name {
            fn from(number: i64) -> Self {
                Self(number)
            }
        }

        impl From<$name> for i64 {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::new()
                    .schema_type(SchemaType::new(Type::Integer))
                    .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
                    .into()
            }
        }

        impl ToSchema for $name {}
    };
}

integer!(
    /// Number of a job, unique within one server.
    JobId
);
integer!(
    /// Number of a node. The `gpu-…` string is another name of the same node.
    NodeId
);
integer!(
    /// Number of a user.
    UserId
);
integer!(
    /// Number of an agent. The `agent_id` string is the name that the agent chose.
    AgentId
);
integer!(
    /// Number of an API key or a worker token.
    CredentialId
);
integer!(
    /// Number of an event, increasing; the cursor of lists and streams.
    EventSeq
);
integer!(
    /// Number of a ledger entry, increasing.
    LedgerEntryId
);
integer!(
    /// Millionths of a US dollar, written as an integer. [`crate::Dollars`] is the same amount written in dollars.
    MicroUsd
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_plain_integers_in_json() {
        assert_eq!(serde_json::to_string(&JobId(17)).unwrap(), "17");
        assert_eq!(serde_json::from_str::<NodeId>("3").unwrap(), NodeId(3));
        assert_eq!("42".parse::<UserId>().unwrap().to_string(), "42");
    }
}
