//! Reports of agents. Invalid values are repaired instead of rejected: the agent would only repeat the report, and the
//! output of a job is not the agent's fault.

use serde_json::{Value, json};

use agentaflow_api::event::EventKind;
use agentaflow_api::link::{Ended, Report, TaskUpdate};

use crate::http::limits;
use crate::http::read::deeper_than;

/// Repairs a report for storage: replaces NUL, truncates text, and limits amounts and times.
pub fn sanitize_report(report: &mut Report) {
    match &mut report.update {
        TaskUpdate::Accepted | TaskUpdate::Running { .. } => {}
        TaskUpdate::Placed(place) => {
            for name in [&mut place.namespace, &mut place.job_name, &mut place.pod_name] {
                name.retain(|c| !c.is_control());
                name.truncate(name.floor_char_boundary(253));
            }
        }
        TaskUpdate::Refused { detail } => repair_text(detail),
        TaskUpdate::Progress { kind, detail } => {
            if !matches!(kind, EventKind::Pulling | EventKind::Pulled | EventKind::Starting) {
                *kind = EventKind::Warning;
            }
            repair_text(detail);
        }
        TaskUpdate::Ended(ended) => repair_end(ended),
    }
}

fn repair_end(ended: &mut Ended) {
    ended.ran_ms = ended.ran_ms.min(limits::SECONDS * 1000);
    ended.log_bytes = ended.log_bytes.min(1 << 53);
    let usage = &mut ended.usage;
    for amount in [&mut usage.gpu_memory, &mut usage.memory, &mut usage.storage] {
        *amount = amount.map(|amount| amount.min(limits::SIZE));
    }
    if let Some(failure) = &mut ended.failed_to_start {
        repair_text(&mut failure.detail);
    }
    if let Some(output) = &mut ended.output_data {
        repair_output(output);
    }
}

/// Repairs the output data of a job for storage.
pub(super) fn repair_output(output: &mut Value) {
    let size = serde_json::to_vec(output).map_or(usize::MAX, |text| text.len());
    if size > limits::BODY {
        *output = json!({"dropped": "the output was larger than 1 MiB"});
    } else if deeper_than(output, limits::DEPTH) {
        *output = json!({"dropped": "the output was nested deeper than 64 levels"});
    }
    repair_value(output);
}

fn repair_text(text: &mut String) {
    text.truncate(text.floor_char_boundary(limits::TEXT));
    replace_nul(text);
}

/// Replaces NUL, which PostgreSQL cannot store.
pub(super) fn replace_nul(text: &mut String) {
    if text.contains('\0') {
        *text = text.replace('\0', "\u{fffd}");
    }
}

fn repair_value(value: &mut Value) {
    match value {
        Value::String(text) if text.contains('\0') => *text = text.replace('\0', "\u{fffd}"),
        Value::Array(items) => items.iter_mut().for_each(repair_value),
        Value::Object(map) => {
            if map.keys().any(|key| key.contains('\0')) {
                let entries = std::mem::take(map).into_iter();
                *map = entries.map(|(key, value)| (key.replace('\0', "\u{fffd}"), value)).collect();
            }
            map.values_mut().for_each(repair_value);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repaired(update: &Value) -> Value {
        let mut report = json!({"job": 1, "epoch": 1, "task": 0});
        report.as_object_mut().unwrap().extend(update.as_object().unwrap().clone());
        let mut report: Report = serde_json::from_value(report).unwrap();
        sanitize_report(&mut report);
        serde_json::to_value(report).unwrap()
    }

    #[test]
    fn a_report_is_sanitized_for_the_database() {
        let end = repaired(&json!({"update": "ended", "ran_ms": u64::MAX, "log_bytes": u64::MAX,
            "output_data": {"a\u{0}": ["b\u{0}"]}, "usage": {"memory": 1_u64 << 53}}));
        assert_eq!(end["output_data"], json!({"a\u{fffd}": ["b\u{fffd}"]}));
        assert!(end["ran_ms"].as_u64().unwrap() < 1 << 40);
        assert_eq!(end["usage"]["memory"], limits::SIZE);
        let large = json!({"update": "ended", "output_data": "x".repeat(2 << 20)});
        assert!(repaired(&large)["output_data"]["dropped"].is_string());
        let refused =
            repaired(&json!({"update": "refused", "detail": format!("\u{0}{}", "é".repeat(5000))}));
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.len() <= limits::TEXT + 2 && !detail.contains('\0'));
        let progress = repaired(&json!({"update": "progress", "kind": "Pul\nling", "detail": "x"}));
        assert_eq!(progress["kind"], "Warning");
    }
}
