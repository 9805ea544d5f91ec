//! What the API server is told to ask us.

use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::{CONFIGURATION, Options};
use crate::names;

/// Who writes the configurations, as the API server records it.
const MANAGER: &str = "agentaflow-webhook";

/// Tells the API server which certificate to trust; with an address of our own also what to ask us.
pub(super) async fn install(
    options: &Options,
    client: &Client,
    bundle: &str,
) -> Result<(), kube::Error> {
    let parameters = PatchParams::apply(MANAGER).force();
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        let version = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let api: Api<DynamicObject> =
            Api::all_with(client.clone(), &ApiResource::from_gvk(&version));
        let whole = configuration(kind, options);
        let patch = if options.url.is_some() { whole } else { only_trust(&whole) };
        api.patch(CONFIGURATION, &parameters, &Patch::Apply(&trusting(patch, bundle))).await?;
    }
    Ok(())
}

/// The configuration of a kind, without the certificate to trust.
pub(super) fn configuration(kind: &str, options: &Options) -> Value {
    let webhooks = match kind {
        "MutatingWebhookConfiguration" => vec![pods(options, true), pods(options, false)],
        _ => vec![
            validating(options, "workloads", "gpuworkloads", "Namespaced", "Fail"),
            validating(options, "queues", "gpuqueues", "Cluster", "Ignore"),
        ],
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {
            "name": CONFIGURATION,
            "labels": {"app.kubernetes.io/part-of": "agentaflow"},
        },
        "webhooks": webhooks,
    })
}

/// Who edits the installed configurations (other namespaces, say) keeps that; only the trust is ours.
fn only_trust(whole: &Value) -> Value {
    let webhooks = whole["webhooks"].as_array().into_iter().flatten();
    let webhooks: Vec<_> =
        webhooks.map(|webhook| json!({"name": webhook["name"], "clientConfig": {}})).collect();
    json!({
        "apiVersion": whole["apiVersion"],
        "kind": whole["kind"],
        "metadata": {"name": CONFIGURATION},
        "webhooks": webhooks,
    })
}

fn trusting(mut configuration: Value, bundle: &str) -> Value {
    let webhooks = configuration["webhooks"].as_array_mut();
    for webhook in webhooks.into_iter().flatten() {
        webhook["clientConfig"]["caBundle"] = bundle.into();
    }
    configuration
}

/// Pods are asked about on two paths, because only the API server knows the labels of the namespace. A pod is never
/// refused because we are away: it then goes to the scheduler that it names.
fn pods(options: &Options, opted_in: bool) -> Value {
    let (name, path) = if opted_in {
        ("gpu-pods.agentaflow.io", "/mutate-pods/opted-in")
    } else {
        ("pods.agentaflow.io", "/mutate-pods")
    };
    let operator = if opted_in { "In" } else { "NotIn" };
    json!({
        "name": name,
        "clientConfig": client(options, path),
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"],
            "scope": "Namespaced",
        }],
        "namespaceSelector": {"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]},
            {"key": names::NAMESPACE_OPT_IN, "operator": operator, "values": [names::NAMESPACE_OPT_IN_VALUE]},
        ]},
        "matchConditions": conditions(options, opted_in),
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "Never",
        "sideEffects": "None",
        "timeoutSeconds": 5,
        "admissionReviewVersions": ["v1"],
    })
}

/// Only pods that could become ours are sent to us.
fn conditions(options: &Options, opted_in: bool) -> Value {
    let Options { namespace, scheduler_name, .. } = options;
    let scheduler = format!(
        "!has(object.spec.schedulerName) || object.spec.schedulerName in ['', 'default-scheduler', '{scheduler_name}']"
    );
    let component = format!(
        "request.namespace != '{namespace}' || !has(object.metadata.labels) || \
         !('app.kubernetes.io/part-of' in object.metadata.labels) || \
         object.metadata.labels['app.kubernetes.io/part-of'] != 'agentaflow'"
    );
    let owned = "has(object.metadata.ownerReferences)";
    let annotated = format!(
        "has(object.metadata.annotations) && object.metadata.annotations.exists(key, key.startsWith('{}'))",
        names::PREFIX
    );
    let gpu = |containers: &str| {
        format!(
            "has(object.spec.{containers}) && object.spec.{containers}.exists(container, \
             has(container.resources) && has(container.resources.limits) && \
             container.resources.limits.exists(name, name == '{}' || name.startsWith('{}')))",
            names::GPU_RESOURCE,
            names::MIG_PREFIX
        )
    };
    let mut matter = format!("({owned}) || ({annotated})");
    if opted_in {
        matter = format!("{matter} || ({}) || ({})", gpu("containers"), gpu("initContainers"));
    }
    json!([
        {"name": "not-placed", "expression": "!has(object.spec.nodeName) || object.spec.nodeName == ''"},
        {"name": "not-of-another-scheduler", "expression": scheduler},
        {"name": "not-a-daemon", "expression":
            "!has(object.metadata.ownerReferences) || \
             !object.metadata.ownerReferences.exists(owner, owner.kind in ['DaemonSet', 'GPUWorkload'])"},
        {"name": "not-ours", "expression": component},
        {"name": "could-matter", "expression": matter},
    ])
}

/// Workloads fail closed, for their pods are made with our rights; queues are checked again where they are used.
fn validating(options: &Options, name: &str, resource: &str, scope: &str, failure: &str) -> Value {
    json!({
        "name": format!("{name}.agentaflow.io"),
        "clientConfig": client(options, &format!("/validate-{name}")),
        "rules": [{
            "apiGroups": [names::GROUP], "apiVersions": [names::VERSION], "resources": [resource],
            "operations": ["CREATE", "UPDATE"], "scope": scope,
        }],
        "matchConditions": [{
            "name": "changes-the-spec",
            "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec",
        }],
        "failurePolicy": failure,
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"],
    })
}

fn client(options: &Options, path: &str) -> Value {
    match &options.url {
        Some(url) => json!({"url": format!("{}{path}", url.trim_end_matches('/'))}),
        None => json!({"service": {
            "namespace": options.namespace, "name": options.service, "path": path, "port": super::PORT,
        }}),
    }
}
