//! Checks of a cluster: API server, permissions, CRDs, installation, device plugin and pending workloads.

mod installation;
mod permissions;

use agentaflow_api::Stamp;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_console::format::{counted, one_line};
use agentaflow_kube_client::{Cluster, Failure};
use agentaflow_kube_core::names;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;

use super::{Check, clock_check};
use crate::failure;

/// Workloads and nodes listed by name.
const MAX_LISTED: usize = 5;

pub(super) async fn checks(cluster: &Cluster, scheduler_name: &str) -> Vec<Check> {
    let version = match cluster.client.apiserver_version().await {
        Ok(version) => version,
        Err(error) => {
            return vec![Check::fail(
                "api server",
                one_line(&failure::without_os_code(&Failure::from(error).to_string())),
                "run `kubectl cluster-info`, and check KUBECONFIG, its current context and the network",
            )];
        }
    };
    let mut checks = vec![Check::ok("api server", format!("Kubernetes {}", version.git_version))];
    checks.extend(clock(cluster).await);
    checks.push(crds(cluster).await);
    checks.extend(permissions::checks(cluster).await);
    checks.extend(installation::checks(cluster, scheduler_name).await);
    checks.push(settings(cluster).await);
    checks.extend(gpus(cluster).await);
    checks.extend(pending(cluster).await);
    checks
}

/// Compares clocks by the `Date` header of the API server, which has whole seconds.
async fn clock(cluster: &Cluster) -> Option<Check> {
    let server = cluster.server_time().await.ok()??;
    Some(clock_check(server.0 - Stamp::now().0, "the API server", "leases and certificates"))
}

async fn crds(cluster: &Cluster) -> Check {
    let served = cluster.client.list_api_group_resources("agentaflow.io/v1").await;
    let served = served.map(|list| list.resources).unwrap_or_default();
    let kinds = ["gpuworkloads", "gpunodes", "gpuqueues"];
    let missing: Vec<_> =
        kinds.into_iter().filter(|kind| !served.iter().any(|one| one.name == **kind)).collect();
    if missing.is_empty() {
        return Check::ok("crds", "GPUWorkload, GPUNode and GPUQueue are served");
    }
    Check::fail(
        "crds",
        format!("not served: {}", missing.join(", ")),
        "run `kubectl apply -f deploy/crds`",
    )
}

/// Keys of the `ConfigMap` that the scheduler refuses.
async fn settings(cluster: &Cluster) -> Check {
    let refused = match cluster.invalid_settings().await {
        Ok(refused) => refused,
        Err(Failure::Forbidden(_)) => return Check::skip("settings", "no permission to read"),
        Err(error) => return Check::skip("settings", one_line(&error.to_string())),
    };
    if refused.is_empty() {
        return Check::ok("settings", "valid");
    }
    let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    let fix = format!(
        "run `kubectl -n {} edit configmap {}`; refused settings keep their previous value",
        cluster.system,
        names::SCHEDULER_CONFIG
    );
    Check::warn("settings", refused.join("; "), fix)
}

/// A node with GPU labels and without allocatable GPUs lacks the device plugin.
async fn gpus(cluster: &Cluster) -> Vec<Check> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let nodes = match nodes.list(&ListParams::default()).await {
        Ok(nodes) => nodes.items,
        Err(error) => {
            return vec![not_readable("gpu nodes", error)];
        }
    };
    let has_allocatable = |node: &&Node| {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        allocatable.is_some_and(|all| {
            all.iter().any(|(name, amount)| name.starts_with("nvidia.com/") && amount.0 != "0")
        })
    };
    let labelled = |node: &&Node| {
        let labels = node.metadata.labels.as_ref();
        labels.is_some_and(|labels| {
            labels.contains_key(names::NODE_ENABLED) || labels.contains_key(names::NVIDIA_PRODUCT)
        })
    };
    let with: Vec<_> = nodes.iter().filter(has_allocatable).collect();
    let without: Vec<_> =
        nodes.iter().filter(labelled).filter(|node| !has_allocatable(node)).collect();
    let mut checks = vec![if with.is_empty() {
        Check::fail(
            "gpu nodes",
            format!("none of {} offers nvidia.com/gpu", counted(nodes.len(), "node")),
            "install driver, container toolkit and NVIDIA device plugin on the GPU nodes; check with `kubectl -n kube-system \
             get pods -l name=nvidia-device-plugin-ds`",
        )
    } else {
        Check::ok(
            "gpu nodes",
            format!("{} of {} offer GPUs", with.len(), counted(nodes.len(), "node")),
        )
    }];
    for node in without.into_iter().take(MAX_LISTED) {
        let name = node.metadata.name.clone().unwrap_or_default();
        checks.push(Check::fail(
            "device plugin",
            format!("{name} has GPU labels and offers no GPU"),
            "check the device plugin pod on that node (driver, toolkit, taints)",
        ));
    }
    checks
}

/// A resource that cannot be read; missing permissions are reported by another check.
fn not_readable(name: &'static str, error: kube::Error) -> Check {
    match Failure::from(error) {
        Failure::Forbidden(_) => Check::skip(name, "no permission to read"),
        other => Check::skip(name, one_line(&other.to_string())),
    }
}

async fn pending(cluster: &Cluster) -> Option<Check> {
    let jobs = cluster.jobs(&[JobStatus::Pending]).await.ok()?;
    if jobs.is_empty() {
        return Some(Check::ok(
            "queue",
            format!("no pending workloads in namespace {}", cluster.namespace),
        ));
    }
    let reason = |job: &Job| {
        let reason = job.wait_reason.as_deref();
        let reason = reason.map_or_else(|| "no reason reported yet".to_owned(), one_line);
        format!("{}: {reason}", job.handle())
    };
    let reasons: Vec<_> = jobs.iter().take(MAX_LISTED).map(reason).collect();
    let fix = "run `agentaflow explain JOB`; a workload without a reason has another schedulerName, or no scheduler runs";
    Some(Check::warn("queue", format!("{} pending: {}", jobs.len(), reasons.join("; ")), fix))
}
