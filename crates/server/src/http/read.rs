//! Parsing of requests: bodies, query strings and paths. All input is untrusted.

use std::collections::BTreeMap;

use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use agentaflow_api::error::ErrorCode;
use agentaflow_api::units::Stamp;

use super::limits;
use super::unique_keys::UniqueKeys;
use crate::api_error::ApiError;

/// Raw body within its size limit.
#[derive(Debug)]
pub(crate) struct Raw(pub(crate) Bytes);

/// JSON object. Unknown fields are ignored, because clients of the worker API rely on that.
#[derive(Debug)]
pub(crate) struct Sent<T>(pub(crate) T);

/// JSON object without unknown fields: a mistyped limit must not mean no limit.
#[derive(Debug)]
pub(crate) struct Exact<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Serialize + Default> FromRequest<S> for Exact<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let value = json_object(&body(request, limits::BODY).await?)?;
        let known = serde_json::to_value(T::default()).unwrap_or_default();
        only_known("", &value, &known)?;
        shape(value).map(Self)
    }
}

/// Read-only fields of responses, accepted so that a client may send a response back.
const READ_ONLY: [&str; 11] = [
    "id",
    "username",
    "balance",
    "spent_this_month",
    "pending",
    "running",
    "gpus_used",
    "cpu_used",
    "memory_used",
    "created_at",
    "updated_at",
];

/// Rejects fields that are not in `known`. An open map in `known` accepts any field.
fn only_known(place: &str, given: &Value, known: &Value) -> Result<(), ApiError> {
    let (Value::Object(given), Value::Object(known)) = (given, known) else { return Ok(()) };
    if known.is_empty() {
        return Ok(());
    }
    for (name, value) in given {
        let field = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
        if place.is_empty() && READ_ONLY.contains(&name.as_str()) {
            continue;
        }
        let Some(inner) = known.get(name) else {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            let detail = format!("unknown field `{field}`; known fields: {}", names.join(", "));
            return Err(ApiError::invalid(field, detail));
        };
        only_known(&field, value, inner)?;
    }
    Ok(())
}

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        body(request, limits::BODY).await.map(Self)
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Sent<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        object(&body(request, limits::BODY).await?).map(Self)
    }
}

/// Reads the body of a request, up to `most` bytes.
pub(crate) async fn body(request: Request, most: usize) -> Result<Bytes, ApiError> {
    let declared = request.headers().get("content-length");
    let declared = declared.and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > most as u64) {
        return Err(too_large(most));
    }
    let read = tokio::time::timeout(limits::BODY_TIME, to_bytes(request.into_body(), most)).await;
    let read =
        read.map_err(|_| ApiError::malformed("the body did not come in time; send it again"))?;
    read.map_err(|error| {
        let why = std::error::Error::source(&error);
        if why.and_then(|why| why.downcast_ref::<http_body_util::LengthLimitError>()).is_some() {
            too_large(most)
        } else {
            ApiError::malformed("the body ended before it was complete; send it again")
        }
    })
}

/// Parses a JSON object. Text that is not JSON is malformed (400); JSON of another shape is invalid (422).
pub(crate) fn object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    shape(json_object(bytes)?)
}

/// Like [`object`], but accepts an empty body.
pub(crate) fn object_or_nothing<T: DeserializeOwned + Default>(
    bytes: &[u8],
) -> Result<T, ApiError> {
    let empty = bytes.iter().all(u8::is_ascii_whitespace);
    if empty { Ok(T::default()) } else { object(bytes) }
}

/// Parses any JSON object.
pub(crate) fn json_object(bytes: &[u8]) -> Result<Value, ApiError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::malformed("the body is empty; this call needs a JSON object"));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|_| ApiError::malformed("the body is not valid UTF-8"))?;
    let UniqueKeys(value) = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let message = error.to_string();
        if message.starts_with("recursion limit") {
            return too_deep(None);
        }
        let what = plain_syntax(&message);
        ApiError::malformed(format!(
            "the body is not valid JSON: {what} (line {line}, column {column})"
        ))
    })?;
    if let Value::Object(fields) = &value {
        let deep = fields.iter().find(|(_, value)| deeper_than(value, limits::DEPTH - 1));
        return deep.map_or(Ok(()), |(field, _)| Err(too_deep(Some(field)))).map(|()| value);
    }
    Err(ApiError::malformed(format!(
        "the body must be a JSON object like {{\"name\": …}}; it is {}",
        kind(&value)
    )))
}

/// Returns true if the value is nested deeper than `most` levels. The parser itself stops at twice that depth.
pub(crate) fn deeper_than(value: &Value, most: usize) -> bool {
    let inner = |value| deeper_than(value, most - 1);
    match value {
        Value::Array(items) => most == 0 || items.iter().any(inner),
        Value::Object(map) => most == 0 || map.values().any(inner),
        _ => false,
    }
}

fn too_deep(field: Option<&String>) -> ApiError {
    // The error does not repeat an overlong field name.
    let field = field.filter(|name| name.len() <= limits::NAME).cloned();
    let what = field.as_ref().map_or_else(|| "the body".to_owned(), |name| format!("`{name}`"));
    let detail = format!("{what} nests lists and objects deeper than {} levels", limits::DEPTH);
    ApiError::invalid(field.unwrap_or_default(), detail)
}

/// Converts JSON to a type.
pub(crate) fn shape<T: DeserializeOwned>(value: Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." || path == "?" { String::new() } else { path };
        wrong_shape(&field, &error.into_inner().to_string())
    })
}

/// Query parameters. `query.rs` rejects unknown ones before; only a flag may be empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryParams(BTreeMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for QueryParams {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self::read(parts.uri.query().unwrap_or_default()))
    }
}

impl QueryParams {
    /// Parses a query string; the last of repeated parameters counts.
    pub(crate) fn read(text: &str) -> Self {
        let pairs = url::form_urlencoded::parse(text.as_bytes());
        Self(pairs.into_owned().collect())
    }

    fn value(&self, name: &str) -> Result<Option<&String>, ApiError> {
        let value = self.0.get(name);
        if value.is_some_and(String::is_empty) {
            let detail = format!("`{name}` is empty; write a value or leave `{name}` out");
            return Err(ApiError::invalid(name, detail));
        }
        Ok(value)
    }

    /// Optional text.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        super::check::plain(name, value, limits::QUERY_TEXT)?;
        Ok(Some(value))
    }

    /// Optional whole number; `4096.0` is valid.
    pub(crate) fn whole(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        let float = || {
            let value: f64 = value.parse().ok()?;
            let whole = value.fract() == 0.0 && (0.0..9e15).contains(&value);
            whole.then_some(value as u64)
        };
        let number = value.parse().ok().filter(|value: &u64| *value <= 1 << 53).or_else(float);
        number.map(Some).ok_or_else(|| {
            ApiError::invalid(name, format!("`{name}` must be a whole number of 0 or more"))
        })
    }

    /// Optional decimal number of at least 0, in thousandths.
    pub(crate) fn milli(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        let number = value.parse().ok().filter(|value| (0.0..=1e9).contains(value));
        let number = number.map(|value: f64| (value * 1000.0).round() as u64);
        number.map(Some).ok_or_else(|| {
            ApiError::invalid(name, format!("`{name}` must be a number of 0 or more"))
        })
    }

    /// Flag: false if absent, true if present without a value.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.0.get(name).map(|value| value.to_ascii_lowercase()).as_deref() {
            None | Some("false" | "0" | "no") => Ok(false),
            // `?follow` without a value.
            Some("" | "true" | "1" | "yes") => Ok(true),
            Some(_) => Err(ApiError::invalid(name, format!("`{name}` must be true or false"))),
        }
    }

    /// Optional time (`2026-11-15T06:43:29Z`) or start of a day in UTC (`2026-11-15`).
    pub(crate) fn moment(&self, name: &str) -> Result<Option<Stamp>, ApiError> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        let day =
            || value.parse::<jiff::civil::Date>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
        let at = value.parse::<jiff::Timestamp>().ok().or_else(|| Some(day()?.timestamp()));
        at.map(|at| Some(Stamp(at.as_millisecond()))).ok_or_else(|| {
            let detail = format!(
                "`{name}` must be a day like 2026-11-15 or a time like 2026-11-15T06:43:29Z"
            );
            ApiError::invalid(name, detail)
        })
    }

    /// `skip` and `limit`.
    pub(crate) fn page(&self) -> Result<(u64, u64), ApiError> {
        let skip = self.whole("skip")?.unwrap_or(0);
        let limit = self.whole("limit")?.unwrap_or(limits::PAGE);
        if (1..=limits::PAGE_MOST).contains(&limit) {
            return Ok((skip, limit));
        }
        Err(ApiError::invalid("limit", format!("`limit` must be 1 to {}", limits::PAGE_MOST)))
    }

    /// Optional cursor.
    pub(crate) fn cursor<Id: From<i64>>(&self, name: &str) -> Result<Option<Id>, ApiError> {
        Ok(self.whole(name)?.map(|value| Id::from(value as i64)))
    }
}

/// Variable segments of the path, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Segments {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let raw = axum::extract::RawPathParams::from_request_parts(parts, state).await;
        let raw = raw.map_err(|_| ApiError::malformed("the path is not valid UTF-8"))?;
        Ok(Self(raw.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()))
    }
}

impl Segments {
    /// Segment as text.
    pub(crate) fn name(&self, name: &str) -> Result<&str, ApiError> {
        let value = self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value);
        super::check::plain(name, value, limits::NAME)?;
        Ok(value)
    }

    /// Segment as a number.
    pub(crate) fn number<Id: From<i64>>(&self, name: &str) -> Result<Id, ApiError> {
        let value = self.name(name)?;
        let number = value.parse().ok().filter(|number: &i64| *number > 0);
        number.map(Id::from).ok_or_else(|| {
            ApiError::invalid(name, format!("`{name}` in the path must be a number, like 17"))
        })
    }
}

fn too_large(most: usize) -> ApiError {
    let size =
        if most < 1 << 20 { format!("{} KiB", most >> 10) } else { format!("{} MiB", most >> 20) };
    ApiError::new(413, ErrorCode::TooLarge, format!("the body is larger than {size}"))
        .limit(most as u64)
}

/// Message for a serde error. A value is repeated only if it is a number: a text may be a misplaced secret.
fn wrong_shape(field: &str, message: &str) -> ApiError {
    let name = if field.is_empty() { "the body".to_owned() } else { format!("`{field}`") };
    let detail = if let Some((_, expected)) = message.split_once(", expected ") {
        let found = message.split([':', ',']).nth(1).unwrap_or_default().trim();
        format!("{name} must be {}{}", article(expected), found_value(found))
    } else if let Some(missing) = message.strip_prefix("missing field ") {
        format!("{missing} is missing in {name}")
    } else {
        format!("{name}: {message}")
    };
    ApiError::invalid(field, detail)
}

fn article(expected: &str) -> String {
    match expected {
        "a string" | "str" | "string" => "a text".to_owned(),
        "a map" | "a Map" => "an object".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "f64" | "u64" | "i64" => "a number".to_owned(),
        "u32" | "u8" | "u16" | "i32" => "a small whole number".to_owned(),
        other if other.starts_with("struct ") => "an object".to_owned(),
        other => other.to_owned(),
    }
}

/// The number that was found, or the kind of another value.
fn found_value(found: &str) -> String {
    let number = found.strip_prefix("integer ").or_else(|| found.strip_prefix("floating point "));
    number.map_or_else(
        || found_kind(found).to_owned(),
        |number| format!("; it is {}", number.trim_matches('`')),
    )
}

fn found_kind(found: &str) -> &'static str {
    let kinds = [
        ("string", "; it is a text"),
        ("map", "; it is an object"),
        ("sequence", "; it is a list"),
        ("boolean", "; it is true or false"),
        ("null", "; it is null"),
        ("unit", "; it is null"),
    ];
    kinds.iter().find(|(word, _)| found.starts_with(word)).map_or("", |(_, words)| words)
}

fn plain_syntax(message: &str) -> &str {
    message.split(" at line ").next().unwrap_or(message)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
