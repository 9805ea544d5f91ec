//! `ResourceQuota`s: their use by a pod, and quotas without room for it.

use agentaflow_units::Amount;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use std::fmt;

use crate::slim::ResourceQuota;

/// Resources that a quota counts without a prefix, too.
const PLAIN: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Least amount of each quota resource that a pod uses: of its containers, without init containers and overhead.
pub fn charges<'a>(
    containers: impl Iterator<Item = &'a ResourceRequirements>,
) -> BTreeMap<String, Amount> {
    let one = || Amount::from_units(1);
    let mut sums = BTreeMap::from([("pods".to_owned(), one()), ("count/pods".to_owned(), one())]);
    let mut add = |resource: String, amount: Amount| {
        let sum = sums.entry(resource).or_insert(Amount::from_units(0));
        *sum = sum.saturating_add(amount);
    };
    for resources in containers {
        for (name, amount) in amounts(resources.requests.as_ref()) {
            if PLAIN.contains(&name.as_str()) {
                add(name.clone(), amount);
            }
            add(format!("requests.{name}"), amount);
        }
        for (name, amount) in amounts(resources.limits.as_ref()) {
            add(format!("limits.{name}"), amount);
        }
    }
    sums
}

fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> impl Iterator<Item = (String, Amount)> {
    let all = list.into_iter().flatten();
    all.filter_map(|(name, text)| Some((name.clone(), Amount::parse(&text.0).ok()?)))
}

/// A quota that admits no further pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullQuota {
    pub name: String,
    pub resource: String,
    pub used: String,
    pub hard: String,
}

impl fmt::Display for FullQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, resource, used, hard } = self;
        write!(
            f,
            "ResourceQuota `{name}` admits no further pod ({resource}: {used} of {hard} used)"
        )
    }
}

/// The first resource of a quota without room for a pod with these charges. A quota with scopes counts only some pods: it is
/// never full.
pub fn full(quota: &ResourceQuota, charges: &BTreeMap<String, Amount>) -> Option<FullQuota> {
    if quota.spec.scope_selector.is_some() || quota.spec.scopes.iter().flatten().next().is_some() {
        return None;
    }
    let (hard, used) = (&quota.status.hard, &quota.status.used);
    hard.iter().flatten().find_map(|(resource, hard)| {
        let used = used.as_ref().and_then(|used| used.get(resource));
        let used = used.map_or("0", |used| used.0.as_str());
        let sum = Amount::parse(used).ok()?.saturating_add(*charges.get(resource)?);
        (sum.floor_milli() > Amount::parse(&hard.0).ok()?.ceil_milli()).then(|| FullQuota {
            name: quota.metadata.name.clone().unwrap_or_default(),
            resource: resource.clone(),
            used: used.to_owned(),
            hard: hard.0.clone(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(hard: &Value, used: &Value, scopes: &Value, expected: Option<&str>) {
        let quota = json!({
            "metadata": {"name": "q"}, "spec": {"hard": hard, "scopes": scopes},
            "status": {"hard": hard, "used": used},
        });
        let resources = json!({"requests": {"nvidia.com/gpu": "2"}, "limits": {"cpu": "500m"}});
        let resources: ResourceRequirements = serde_json::from_value(resources).expect("resources");
        let quota = serde_json::from_value(quota).expect("a quota");
        let found = full(&quota, &charges([resources].iter()));
        assert_eq!(found.map(|full| full.resource).as_deref(), expected, "{hard} {used}");
    }

    #[test]
    fn a_quota_is_full_if_one_more_pod_exceeds_one_of_its_resources() {
        let none = json!([]);
        check(&json!({"pods": "6"}), &json!({"pods": "5"}), &none, None);
        check(&json!({"pods": "6"}), &json!({"pods": "6"}), &none, Some("pods"));
        check(&json!({"pods": "6"}), &json!({}), &none, None);
        let gpus = |used: &str| json!({"requests.nvidia.com/gpu": used});
        check(&gpus("8"), &gpus("6"), &none, None);
        check(&gpus("8"), &gpus("7"), &none, Some("requests.nvidia.com/gpu"));
        check(
            &json!({"limits.cpu": "1"}),
            &json!({"limits.cpu": "501m"}),
            &none,
            Some("limits.cpu"),
        );
        check(&json!({"services": "0"}), &json!({"services": "0"}), &none, None);
        check(&json!({"pods": "6"}), &json!({"pods": "6"}), &json!(["BestEffort"]), None);
    }
}
