//! Random requests, from a grammar with the API's vocabulary.

use proptest::prelude::*;
use serde_json::Value;

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop_oneof![
            Just("running"),
            Just("docker"),
            Just("process"),
            Just("1g.5gb"),
            Just("/a"),
            Just("root")
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,6}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A random request: the call, the token, and the defect.
#[derive(Clone, Debug)]
pub(crate) struct Shot {
    pub(crate) call: prop::sample::Index,
    pub(crate) token: prop::sample::Index,
    pub(crate) fields: Vec<(prop::sample::Index, Value)>,
    /// True for a valid body and token.
    pub(crate) sound: bool,
    pub(crate) segment: String,
    pub(crate) query: String,
    pub(crate) method: &'static str,
    pub(crate) raw: Option<Vec<u8>>,
    pub(crate) headers: Vec<(&'static str, String)>,
}

pub(crate) fn shot() -> impl Strategy<Value = Shot> {
    let segment = prop_oneof![
        Just("1".to_owned()),
        Just("root".to_owned()),
        Just("gpu-000000000000".to_owned()),
        Just("agent".to_owned()),
        Just("-1".to_owned()),
        Just("99999999999999999999".to_owned()),
        Just("%00".to_owned()),
        Just("%ff".to_owned()),
        Just("..%2f..".to_owned()),
        "[a-z0-9%._~-]{0,12}",
    ];
    let name = prop_oneof![
        Just("limit"),
        Just("skip"),
        Just("status"),
        Just("after"),
        Just("before"),
        Just("by"),
        Just("from"),
        Just("to"),
        Just("format"),
        Just("tail"),
        Just("offset"),
        Just("task"),
        Just("code"),
        Just("session"),
        Just("wait_ms"),
        Just("gpu_memory_required"),
        Just("user_id"),
        Just("name"),
    ];
    let value = prop_oneof![
        "[0-9]{0,20}",
        "[a-z%0-9.+-]{0,10}",
        Just("csv".to_owned()),
        Just("1".to_owned())
    ];
    let query = prop::collection::vec((name, value), 0..3).prop_map(|pairs| {
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
    });
    let header = prop_oneof![
        Just("idempotency-key"),
        Just("last-event-id"),
        Just("origin"),
        Just("cookie"),
        Just("content-type"),
        Just("x-forwarded-proto"),
        Just("accept"),
        Just("range"),
    ];
    let headers = prop::collection::vec((header, "[ -~]{0,20}"), 0..3);
    let method = prop_oneof![
        60 => Just(""), 1 => Just("GET"), 1 => Just("POST"), 1 => Just("PUT"), 1 => Just("DELETE"),
        1 => Just("PATCH"), 1 => Just("OPTIONS"), 1 => Just("BREW"),
    ];
    let raw = prop::option::weighted(0.1, prop::collection::vec(any::<u8>(), 0..64));
    let fields = prop::collection::vec((any::<prop::sample::Index>(), any_json()), 0..3);
    let aim = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>());
    (aim, fields, segment, query, method, raw, headers).prop_map(
        |((call, token, sound), fields, segment, query, method, raw, headers)| Shot {
            call,
            token,
            fields,
            sound,
            segment,
            query,
            method,
            raw,
            headers,
        },
    )
}
