//! Alertmanager, API version 2: `POST /api/v2/alerts`.

use std::time::Duration;

use agentaflow_api::alert::Alert;
use agentaflow_api::units::Stamp;
use serde_json::{Map, Value, json};
use url::Url;

use super::{Origin, labels};
use crate::message::Message;

/// A firing alert that is not sent again within this time counts as resolved. Alerts are sent again every minute.
const VALID: Duration = Duration::from_mins(5);

const PATH: &str = "api/v2/alerts";

pub fn payload(message: &Message, origin: Origin<'_>) -> Value {
    Value::Array(message.alerts().map(|alert| entry(alert, message.at, origin)).collect())
}

/// Endpoint of an address that may lack the path of the API.
pub fn endpoint(base: &Url) -> Url {
    let mut url = base.clone();
    if !base.path().trim_end_matches('/').ends_with(PATH) {
        url.set_path(&format!("{}/{PATH}", base.path().trim_end_matches('/')));
    }
    url
}

fn entry(alert: &Alert, at: Stamp, origin: Origin<'_>) -> Value {
    let mut names = Map::new();
    names.insert("alertname".to_owned(), camel_case(alert.kind.as_str()).into());
    names.insert("severity".to_owned(), alert.severity.as_str().into());
    for (label, value) in labels(&alert.subject) {
        names.insert(label.to_owned(), value.into());
    }
    if let Some(cluster) = origin.cluster {
        names.insert("cluster".to_owned(), cluster.into());
    }
    let valid = Stamp(at.0 + VALID.as_millis() as i64);
    let mut entry = json!({
        "labels": names,
        "annotations": {"summary": alert.summary, "description": alert.action},
        "startsAt": alert.fired_at.unwrap_or(alert.since),
        "endsAt": alert.resolved_at.unwrap_or(valid),
    });
    if let Some(link) = origin.link() {
        entry["generatorURL"] = link.into();
    }
    entry
}

/// Name of an alert as the rules in `deploy/prometheus` have it: `AgentaflowGpuHot`.
fn camel_case(word: &str) -> String {
    let mut name = String::from("Agentaflow");
    for part in word.split('_') {
        let mut letters = part.chars();
        name.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        name.push_str(letters.as_str());
    }
    name
}
