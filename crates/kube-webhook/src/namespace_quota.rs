//! Gangs that a `ResourceQuota` of their namespace never admits whole.

use std::collections::BTreeMap;

use agentaflow_kube_core::crd::GpuWorkloadSpec;
use agentaflow_kube_core::quota;
use agentaflow_units::Amount;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::Value;

/// Warnings for a gang of pods like this one, as the API server completes it.
pub(super) async fn warnings(
    client: &Client,
    namespace: &str,
    spec: &GpuWorkloadSpec,
    pod: Value,
) -> Vec<String> {
    // The dry run has checked one pod.
    let Some(pod) = serde_json::from_value::<Pod>(pod).ok().filter(|_| spec.gang_size > 1) else {
        return Vec::new();
    };
    let mut charges = charges(&pod);
    if !spec.task_overrides.is_empty() {
        // Tasks differ in the other resources.
        charges.retain(|resource, _| resource.contains("pods") || resource.contains('/'));
    }
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), namespace);
    match quotas.list(&ListParams::default().match_any()).await {
        Ok(quotas) => exceeded(&quotas.items, spec.gang_size, &charges),
        Err(error) => {
            tracing::debug!(%error, namespace, "admission cannot read the quotas");
            Vec::new()
        }
    }
}

fn charges(pod: &Pod) -> BTreeMap<String, Amount> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    quota::charges(containers.filter_map(|container| container.resources.as_ref()))
}

/// A quota with scopes counts only some pods: it gives no warning.
fn exceeded(
    quotas: &[ResourceQuota],
    pods: u32,
    charges: &BTreeMap<String, Amount>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    for quota in quotas {
        let Some(spec) = &quota.spec else { continue };
        if spec.scope_selector.is_some() || spec.scopes.as_ref().is_some_and(|all| !all.is_empty())
        {
            continue;
        }
        let name = quota.metadata.name.as_deref().unwrap_or_default();
        for (resource, hard) in spec.hard.iter().flatten() {
            let (Some(each), Ok(limit)) = (charges.get(resource), Amount::parse(&hard.0)) else {
                continue;
            };
            if each.floor_milli().saturating_mul(u64::from(pods)) > limit.ceil_milli() {
                warnings.push(format!(
                    "the {pods} pods of the gang never start: each uses {} {resource}, and ResourceQuota `{name}` admits {} \
                     in all; use a smaller spec.gangSize, or ask an administrator for a larger quota",
                    each.to_decimal(),
                    hard.0
                ));
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(spec: &Value, pods: u32, resources: &[&str]) {
        let quota = json!({"metadata": {"name": "q"}, "spec": spec});
        let limits = json!({"nvidia.com/gpu": "2", "memory": "1Gi"});
        let requests = json!({"nvidia.com/gpu": "2", "cpu": "500m", "memory": "1Gi"});
        let container = json!({"name": "c", "resources": {"requests": requests, "limits": limits}});
        let side = json!({"name": "s", "resources": {"requests": {"cpu": "500m"}}});
        let pod = json!({"spec": {"containers": [container, side]}});
        let charges = charges(&serde_json::from_value(pod).expect("a pod"));
        let quotas = [serde_json::from_value(quota).expect("a quota")];
        let warnings = exceeded(&quotas, pods, &charges);
        assert_eq!(warnings.len(), resources.len(), "{warnings:?}");
        for (warning, resource) in warnings.iter().zip(resources) {
            assert!(warning.contains(&format!(" {resource}, and ResourceQuota `q`")), "{warning}");
        }
    }

    #[test]
    fn a_gang_beyond_a_hard_limit_gives_a_warning_for_each_resource() {
        let hard = |hard: &Value| json!({"hard": hard});
        check(&hard(&json!({"pods": "4"})), 4, &[]);
        check(&hard(&json!({"pods": "4"})), 5, &["pods"]);
        check(&hard(&json!({"count/pods": "4"})), 5, &["count/pods"]);
        check(&hard(&json!({"requests.nvidia.com/gpu": "8"})), 4, &[]);
        check(&hard(&json!({"requests.nvidia.com/gpu": "8"})), 5, &["requests.nvidia.com/gpu"]);
        let cpu = json!({"cpu": "3", "requests.cpu": "3999m", "limits.cpu": "1"});
        check(&hard(&cpu), 4, &["cpu", "requests.cpu"]);
        check(&hard(&json!({"memory": "4Gi", "limits.memory": "3Gi"})), 4, &["limits.memory"]);
        check(&hard(&json!({"services": "0"})), 4, &[]);
        check(&json!({"hard": {"pods": "1"}, "scopes": []}), 5, &["pods"]);
        check(&json!({"hard": {"pods": "1"}, "scopes": ["BestEffort"]}), 5, &[]);
    }
}
