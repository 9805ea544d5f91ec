//! Webhook configurations for the API server.

use agentaflow_kube_core::names;
use agentaflow_kube_core::unit::{self, UnitKind};
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use std::collections::BTreeSet;

use super::Options;

/// Field manager of the configurations.
const MANAGER: &str = "agentaflow-webhook";
/// Label of every namespace with its own name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

pub(super) const KINDS: [&str; 2] =
    ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// Writes the trusted certificate into the configurations; with `url`, the whole configurations.
pub(super) async fn install(
    options: &Options,
    client: &Client,
    bundle: &str,
) -> Result<(), kube::Error> {
    let parameters = PatchParams::apply(MANAGER).force();
    for kind in KINDS {
        let version = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let api: Api<DynamicObject> =
            Api::all_with(client.clone(), &ApiResource::from_gvk(&version));
        let mut whole = configuration(kind, options);
        if options.url.is_some() {
            if let Some(installed) = api.get_opt(&options.configuration).await? {
                keep_exclusive(&mut whole, &installed);
            }
            put(&api, &trusting(whole, bundle)).await?;
            continue;
        }
        let installed = api.get(&options.configuration).await?;
        let patch = only_trust(&whole, &installed.data);
        if patch["webhooks"].as_array().is_none_or(Vec::is_empty) {
            continue;
        }
        api.patch(&options.configuration, &parameters, &Patch::Apply(&trusting(patch, bundle)))
            .await?;
    }
    Ok(())
}

/// Replaces an installed configuration: applying over it would leave both the address and the service, which the API
/// server rejects.
async fn put(api: &Api<DynamicObject>, whole: &Value) -> Result<(), kube::Error> {
    let name = whole["metadata"]["name"].as_str().unwrap_or_default();
    let webhooks = json!({"webhooks": whole["webhooks"]});
    let parameters =
        PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch(name, &parameters, &Patch::Merge(webhooks)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(whole)).await?;
        }
        answer => drop(answer?),
    }
    Ok(())
}

/// Keeps the namespaces that `agentaflow exclusive on` selected.
fn keep_exclusive(whole: &mut Value, installed: &DynamicObject) {
    let annotations = installed.metadata.annotations.as_ref();
    if !annotations.is_some_and(|all| all.contains_key(names::EXCLUSIVE)) {
        return;
    }
    let installed = installed.data["webhooks"].as_array().cloned().unwrap_or_default();
    for webhook in whole["webhooks"].as_array_mut().into_iter().flatten() {
        if let Some(old) = installed.iter().find(|old| old["name"] == webhook["name"]) {
            webhook["namespaceSelector"] = old["namespaceSelector"].clone();
        }
    }
}

/// Configuration of a kind, without the CA bundle.
pub(super) fn configuration(kind: &str, options: &Options) -> Value {
    let webhooks = match kind {
        "MutatingWebhookConfiguration" => vec![
            pods(options, true),
            pods(options, false),
            jobs(options, true),
            jobs(options, false),
        ],
        _ => vec![
            validating(options, "workloads", "gpuworkloads", "Namespaced", "Fail"),
            validating(options, "queues", "gpuqueues", "Cluster", "Ignore"),
        ],
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {
            "name": options.configuration,
            "labels": {"app.kubernetes.io/part-of": "agentaflow"},
        },
        "webhooks": webhooks,
    })
}

/// Only the trusted certificate is managed: edits of administrators stay, and a removed webhook stays removed.
fn only_trust(whole: &Value, installed: &Value) -> Value {
    let webhooks = |value: &Value| value["webhooks"].as_array().cloned().unwrap_or_default();
    let names: Vec<Value> =
        webhooks(installed).iter().map(|webhook| webhook["name"].clone()).collect();
    let ours = webhooks(whole).into_iter().filter(|webhook| names.contains(&webhook["name"]));
    let webhooks: Vec<_> =
        ours.map(|webhook| json!({"name": webhook["name"], "clientConfig": {}})).collect();
    json!({
        "apiVersion": whole["apiVersion"],
        "kind": whole["kind"],
        "metadata": {"name": whole["metadata"]["name"]},
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

/// Two paths for pods, because only the API server knows the labels of the namespace. Pods fail open: without the webhook
/// they keep the scheduler that they name.
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
        "namespaceSelector": namespaces(options, &[
            json!({"key": NAMESPACE_NAME, "operator": "NotIn", "values": ["kube-system"]}),
            json!({
                "key": names::NAMESPACE_OPT_IN, "operator": operator,
                "values": [names::NAMESPACE_OPT_IN_VALUE],
            }),
        ]),
        "matchConditions": conditions(options, opted_in),
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "Never",
        "sideEffects": "None",
        "timeoutSeconds": 3,
        "admissionReviewVersions": ["v1"],
    })
}

/// Match conditions: the API server sends only pods that the agentaflow scheduler may place.
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
    let kept = format!(
        "!has(object.metadata.ownerReferences) || !object.metadata.ownerReferences.exists(owner, \
         has(owner.controller) && owner.controller && ((owner.kind == 'DaemonSet' && \
         owner.apiVersion.startsWith('apps/')) || (owner.kind == 'GPUWorkload' && \
         owner.apiVersion.startsWith('{}/'))))",
        names::GROUP
    );
    let annotated = format!(
        "has(object.metadata.annotations) && object.metadata.annotations.exists(key, key.startsWith('{}'))",
        names::PREFIX
    );
    let gpu = |containers: &str| gpu("object.spec", containers);
    let gpus = format!("({}) || ({})", gpu("containers"), gpu("initContainers"));
    // Every Deployment, Job and operator of the cluster creates owned pods: without GPUs they do not matter, whatever their
    // owner is annotated with. Pods of the kinds that are units belong to gangs, also without GPUs.
    let owned = format!(
        "has(object.metadata.ownerReferences) && ({gpus} || \
         (has(object.spec.schedulerName) && object.spec.schedulerName == '{scheduler_name}') || \
         object.metadata.ownerReferences.exists(owner, owner.apiVersion.split('/')[0] in {}))",
        unit_groups()
    );
    let mut matter = format!("({annotated}) || ({owned})");
    if opted_in {
        matter = format!("{matter} || {gpus}");
    }
    json!([
        {"name": "not-placed", "expression": "!has(object.spec.nodeName) || object.spec.nodeName == ''"},
        {"name": "not-of-another-scheduler", "expression": scheduler},
        {"name": "not-a-daemon", "expression": kept},
        {"name": "not-ours", "expression": component},
        {"name": "could-matter", "expression": matter},
    ])
}

/// CEL list of the API groups of units. Jobs of the group `batch` are too many; their pods name the scheduler.
fn unit_groups() -> String {
    let groups: BTreeSet<&str> = unit::KINDS.iter().map(|kind| kind.group).collect();
    let groups: Vec<String> = groups
        .iter()
        .filter(|group| **group != "batch")
        .map(|group| format!("'{group}'"))
        .collect();
    format!("[{}]", groups.join(", "))
}

/// Jobs that may become units. They fail open: without the webhook a job starts as it is written.
fn jobs(options: &Options, opted_in: bool) -> Value {
    let (name, path) = if opted_in {
        ("gpu-jobs.agentaflow.io", "/mutate-jobs/opted-in")
    } else {
        ("jobs.agentaflow.io", "/mutate-jobs")
    };
    let rule = |kind: &UnitKind| {
        json!({
            "apiGroups": [kind.group], "apiVersions": [kind.version], "resources": [kind.plural],
            "operations": ["CREATE"], "scope": "Namespaced",
        })
    };
    let mut webhook = pods(options, opted_in);
    webhook["name"] = json!(name);
    webhook["clientConfig"] = client(options, path);
    webhook["rules"] = unit::KINDS.iter().filter(|kind| kind.can_suspend()).map(rule).collect();
    webhook["matchConditions"] = job_conditions(options, opted_in);
    webhook
}

/// Most Jobs of a cluster are not opted in; objects of the other kinds are few.
fn job_conditions(options: &Options, opted_in: bool) -> Value {
    let annotated = |object: &str| {
        format!(
            "has({object}.metadata) && has({object}.metadata.annotations) && \
             {object}.metadata.annotations.exists(key, key.startsWith('{}'))",
            names::PREFIX
        )
    };
    let named = format!(
        "has(object.spec.template.spec.schedulerName) && \
         object.spec.template.spec.schedulerName == '{}'",
        options.scheduler_name
    );
    let mut matter = format!(
        "request.resource.group != 'batch' || ({named}) || ({}) || ({})",
        annotated("object"),
        annotated("object.spec.template")
    );
    if opted_in {
        matter = format!(
            "{matter} || ({}) || ({})",
            gpu("object.spec.template.spec", "containers"),
            gpu("object.spec.template.spec", "initContainers")
        );
    }
    json!([{"name": "could-matter", "expression": matter}])
}

/// CEL expression: a container of this pod spec has a GPU limit.
fn gpu(spec: &str, containers: &str) -> String {
    format!(
        "has({spec}.{containers}) && {spec}.{containers}.exists(container, \
         has(container.resources) && has(container.resources.limits) && \
         container.resources.limits.exists(name, name == '{}' || name.startsWith('{}')))",
        names::GPU_RESOURCE,
        names::MIG_PREFIX
    )
}

/// Workloads fail closed, because their pods are created with the scheduler's permissions; queues are checked again
/// when used.
fn validating(options: &Options, name: &str, resource: &str, scope: &str, failure: &str) -> Value {
    json!({
        "name": format!("{name}.agentaflow.io"),
        "clientConfig": client(options, &format!("/validate-{name}")),
        "rules": [{
            "apiGroups": [names::GROUP], "apiVersions": [names::VERSION], "resources": [resource],
            "operations": ["CREATE", "UPDATE"], "scope": scope,
        }],
        "namespaceSelector": namespaces(options, &[]),
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

fn namespaces(options: &Options, more: &[Value]) -> Value {
    let mut terms = more.to_vec();
    if !options.namespaces.is_empty() {
        terms.push(json!({"key": NAMESPACE_NAME, "operator": "In", "values": options.namespaces}));
    }
    if terms.is_empty() { json!({}) } else { json!({"matchExpressions": terms}) }
}

fn client(options: &Options, path: &str) -> Value {
    match &options.url {
        Some(url) => json!({"url": format!("{}{path}", url.trim_end_matches('/'))}),
        None => json!({"service": {
            "namespace": options.namespace, "name": options.service, "path": path, "port": super::PORT,
        }}),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::{Options, configurations};

    #[test]
    fn the_manifest_matches_the_code() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes/30-webhooks.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        let documents: Vec<Value> = text
            .split("\n---\n")
            .map(|document| serde_saphyr::from_str(document).unwrap())
            .collect();
        assert_eq!(
            documents,
            configurations(&Options::default()),
            "`cargo run -p agentaflow-kube-webhook --example webhooks` prints it anew"
        );
    }

    #[test]
    fn namespaces_of_exclusive_use_stay_after_a_restart() {
        let [mut whole, _] = configurations(&Options::default());
        let mut installed = whole.clone();
        installed["webhooks"][0]["namespaceSelector"] = serde_json::json!({});
        let check = |whole: &mut Value, installed: &Value| {
            super::keep_exclusive(whole, &serde_json::from_value(installed.clone()).unwrap());
            whole["webhooks"][0]["namespaceSelector"].clone()
        };
        assert_ne!(check(&mut whole, &installed), serde_json::json!({}), "not exclusive");
        installed["metadata"]["annotations"] =
            serde_json::json!({agentaflow_kube_core::names::EXCLUSIVE: "true"});
        assert_eq!(check(&mut whole, &installed), serde_json::json!({}));
    }

    #[test]
    fn a_removed_webhook_stays_removed() {
        let [whole, _] = configurations(&Options::default());
        let mut installed = whole.clone();
        installed["webhooks"].as_array_mut().unwrap().remove(0);
        let patch = super::trusting(super::only_trust(&whole, &installed), "trusted");
        let expected = serde_json::json!([
            {"name": "pods.agentaflow.io", "clientConfig": {"caBundle": "trusted"}},
            {"name": "gpu-jobs.agentaflow.io", "clientConfig": {"caBundle": "trusted"}},
            {"name": "jobs.agentaflow.io", "clientConfig": {"caBundle": "trusted"}},
        ]);
        assert_eq!(patch["webhooks"], expected);
    }

    #[test]
    fn an_outage_of_the_webhook_rejects_workloads_and_no_pods() {
        let [pods, ours] = configurations(&Options::default());
        let policies = |value: &Value| -> Vec<String> {
            let webhooks = value["webhooks"].as_array().unwrap().iter();
            webhooks.map(|webhook| webhook["failurePolicy"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(policies(&pods), ["Ignore"; 4]);
        assert_eq!(policies(&ours), ["Fail", "Ignore"]);
    }
}
