//! A cluster: its API server, our rights, kinds, scheduler and monitors, the device plugin, and what waits.

mod product;
mod rights;

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

/// Workloads that are named one by one.
const NAMED: usize = 5;

pub(super) async fn checks(cluster: &Cluster) -> Vec<Check> {
    let version = match cluster.client.apiserver_version().await {
        Ok(version) => version,
        Err(error) => {
            return vec![Check::fail(
                "api server",
                one_line(&failure::numberless(&Failure::from(error).to_string())),
                "`kubectl cluster-info` must answer: look at KUBECONFIG, the context in it and the network",
            )];
        }
    };
    let mut checks = vec![Check::ok("api server", format!("Kubernetes {}", version.git_version))];
    checks.extend(clock(cluster).await);
    checks.push(kinds(cluster).await);
    checks.extend(rights::checks(cluster).await);
    checks.extend(product::checks(cluster).await);
    checks.extend(gpus(cluster).await);
    checks.extend(waiting(cluster).await);
    checks
}

/// Compares clocks by the date on the API server's answers, which has whole seconds.
async fn clock(cluster: &Cluster) -> Option<Check> {
    let theirs = cluster.server_time().await.ok()??;
    Some(clock_check(theirs.0 - Stamp::now().0, "the API server", "leases and certificates"))
}

async fn kinds(cluster: &Cluster) -> Check {
    let served = cluster.client.list_api_group_resources("agentaflow.io/v1").await;
    let served = served.map(|list| list.resources).unwrap_or_default();
    let kinds = ["gpuworkloads", "gpunodes", "gpuqueues"];
    let missing: Vec<_> =
        kinds.into_iter().filter(|kind| !served.iter().any(|one| one.name == **kind)).collect();
    if missing.is_empty() {
        return Check::ok("kinds", "GPUWorkload, GPUNode and GPUQueue are served");
    }
    Check::fail(
        "kinds",
        format!("not served: {}", missing.join(", ")),
        "`kubectl apply -f deploy/crds`",
    )
}

/// Nodes that have GPUs by their labels and hand none out lack the device plugin.
async fn gpus(cluster: &Cluster) -> Vec<Check> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let nodes = match nodes.list(&ListParams::default()).await {
        Ok(nodes) => nodes.items,
        Err(error) => {
            return vec![unseen("gpu nodes", error)];
        }
    };
    let hands_out = |node: &&Node| {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        allocatable.is_some_and(|all| {
            all.iter().any(|(name, amount)| name.starts_with("nvidia.com/") && amount.0 != "0")
        })
    };
    let marked = |node: &&Node| {
        let labels = node.metadata.labels.as_ref();
        labels.is_some_and(|labels| {
            labels.contains_key(names::NODE_ENABLED) || labels.contains_key(names::NVIDIA_PRODUCT)
        })
    };
    let with: Vec<_> = nodes.iter().filter(hands_out).collect();
    let without: Vec<_> = nodes.iter().filter(marked).filter(|node| !hands_out(node)).collect();
    let mut checks = vec![if with.is_empty() {
        Check::fail(
            "gpu nodes",
            format!("none of {} hands out nvidia.com/gpu", counted(nodes.len(), "node")),
            "install the driver, the container toolkit and NVIDIA's device plugin on the GPU nodes; `kubectl -n kube-system \
             get pods -l name=nvidia-device-plugin-ds` shows it",
        )
    } else {
        Check::ok(
            "gpu nodes",
            format!("{} of {} with GPUs to hand out", with.len(), counted(nodes.len(), "node")),
        )
    }];
    for node in without.into_iter().take(NAMED) {
        let name = node.metadata.name.clone().unwrap_or_default();
        checks.push(Check::fail(
            "device plugin",
            format!("{name} is marked as a GPU node and hands out none"),
            "the device plugin's pod on that node says why (driver, toolkit, taints that it does not tolerate)",
        ));
    }
    checks
}

/// Something that could not be looked at; whoever lacks a right has been told so already.
fn unseen(name: &'static str, error: kube::Error) -> Check {
    match Failure::from(error) {
        Failure::Forbidden(_) => Check::skip(name, "you may not look at it"),
        other => Check::skip(name, one_line(&other.to_string())),
    }
}

async fn waiting(cluster: &Cluster) -> Option<Check> {
    let jobs = cluster.jobs(&[JobStatus::Pending]).await.ok()?;
    if jobs.is_empty() {
        return Some(Check::ok(
            "queue",
            format!("nothing waits in namespace {}", cluster.namespace),
        ));
    }
    let reason = |job: &Job| {
        let why = job.wait_reason.as_deref();
        let why = why.map_or_else(|| "nobody has looked at it".to_owned(), one_line);
        format!("{}: {why}", job.handle())
    };
    let reasons: Vec<_> = jobs.iter().take(NAMED).map(reason).collect();
    let fix = "`agentaflow explain JOB` says what would start now; a workload that nobody looks at names another scheduler, or \
               none runs";
    Some(Check::warn("queue", format!("{} waiting: {}", jobs.len(), reasons.join("; ")), fix))
}
