//! Attributes of resources, spans, events and metrics.

use serde_json::{Value, json};

/// An attribute by its OpenTelemetry name.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    pub name: &'static str,
    pub value: AttributeValue,
}

#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    Text(String),
    Integer(i64),
    Number(f64),
    Flag(bool),
    List(Vec<String>),
}

impl Attribute {
    pub fn new(name: &'static str, value: impl Into<AttributeValue>) -> Self {
        Self { name, value: value.into() }
    }
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<u32> for AttributeValue {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<f64> for AttributeValue {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for AttributeValue {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<Vec<String>> for AttributeValue {
    fn from(list: Vec<String>) -> Self {
        Self::List(list)
    }
}

pub(crate) fn encode(attributes: &[Attribute]) -> Value {
    let pair = |attribute: &Attribute| json!({ "key": attribute.name, "value": encode_value(&attribute.value) });
    attributes.iter().map(pair).collect()
}

fn encode_value(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::Text(text) => json!({ "stringValue": text }),
        // 64-bit integers are strings in the JSON form of protocol buffers.
        AttributeValue::Integer(number) => json!({ "intValue": number.to_string() }),
        AttributeValue::Number(number) => json!({ "doubleValue": number }),
        AttributeValue::Flag(flag) => json!({ "boolValue": flag }),
        AttributeValue::List(list) => {
            let values: Vec<Value> =
                list.iter().map(|text| json!({ "stringValue": text })).collect();
            json!({ "arrayValue": { "values": values } })
        }
    }
}
