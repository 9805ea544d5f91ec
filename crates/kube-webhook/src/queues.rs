//! Validation of queues.

use agentaflow_kube_core::crd::{GpuQueueSpec, QueueAmounts};
use agentaflow_units::Amount;
use std::collections::BTreeMap;

use super::review::{AdmissionResult, Problem};

/// Root of the queue tree: the whole cluster.
pub(super) const ROOT: &str = "root";

/// Queues by name.
pub(super) type Queues = BTreeMap<String, GpuQueueSpec>;

/// All problems of a queue, given all other queues.
pub(super) fn check(name: &str, spec: &GpuQueueSpec, others: &Queues) -> AdmissionResult {
    let mut problems = Vec::new();
    if name == ROOT {
        let message = "`root` is reserved for the whole cluster; use another name";
        problems.push(Problem::at("metadata.name", message));
    }
    if spec.namespaces.iter().any(String::is_empty) {
        let message = "empty name; use names of namespaces, or `*` for all";
        problems.push(Problem::at("spec.namespaces", message));
    }
    if spec.weight == 0 {
        problems.push(Problem::at("spec.weight", "must be at least 1; the default is 100"));
    }
    problems.extend(parent(name, spec, others));
    for (field, amounts) in [("guaranteed", &spec.guaranteed), ("limit", &spec.limit)] {
        problems.extend(unreadable(field, amounts));
    }
    problems.extend(over_limit(&spec.guaranteed, &spec.limit));
    AdmissionResult { problems, ..AdmissionResult::default() }
}

/// True if workloads of the namespace may use the queue.
pub(super) fn serves(spec: &GpuQueueSpec, namespace: &str) -> bool {
    spec.namespaces.iter().any(|name| name == "*" || name == namespace)
}

fn parent(name: &str, spec: &GpuQueueSpec, others: &Queues) -> Option<Problem> {
    let mut above = spec.parent.as_deref().filter(|parent| *parent != ROOT)?;
    if above != name && !others.contains_key(above) {
        let message =
            format_args!("GPUQueue `{above}` does not exist; create it first, or use another");
        return Some(Problem::at("spec.parent", message));
    }
    // The depth is bounded by the number of queues; a cycle elsewhere is not a problem of this queue.
    for _ in 0..=others.len() {
        if above == name {
            let message = format_args!(
                "`{name}` would be its own ancestor; use a queue that is not below it, or omit the field"
            );
            return Some(Problem::at("spec.parent", message));
        }
        let next = others.get(above).and_then(|queue| queue.parent.as_deref());
        above = next.filter(|parent| *parent != ROOT)?;
    }
    None
}

fn unreadable(field: &str, amounts: &QueueAmounts) -> Vec<Problem> {
    let quantities = [("cpu", &amounts.cpu), ("memory", &amounts.memory)];
    let bad = |text: &&String| Amount::parse(text.trim()).is_err();
    quantities
        .into_iter()
        .filter_map(|(resource, text)| Some((resource, text.as_ref().filter(bad)?)))
        .map(|(resource, text)| {
            let message = format_args!("`{text}` is not a quantity such as 64, 500m or 512Gi");
            Problem::at(format!("spec.{field}.{resource}"), message)
        })
        .collect()
}

fn over_limit(guaranteed: &QueueAmounts, limit: &QueueAmounts) -> Vec<Problem> {
    let limits = amounts(limit);
    amounts(guaranteed)
        .into_iter()
        .filter(|(resource, value)| limits.get(resource).is_some_and(|limit| value > limit))
        .map(|(resource, _)| {
            let message = format_args!(
                "exceeds spec.limit.{resource}; raise the limit or lower the guarantee"
            );
            Problem::at(format!("spec.guaranteed.{resource}"), message)
        })
        .collect()
}

/// Every amount by its field.
fn amounts(amounts: &QueueAmounts) -> BTreeMap<String, Amount> {
    let quantity =
        |text: &Option<String>| text.as_ref().and_then(|text| Amount::parse(text.trim()).ok());
    let mut all = BTreeMap::new();
    all.extend(amounts.gpus.map(|value| ("gpus".to_owned(), Amount::from_units(value.into()))));
    all.extend(quantity(&amounts.cpu).map(|value| ("cpu".to_owned(), value)));
    all.extend(quantity(&amounts.memory).map(|value| ("memory".to_owned(), value)));
    all.extend(
        amounts
            .models
            .iter()
            .map(|(name, value)| (format!("models[{name}]"), Amount::from_units((*value).into()))),
    );
    all.extend(
        amounts
            .resources
            .iter()
            .map(|(name, value)| (format!("resources[{name}]"), Amount::from_units(*value))),
    );
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check_messages(name: &str, spec: &Value, words: &[&str]) {
        let queue = |parent: &str| GpuQueueSpec {
            parent: Some(parent.to_owned()),
            ..GpuQueueSpec::default()
        };
        let others = [
            ("top", "root"),
            ("middle", "top"),
            ("low", "middle"),
            ("left", "right"),
            ("right", "left"),
        ];
        let others = others.map(|(name, parent)| (name.to_owned(), queue(parent))).into();
        let message =
            check(name, &serde_json::from_value(spec.clone()).unwrap(), &others).message();
        assert_eq!(message.is_empty(), words.is_empty(), "{name} {spec}: {message}");
        for word in words {
            assert!(message.contains(word), "no `{word}` in: {message}");
        }
    }

    #[test]
    fn a_queue_must_have_its_place_in_the_tree() {
        check_messages("new", &json!({"parent": "low"}), &[]);
        check_messages("new", &json!({"parent": "root"}), &[]);
        check_messages("new", &json!({"parent": "left"}), &[]);
        check_messages(
            "new",
            &json!({"parent": "gone"}),
            &["spec.parent", "GPUQueue `gone`", "create it first"],
        );
        check_messages("new", &json!({"parent": "new"}), &["its own ancestor"]);
        check_messages("top", &json!({"parent": "low"}), &["`top` would be its own ancestor"]);
        check_messages("root", &json!({}), &["metadata.name: `root`"]);
    }

    #[test]
    fn amounts_must_be_readable_and_within_their_limits() {
        check_messages(
            "q",
            &json!({"guaranteed": {"gpus": 4}, "limit": {"gpus": 4, "cpu": "64"}}),
            &[],
        );
        check_messages("q", &json!({"guaranteed": {"gpus": 8}, "limit": {"memory": "1Ti"}}), &[]);
        for (guaranteed, limit, field) in [
            (json!({"gpus": 5}), json!({"gpus": 4}), "spec.guaranteed.gpus"),
            (json!({"cpu": "2"}), json!({"cpu": "1500m"}), "spec.guaranteed.cpu"),
            (json!({"memory": "1Ti"}), json!({"memory": "1000Gi"}), "spec.guaranteed.memory"),
            (
                json!({"models": {"A100": 2}}),
                json!({"models": {"A100": 1}}),
                "spec.guaranteed.models[A100]",
            ),
            (json!({"memory": "1 TB"}), json!({}), "spec.guaranteed.memory: `1 TB`"),
            (json!({}), json!({"cpu": -1}), "spec.limit.cpu: `-1`"),
        ] {
            check_messages("q", &json!({"guaranteed": guaranteed, "limit": limit}), &[field]);
        }
    }

    #[test]
    fn a_queue_without_weight_or_with_nameless_namespaces_is_refused() {
        check_messages("q", &json!({"weight": 0}), &["spec.weight"]);
        check_messages("q", &json!({"namespaces": ["a", ""]}), &["spec.namespaces"]);
    }
}
