//! What we run there: the scheduler and its leader, its version, the webhooks, the monitors.

use agentaflow_api::Stamp;
use agentaflow_console::format::{counted, one_line, short_time};
use agentaflow_kube_client::{Cluster, Failure};
use agentaflow_kube_core::names;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use super::super::Check;
use super::unseen;

/// A leader that has not renewed its lease for so long does not lead.
const STALE_MS: i64 = 30_000;

pub(super) async fn checks(cluster: &Cluster) -> Vec<Check> {
    let mut checks = vec![scheduler(cluster).await, leader(cluster).await];
    checks.push(answers(cluster).await);
    checks.extend([webhook(cluster).await, monitor(cluster).await]);
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
                return Check::ok("scheduler", format!("{ready} of {wanted} ready"));
            }
            Check::fail(
                "scheduler",
                format!("none of {wanted} is ready"),
                format!("`kubectl -n {} logs deployment/{name}` says why", cluster.system),
            )
        }
        Ok(None) => Check::warn(
            "scheduler",
            format!("no Deployment `{name}` in namespace {}", cluster.system),
            "`kubectl apply -f deploy/kubernetes`; a scheduler that runs elsewhere shows in the next line",
        ),
        Err(error) => unseen("scheduler", error),
    }
}

async fn leader(cluster: &Cluster) -> Check {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.system);
    let lease = match leases.get_opt("agentaflow-gpu-scheduler").await {
        Ok(lease) => lease.and_then(|lease| lease.spec),
        Err(error) => return unseen("leader", error),
    };
    let fix = "nothing is placed without one: look at the scheduler's log";
    let Some(spec) = lease else { return Check::fail("leader", "no scheduler ever led here", fix) };
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    let age = spec.renew_time.map(|time| Stamp::now().0 - time.0.as_millisecond());
    match (holder, age) {
        (Some(holder), Some(age)) if age < STALE_MS => Check::ok("leader", holder),
        (Some(holder), Some(age)) => {
            let since = short_time(age as f64 / 1000.0);
            Check::fail("leader", format!("{holder} has not been heard of for {since}"), fix)
        }
        _ => Check::fail("leader", "no scheduler leads", fix),
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
                "`kubectl -n {} logs -l app=agentaflow-gpu-monitor` says why; it runs on nodes that a device plugin, \
                 NVIDIA's labels or `agentaflow.gpu/enabled=true` mark",
                cluster.system
            );
            Check::warn("monitor", format!("ready on {ready} of {}", counted(wanted, "node")), fix)
        }
        Ok(None) => Check::warn(
            "monitor",
            format!("no DaemonSet `agentaflow-gpu-monitor` in namespace {}", cluster.system),
            "`kubectl apply -f deploy/kubernetes`; without it GPUs are counted, and their use is not known",
        ),
        Err(error) => unseen("monitor", error),
    }
}

/// Whether the scheduler answers questions, and whether it is of our version.
async fn answers(cluster: &Cluster) -> Check {
    let ours = env!("CARGO_PKG_VERSION");
    let metrics = match cluster.metrics().await {
        Ok(metrics) => metrics,
        Err(Failure::Forbidden(_)) => {
            return Check::skip("version", "you may not ask the scheduler");
        }
        Err(error) => {
            return Check::warn(
                "version",
                format!("the scheduler cannot be asked: {}", one_line(&error.to_string())),
                format!(
                    "`kubectl -n {} get endpointslices -l kubernetes.io/service-name={}` must name a pod; without it \
                     `explain` knows less, and `what-if` nothing",
                    cluster.system,
                    names::SCHEDULER_SERVICE
                ),
            );
        }
    };
    let told = metrics.split("agentaflow_build_info{version=\"").nth(1);
    match told.and_then(|rest| rest.split('"').next()) {
        Some(theirs) if theirs == ours => {
            Check::ok("version", format!("the scheduler has {ours}, as this program"))
        }
        theirs => Check::warn(
            "version",
            format!(
                "the scheduler has {}, this program {ours}",
                theirs.unwrap_or("an unknown version")
            ),
            "use the same version on both sides; newer ones only add things",
        ),
    }
}

/// Without it nobody gives GPU pods to our scheduler but those who name it.
async fn webhook(cluster: &Cluster) -> Check {
    let hooks: Api<MutatingWebhookConfiguration> = Api::all(cluster.client.clone());
    match hooks.get_opt("agentaflow").await {
        Ok(Some(found)) => {
            let hooks = found.webhooks.unwrap_or_default();
            let trusted = |hook: &&k8s_openapi::api::admissionregistration::v1::MutatingWebhook| {
                hook.client_config.ca_bundle.as_ref().is_some_and(|bundle| !bundle.0.is_empty())
            };
            if !hooks.is_empty() && hooks.iter().all(|hook| trusted(&hook)) {
                return Check::ok("webhook", "it has a certificate");
            }
            Check::fail(
                "webhook",
                "the API server has no certificate to trust it by",
                "the leader writes it: look at the scheduler's log for `certificate`",
            )
        }
        Ok(None) => Check::warn(
            "webhook",
            "there is no MutatingWebhookConfiguration `agentaflow`",
            "`kubectl apply -f deploy/kubernetes`; without it only GPUWorkloads and pods that name the scheduler are placed",
        ),
        Err(error) => unseen("webhook", error),
    }
}
