//! Checks of the agentaflow installation: scheduler, leader, version, webhook, monitor.

use agentaflow_api::Stamp;
use agentaflow_api::node::{Health, NodeStatus};
use agentaflow_console::format::{counted, one_line, short_time};
use agentaflow_kube_client::{Cluster, Failure};
use agentaflow_kube_core::names;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::super::Check;
use super::not_readable;

/// Age of the last lease renewal above which the leader is lost.
const STALE_LEASE_MS: i64 = 30_000;

pub(super) async fn checks(cluster: &Cluster, scheduler_name: &str) -> Vec<Check> {
    let mut checks = vec![scheduler(cluster).await, leader(cluster).await];
    checks.push(version(cluster).await);
    checks.extend([webhook(cluster).await, monitor(cluster).await]);
    checks.extend(silent_monitors(cluster).await);
    checks.extend(other_schedulers(cluster, scheduler_name).await);
    checks
}

async fn scheduler(cluster: &Cluster) -> Check {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), &cluster.system);
    let name = "agentaflow-gpu-scheduler";
    match deployments.get_opt(name).await {
        Ok(Some(found)) => {
            let status = found.status.unwrap_or_default();
            let ready = status.ready_replicas.unwrap_or(0);
            let wanted = found.spec.and_then(|spec| spec.replicas).unwrap_or(1);
            if ready > 0 {
                return Check::ok("scheduler", format!("{ready}/{wanted} ready"));
            }
            Check::fail(
                "scheduler",
                format!("0/{wanted} ready"),
                format!("run `kubectl -n {} logs deployment/{name}`", cluster.system),
            )
        }
        Ok(None) => Check::warn(
            "scheduler",
            format!("Deployment `{name}` not found in namespace {}", cluster.system),
            "run `kubectl apply -f deploy/kubernetes`; the check `leader` also finds a scheduler outside of the cluster",
        ),
        Err(error) => not_readable("scheduler", error),
    }
}

async fn leader(cluster: &Cluster) -> Check {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.system);
    let lease = match leases.get_opt("agentaflow-gpu-scheduler").await {
        Ok(lease) => lease.and_then(|lease| lease.spec),
        Err(error) => return not_readable("leader", error),
    };
    let fix = "no workload is placed without a leader; check the log of the scheduler";
    let Some(spec) = lease else { return Check::fail("leader", "no lease found", fix) };
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    let age = spec.renew_time.map(|time| Stamp::now().0 - time.0.as_millisecond());
    match (holder, age) {
        (Some(holder), Some(age)) if age < STALE_LEASE_MS => Check::ok("leader", holder),
        (Some(holder), Some(age)) => {
            let since = short_time(age as f64 / 1000.0);
            Check::fail("leader", format!("{holder} has not renewed its lease for {since}"), fix)
        }
        _ => Check::fail("leader", "no leader", fix),
    }
}

async fn monitor(cluster: &Cluster) -> Check {
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), &cluster.system);
    match sets.get_opt("agentaflow-gpu-monitor").await {
        Ok(Some(found)) => {
            let status = found.status.unwrap_or_default();
            let (ready, wanted) = (status.number_ready, status.desired_number_scheduled);
            if ready == wanted && wanted > 0 {
                return Check::ok("monitor", format!("on {}", counted(ready, "node")));
            }
            let fix = format!(
                "run `kubectl -n {} logs -l app=agentaflow-gpu-monitor`; the monitor runs on nodes with a device plugin, \
                 NVIDIA labels or `agentaflow.gpu/enabled=true`",
                cluster.system
            );
            Check::warn("monitor", format!("ready on {ready}/{}", counted(wanted, "node")), fix)
        }
        Ok(None) => Check::warn(
            "monitor",
            format!("DaemonSet `agentaflow-gpu-monitor` not found in namespace {}", cluster.system),
            "run `kubectl apply -f deploy/kubernetes`; without a monitor the utilization of GPUs is unknown",
        ),
        Err(error) => not_readable("monitor", error),
    }
}

/// Nodes whose monitor ran and does not report any more.
async fn silent_monitors(cluster: &Cluster) -> Option<Check> {
    let nodes = cluster.nodes().await.ok()?;
    let silent: Vec<_> = nodes
        .iter()
        .filter(|node| node.status == NodeStatus::Active && node.health_status == Health::Unknown)
        .map(|node| node.node_id.as_str())
        .collect();
    let first = silent.first()?;
    let fix = format!(
        "run `kubectl -n {} get pods -l app=agentaflow-gpu-monitor -o wide`; until its next report, the GPUs of a node are \
         judged by the node's own conditions and allocatable GPUs",
        cluster.system
    );
    let count = counted(silent.len(), "node");
    Some(Check::warn("gpu health", format!("no report of the monitor on {count}: {first} …"), fix))
}

/// GPU pods of other schedulers race for the same GPUs.
async fn other_schedulers(cluster: &Cluster, scheduler_name: &str) -> Option<Check> {
    let foreign = cluster.foreign_pods(scheduler_name).await.ok()?;
    let first = foreign.first()?;
    let pending = foreign.iter().filter(|pod| pod.node.is_none()).count();
    let found = format!(
        "{} of other schedulers, {pending} pending, such as {} ({})",
        counted(foreign.len(), "GPU pod"),
        first.name,
        first.scheduler
    );
    let fix = "two schedulers overcommit GPUs, and kubelets reject the later pods; run `agentaflow exclusive on`";
    Some(Check::warn("schedulers", found, fix))
}

/// The scheduler responds and has the version of the client.
async fn version(cluster: &Cluster) -> Check {
    let client = env!("CARGO_PKG_VERSION");
    let metrics = match cluster.metrics().await {
        Ok(metrics) => metrics,
        Err(Failure::Forbidden(_)) => {
            return Check::skip("version", "no permission to query the scheduler");
        }
        Err(error) => {
            return Check::warn(
                "version",
                format!("cannot query the scheduler: {}", one_line(&error.to_string())),
                format!(
                    "run `kubectl -n {} get endpointslices -l kubernetes.io/service-name={}`; `what-if` and parts of `explain` need \
                     the scheduler",
                    cluster.system,
                    names::SCHEDULER_SERVICE
                ),
            );
        }
    };
    let label = metrics.split("agentaflow_build_info{version=\"").nth(1);
    match label.and_then(|rest| rest.split('"').next()) {
        Some(scheduler) if scheduler == client => {
            Check::ok("version", format!("scheduler {client}, same as this client"))
        }
        scheduler => Check::warn(
            "version",
            format!(
                "scheduler {}, this client {client}",
                scheduler.unwrap_or("of unknown version")
            ),
            "use the same version of client and scheduler",
        ),
    }
}

/// Creates a pod as a dry run: a webhook that answers assigns it to the scheduler. Requests of a webhook that does not answer
/// are admitted unchanged, so that nothing else shows the fault.
async fn answers(cluster: &Cluster) -> Check {
    let pod = json!({
        "metadata": {"generateName": "agentaflow-doctor-", "annotations": {names::PRIORITY: "5"}},
        "spec": {"containers": [{
            "name": "main", "image": "agentaflow.invalid/none",
            "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1m", "memory": "1Mi"}},
        }]},
    });
    let Ok(pod) = serde_json::from_value::<Pod>(pod) else {
        return Check::skip("webhook", "CA bundle present");
    };
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    match pods.create(&dry, &pod).await {
        Ok(made) => {
            let scheduler = made.spec.and_then(|spec| spec.scheduler_name).unwrap_or_default();
            if scheduler != "default-scheduler" && !scheduler.is_empty() {
                return Check::ok("webhook", format!("answers; assigns pods to {scheduler}"));
            }
            Check::fail(
                "webhook",
                "does not answer: a pod with an annotation of agentaflow kept its scheduler",
                format!(
                    "check that the API server reaches port 9443 of the scheduler: `kubectl -n {} get endpointslices -l \
                     kubernetes.io/service-name={}`",
                    cluster.system,
                    names::SCHEDULER_SERVICE
                ),
            )
        }
        Err(error) => {
            let why = one_line(&Failure::from(error).to_string());
            Check::skip("webhook", format!("CA bundle present; a dry-run pod was refused: {why}"))
        }
    }
}

/// Without the webhook only pods with an explicit schedulerName reach the scheduler.
async fn webhook(cluster: &Cluster) -> Check {
    let hooks: Api<MutatingWebhookConfiguration> = Api::all(cluster.client.clone());
    match hooks.get_opt("agentaflow").await {
        Ok(Some(found)) => {
            let hooks = found.webhooks.unwrap_or_default();
            let trusted = |hook: &&k8s_openapi::api::admissionregistration::v1::MutatingWebhook| {
                hook.client_config.ca_bundle.as_ref().is_some_and(|bundle| !bundle.0.is_empty())
            };
            if !hooks.is_empty() && hooks.iter().all(|hook| trusted(&hook)) {
                let rules = hooks.iter().flat_map(|hook| hook.rules.iter().flatten());
                let mut resources = rules.flat_map(|rule| rule.resources.iter().flatten());
                // An administrator may have removed the webhook of pods.
                if !resources.any(|resource| resource == "pods") {
                    return Check::ok("webhook", "CA bundle present");
                }
                return answers(cluster).await;
            }
            Check::fail(
                "webhook",
                "missing CA bundle",
                "the leader writes the CA bundle; search the log of the scheduler for `certificate`",
            )
        }
        Ok(None) => Check::warn(
            "webhook",
            "MutatingWebhookConfiguration `agentaflow` not found",
            "run `kubectl apply -f deploy/kubernetes`; without the webhook only GPUWorkloads and pods with schedulerName are placed",
        ),
        Err(error) => not_readable("webhook", error),
    }
}
