//! A cluster: its API server, our rights, kinds, scheduler and monitors, the device plugin, and what waits.

use agentaflow_api::Stamp;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_kube::client::{Cluster, Failure};
use agentaflow_kube::names;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ListParams, PostParams};

use super::Check;
use crate::listing::one_line;
use crate::output::short_time;

/// A leader that has not renewed its lease for so long does not lead.
const STALE_MS: i64 = 30_000;

/// Workloads that are named one by one.
const NAMED: usize = 5;

/// What people must be allowed to do: verb, group, resource, and what for.
const RIGHTS: [(&str, &str, &str, &str); 5] = [
    ("create", names::GROUP, "gpuworkloads", "submit work"),
    ("list", names::GROUP, "gpuworkloads", "list work"),
    ("delete", names::GROUP, "gpuworkloads", "cancel work"),
    ("list", "", "nodes", "list nodes"),
    ("get", "", "pods/log", "read logs"),
];

pub(super) async fn checks(cluster: &Cluster) -> Vec<Check> {
    let version = match cluster.client.apiserver_version().await {
        Ok(version) => version,
        Err(error) => {
            return vec![Check::fail(
                "api server",
                one_line(&Failure::from(error).to_string()),
                "`kubectl cluster-info` must answer: look at KUBECONFIG, the context in it and the network",
            )];
        }
    };
    let mut checks = vec![Check::ok("api server", format!("Kubernetes {}", version.git_version))];
    checks.push(kinds(cluster).await);
    checks.extend(rights(cluster).await);
    checks.extend([scheduler(cluster).await, leader(cluster).await, monitor(cluster).await]);
    checks.extend(gpus(cluster).await);
    checks.extend(waiting(cluster).await);
    checks
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

async fn rights(cluster: &Cluster) -> Vec<Check> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let mut missing = Vec::new();
    for (verb, group, resource, purpose) in RIGHTS {
        let (resource, subresource) = resource
            .split_once('/')
            .map_or((resource, None), |(resource, sub)| (resource, Some(sub)));
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            subresource: subresource.map(str::to_owned),
            namespace: (resource != "nodes").then(|| cluster.namespace.clone()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer = reviews.create(&PostParams::default(), &review).await;
        let allowed =
            answer.ok().and_then(|review| review.status).is_some_and(|status| status.allowed);
        if !allowed {
            missing.push(purpose);
        }
    }
    if missing.is_empty() {
        return vec![Check::ok(
            "rights",
            format!("you may work in namespace {}", cluster.namespace),
        )];
    }
    let fix = format!(
        "ask for a RoleBinding to the ClusterRole `edit`, of which `agentaflow-editor` is a part, in namespace {}",
        cluster.namespace
    );
    vec![Check::fail("rights", format!("you may not {}", missing.join(", ")), fix)]
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
        Err(error) => Check::skip("scheduler", one_line(&Failure::from(error).to_string())),
    }
}

async fn leader(cluster: &Cluster) -> Check {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.system);
    let lease = match leases.get_opt("agentaflow-gpu-scheduler").await {
        Ok(lease) => lease.and_then(|lease| lease.spec),
        Err(error) => return Check::skip("leader", one_line(&Failure::from(error).to_string())),
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
                return Check::ok("monitor", format!("on {ready} nodes"));
            }
            let fix = format!(
                "`kubectl -n {} logs -l app=agentaflow-gpu-monitor` says why; it runs on nodes that a device plugin, \
                 NVIDIA's labels or `agentaflow.gpu/enabled=true` mark",
                cluster.system
            );
            Check::warn("monitor", format!("ready on {ready} of {wanted} nodes"), fix)
        }
        Ok(None) => Check::warn(
            "monitor",
            format!("no DaemonSet `agentaflow-gpu-monitor` in namespace {}", cluster.system),
            "`kubectl apply -f deploy/kubernetes`; without it GPUs are counted, and their use is not known",
        ),
        Err(error) => Check::skip("monitor", one_line(&Failure::from(error).to_string())),
    }
}

/// Nodes that have GPUs by their labels and hand none out lack the device plugin.
async fn gpus(cluster: &Cluster) -> Vec<Check> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let nodes = match nodes.list(&ListParams::default()).await {
        Ok(nodes) => nodes.items,
        Err(error) => {
            return vec![Check::skip("gpu nodes", one_line(&Failure::from(error).to_string()))];
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
            format!("none of {} nodes hands out nvidia.com/gpu", nodes.len()),
            "install the driver, the container toolkit and NVIDIA's device plugin on the GPU nodes; `kubectl -n kube-system \
             get pods -l name=nvidia-device-plugin-ds` shows it",
        )
    } else {
        Check::ok("gpu nodes", format!("{} of {} nodes hand out GPUs", with.len(), nodes.len()))
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
    Some(Check::warn("queue", format!("{} wait; {}", jobs.len(), reasons.join("; ")), fix))
}
