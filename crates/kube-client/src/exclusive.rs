//! Exclusive use of GPUs: all GPU pods of the cluster are placed by agentaflow.
//!
//! Two schedulers that place pods on the same GPUs do not see each other's decisions in time, and the kubelet rejects the
//! loser. With exclusive use an admission policy refuses GPU pods of other schedulers, and the webhook assigns the GPU
//! pods of all namespaces to agentaflow before the policy sees them.

use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_core::translate::gpu_resources;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::{Cluster, Failure, list};

/// Name of the policy and of its binding.
const POLICY: &str = "agentaflow-exclusive";
/// Name of the webhook configuration, and of its webhook for namespaces that opted in.
const CONFIGURATION: &str = "agentaflow";
const OPTED_IN: &str = "gpu-pods.agentaflow.io";
/// Label of every namespace with its own name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// State of exclusive use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exclusive {
    /// The policy refuses GPU pods of other schedulers.
    pub enforced: bool,
    /// The webhook assigns GPU pods of all namespaces; none if it is not installed.
    pub assigned: Option<bool>,
    /// GPU pods of other schedulers that exist.
    pub foreign: Vec<ForeignPod>,
}

/// A GPU pod of another scheduler.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignPod {
    /// `namespace/name`.
    pub name: String,
    pub scheduler: String,
    /// None while the pod is pending.
    pub node: Option<String>,
}

/// Namespaces with exclusive use: all except `kube-system`, or namespaces with a label.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Label key and value.
    pub label: Option<(String, String)>,
}

impl Scope {
    fn expressions(&self) -> Value {
        let mut terms =
            vec![json!({"key": NAMESPACE_NAME, "operator": "NotIn", "values": ["kube-system"]})];
        if let Some((key, value)) = &self.label {
            terms.push(json!({"key": key, "operator": "In", "values": [value]}));
        }
        json!(terms)
    }
}

impl Cluster {
    pub async fn exclusive(&self, scheduler: &str) -> Result<Exclusive, Failure> {
        let binding = self.policies("ValidatingAdmissionPolicyBinding").get_opt(POLICY).await?;
        let configuration = self.webhooks().get_opt(CONFIGURATION).await?;
        let assigned = configuration.map(|found| {
            let annotations = found.metadata.annotations.unwrap_or_default();
            annotations.contains_key(names::EXCLUSIVE)
        });
        let foreign = self.foreign_pods(scheduler).await?;
        Ok(Exclusive { enforced: binding.is_some(), assigned, foreign })
    }

    /// GPU pods of other schedulers, except finished pods and pods of daemon sets.
    pub async fn foreign_pods(&self, scheduler: &str) -> Result<Vec<ForeignPod>, Failure> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let live = ListParams::default().fields("status.phase!=Succeeded,status.phase!=Failed");
        let found = list::all(&pods, live).await?;
        let mut foreign: Vec<_> =
            found.iter().filter_map(|pod| foreign_pod(pod, scheduler)).collect();
        foreign.sort();
        Ok(foreign)
    }

    pub async fn enable_exclusive(&self, scope: &Scope, scheduler: &str) -> Result<(), Failure> {
        self.extend_webhook(Some(scope)).await?;
        let how = PatchParams::apply("agentaflow-cli").force();
        for object in policy(scope, scheduler) {
            let kind = object["kind"].as_str().unwrap_or_default();
            self.policies(kind).patch(POLICY, &how, &Patch::Apply(&object)).await?;
        }
        Ok(())
    }

    pub async fn disable_exclusive(&self) -> Result<(), Failure> {
        for kind in ["ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"] {
            let gone = self.policies(kind).delete(POLICY, &DeleteParams::default()).await;
            match gone.map_err(Failure::from) {
                Ok(_) | Err(Failure::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.extend_webhook(None).await
    }

    /// Extends the webhook for namespaces that opted in to this scope, or restores it; without a webhook nothing changes.
    async fn extend_webhook(&self, scope: Option<&Scope>) -> Result<(), Failure> {
        let api = self.webhooks();
        let Some(found) = api.get_opt(CONFIGURATION).await? else { return Ok(()) };
        let mut whole = serde_json::to_value(found)
            .map_err(|error| Failure::Other(format!("cannot read the webhook: {error}")))?;
        if !select_namespaces(&mut whole, scope) {
            return Ok(());
        }
        // With the resource version: the leader writes its certificate at any time.
        let version = &whole["metadata"]["resourceVersion"];
        let patch = json!({
            "metadata": {
                "resourceVersion": version,
                "annotations": {names::EXCLUSIVE: scope.map(|_| "true")},
            },
            "webhooks": whole["webhooks"],
        });
        api.patch(CONFIGURATION, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    fn webhooks(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    fn policies(&self, kind: &str) -> Api<DynamicObject> {
        let version = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        Api::all_with(self.client.clone(), &ApiResource::from_gvk(&version))
    }
}

/// Sets the namespaces of the webhook for namespaces that opted in; returns true if it exists.
fn select_namespaces(configuration: &mut Value, scope: Option<&Scope>) -> bool {
    let webhooks = configuration["webhooks"].as_array_mut().into_iter().flatten();
    let Some(webhook) = webhooks.into_iter().find(|webhook| webhook["name"] == OPTED_IN) else {
        return false;
    };
    let expressions = match scope {
        Some(scope) => scope.expressions(),
        None => json!([
            {"key": NAMESPACE_NAME, "operator": "NotIn", "values": ["kube-system"]},
            {"key": names::NAMESPACE_OPT_IN, "operator": "In", "values": [names::NAMESPACE_OPT_IN_VALUE]},
        ]),
    };
    webhook["namespaceSelector"] = json!({ "matchExpressions": expressions });
    true
}

/// The policy and its binding.
fn policy(scope: &Scope, scheduler: &str) -> [Value; 2] {
    let metadata = json!({
        "name": POLICY,
        "labels": {"app.kubernetes.io/part-of": "agentaflow"},
    });
    let version = "admissionregistration.k8s.io/v1";
    let gpus = |containers: &str| {
        format!(
            "(has(object.spec.{containers}) && object.spec.{containers}.exists(container, \
             has(container.resources) && has(container.resources.limits) && \
             container.resources.limits.exists(name, name == '{}' || name.startsWith('{}'))))",
            names::GPU_RESOURCE,
            names::MIG_PREFIX
        )
    };
    let message = format!(
        "agentaflow places all GPU pods of this namespace: set spec.schedulerName to {scheduler}, or ask an administrator \
         for `agentaflow exclusive off`"
    );
    let policy = json!({
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
            }]},
            "matchConditions": [
                {"name": "uses-gpus", "expression": format!("{} || {}", gpus("containers"), gpus("initContainers"))},
                {"name": "not-placed", "expression": "!has(object.spec.nodeName) || object.spec.nodeName == ''"},
                {"name": "not-a-daemon", "expression":
                    "!has(object.metadata.ownerReferences) || !object.metadata.ownerReferences.exists(owner, \
                     has(owner.controller) && owner.controller && owner.kind == 'DaemonSet')"},
            ],
            "validations": [{
                "expression": format!("object.spec.schedulerName == '{scheduler}'"),
                "message": message,
                "reason": "Forbidden",
            }],
        },
    });
    let binding = json!({
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {
            "policyName": POLICY,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchExpressions": scope.expressions()}},
        },
    });
    [policy, binding]
}

fn foreign_pod(pod: &Pod, scheduler: &str) -> Option<ForeignPod> {
    let other = pod.spec.scheduler_name.as_deref().unwrap_or("default-scheduler");
    let owners = pod.metadata.owner_references.iter().flatten();
    let daemon =
        owners.into_iter().any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet");
    let is_foreign = other != scheduler && !daemon && !gpu_resources(pod).is_empty();
    is_foreign.then(|| ForeignPod {
        name: super::node_view::whole_name(pod),
        scheduler: other.to_owned(),
        node: pod.spec.node_name.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_webhook_covers_all_namespaces_and_returns_to_opted_in_namespaces() {
        let installed = json!({"webhooks": [
            {"name": "pods.agentaflow.io", "namespaceSelector": {}},
            {"name": OPTED_IN, "namespaceSelector": {"matchExpressions": [
                {"key": NAMESPACE_NAME, "operator": "NotIn", "values": ["kube-system"]},
                {"key": names::NAMESPACE_OPT_IN, "operator": "In", "values": ["enabled"]},
            ]}},
        ]});
        let mut changed = installed.clone();
        assert!(select_namespaces(&mut changed, Some(&Scope::default())));
        let expected =
            json!([{"key": NAMESPACE_NAME, "operator": "NotIn", "values": ["kube-system"]}]);
        assert_eq!(changed["webhooks"][1]["namespaceSelector"]["matchExpressions"], expected);
        assert!(select_namespaces(&mut changed, None));
        assert_eq!(changed, installed);
        assert!(!select_namespaces(&mut json!({"webhooks": []}), None));
    }

    #[test]
    fn pods_of_this_scheduler_of_daemons_and_without_gpus_are_not_foreign() {
        let check = |scheduler: &str, gpus: Value, owner: &str, expected: bool| {
            let pod = json!({
                "metadata": {
                    "namespace": "team", "name": "p",
                    "ownerReferences": [{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u", "controller": true}],
                },
                "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "resources": {"limits": gpus}}]},
            });
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            assert_eq!(foreign_pod(&pod, "agentaflow").is_some(), expected, "{scheduler} {owner}");
        };
        let one = || json!({"nvidia.com/gpu": "1"});
        check("default-scheduler", one(), "ReplicaSet", true);
        check("volcano", one(), "Job", true);
        check("agentaflow", one(), "ReplicaSet", false);
        check("default-scheduler", one(), "DaemonSet", false);
        check("default-scheduler", json!({"cpu": "1"}), "ReplicaSet", false);
    }
}
