//! Whether a queue can be used.

use agentaflow_kube_core::crd::{GpuQueueSpec, QueueAmounts};
use agentaflow_units::Amount;
use std::collections::BTreeMap;

use super::review::Verdict;

/// The queue above all others, which is the whole cluster.
pub(super) const ROOT: &str = "root";

/// The queues that there are, by name.
pub(super) type Queues = BTreeMap<String, GpuQueueSpec>;

/// Everything that is wrong with a queue beside the others.
pub(super) fn check(name: &str, spec: &GpuQueueSpec, others: &Queues) -> Verdict {
    let mut problems = Vec::new();
    if name == ROOT {
        problems.push("metadata.name: `root` is the whole cluster; take another name".to_owned());
    }
    if spec.namespaces.iter().any(String::is_empty) {
        problems.push(
            "spec.namespaces: a name is empty; write names of namespaces, or `*` for all"
                .to_owned(),
        );
    }
    if spec.weight == 0 {
        problems.push("spec.weight: must be at least 1; 100 is the usual weight".to_owned());
    }
    problems.extend(parent(name, spec, others));
    for (field, amounts) in [("guaranteed", &spec.guaranteed), ("limit", &spec.limit)] {
        problems.extend(unreadable(field, amounts));
    }
    problems.extend(over_limit(&spec.guaranteed, &spec.limit));
    Verdict { problems, ..Verdict::default() }
}

/// Whether workloads of the namespace may use the queue.
pub(super) fn serves(spec: &GpuQueueSpec, namespace: &str) -> bool {
    spec.namespaces.iter().any(|name| name == "*" || name == namespace)
}

fn parent(name: &str, spec: &GpuQueueSpec, others: &Queues) -> Option<String> {
    let mut above = spec.parent.as_deref().filter(|parent| *parent != ROOT)?;
    if above != name && !others.contains_key(above) {
        return Some(format!(
            "spec.parent: there is no GPUQueue `{above}`; create it first, or name another"
        ));
    }
    // Nobody can be deeper than there are queues, and a circle elsewhere is not this queue's fault.
    for _ in 0..=others.len() {
        if above == name {
            return Some(format!(
                "spec.parent: `{name}` would be part of itself; name a queue that is not below it, or leave it out"
            ));
        }
        let next = others.get(above).and_then(|queue| queue.parent.as_deref());
        above = next.filter(|parent| *parent != ROOT)?;
    }
    None
}

fn unreadable(field: &str, amounts: &QueueAmounts) -> Vec<String> {
    let quantities = [("cpu", &amounts.cpu), ("memory", &amounts.memory)];
    let bad = |text: &&String| Amount::parse(text.trim()).is_err();
    quantities
        .into_iter()
        .filter_map(|(resource, text)| Some((resource, text.as_ref().filter(bad)?)))
        .map(|(resource, text)| {
            format!("spec.{field}.{resource}: `{text}` is not a quantity such as 64, 500m or 512Gi")
        })
        .collect()
}

fn over_limit(guaranteed: &QueueAmounts, limit: &QueueAmounts) -> Vec<String> {
    let limits = amounts(limit);
    amounts(guaranteed)
        .into_iter()
        .filter(|(resource, value)| limits.get(resource).is_some_and(|limit| value > limit))
        .map(|(resource, _)| {
            format!(
                "spec.guaranteed.{resource}: is more than spec.limit.{resource}; raise the limit or lower what is \
                 guaranteed"
            )
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

    fn check_words(name: &str, spec: &Value, words: &[&str]) {
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
        let said = check(name, &serde_json::from_value(spec.clone()).unwrap(), &others)
            .problems
            .join("; ");
        assert_eq!(said.is_empty(), words.is_empty(), "{name} {spec}: {said}");
        for word in words {
            assert!(said.contains(word), "no `{word}` in: {said}");
        }
    }

    #[test]
    fn a_queue_must_have_its_place_in_the_tree() {
        check_words("new", &json!({"parent": "low"}), &[]);
        check_words("new", &json!({"parent": "root"}), &[]);
        check_words("new", &json!({"parent": "left"}), &[]);
        check_words(
            "new",
            &json!({"parent": "gone"}),
            &["spec.parent", "no GPUQueue `gone`", "create it first"],
        );
        check_words("new", &json!({"parent": "new"}), &["part of itself"]);
        check_words("top", &json!({"parent": "low"}), &["`top` would be part of itself"]);
        check_words("root", &json!({}), &["metadata.name: `root`"]);
    }

    #[test]
    fn amounts_must_be_readable_and_within_their_limits() {
        check_words(
            "q",
            &json!({"guaranteed": {"gpus": 4}, "limit": {"gpus": 4, "cpu": "64"}}),
            &[],
        );
        check_words("q", &json!({"guaranteed": {"gpus": 8}, "limit": {"memory": "1Ti"}}), &[]);
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
            check_words("q", &json!({"guaranteed": guaranteed, "limit": limit}), &[field]);
        }
    }

    #[test]
    fn a_queue_without_weight_or_with_nameless_namespaces_is_refused() {
        check_words("q", &json!({"weight": 0}), &["spec.weight"]);
        check_words("q", &json!({"namespaces": ["a", ""]}), &["spec.namespaces"]);
    }
}
