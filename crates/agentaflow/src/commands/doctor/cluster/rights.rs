//! What we may do: in our namespace, with nodes, and with the scheduler.

use agentaflow_kube_client::Cluster;
use agentaflow_kube_core::names;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::super::Check;

/// Something that people must be allowed to do, and what for.
struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    purpose: &'static str,
}

const fn right(
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    purpose: &'static str,
) -> Right {
    Right { verb, group, resource, purpose }
}

const WORK: [Right; 4] = [
    right("create", names::GROUP, "gpuworkloads", "submit work"),
    right("list", names::GROUP, "gpuworkloads", "list work"),
    right("delete", names::GROUP, "gpuworkloads", "cancel work"),
    right("get", "", "pods/log", "read logs"),
];

const NODES: Right = right("list", "", "nodes", "list nodes");
const ASK: Right = right("create", "", "services/proxy", "ask the scheduler");

pub(super) async fn checks(cluster: &Cluster) -> Vec<Check> {
    let mut missing = Vec::new();
    for right in &WORK {
        if !allowed(cluster, right, Some(&cluster.namespace), None).await {
            missing.push(right.purpose);
        }
    }
    let work = if missing.is_empty() {
        Check::ok("rights", format!("you may work in namespace {}", cluster.namespace))
    } else {
        let fix = format!(
            "ask for a RoleBinding to the ClusterRole `edit`, of which `agentaflow-editor` is a part, in namespace {}",
            cluster.namespace
        );
        Check::fail("rights", format!("you may not {}", missing.join(", ")), fix)
    };
    let mut checks = vec![work];
    if !allowed(cluster, &NODES, None, None).await {
        let fix = format!("ask for a ClusterRoleBinding to `{}`", names::NODE_VIEWER_ROLE);
        checks.push(Check::fail("rights", "you may not list nodes", fix));
    }
    let service = format!("{}:8080", names::SCHEDULER_SERVICE);
    // Where a context says where the scheduler is, it is asked there.
    if cluster.scheduler.is_none()
        && !allowed(cluster, &ASK, Some(&cluster.system), Some(&service)).await
    {
        let fix = format!(
            "ask for a RoleBinding to the ClusterRole `{}` in namespace {}: `explain` knows less without, `what-if` \
             nothing",
            names::ASKER_ROLE,
            cluster.system
        );
        checks.push(Check::warn("rights", "you may not ask the scheduler", fix));
    }
    checks
}

async fn allowed(
    cluster: &Cluster,
    right: &Right,
    namespace: Option<&str>,
    name: Option<&str>,
) -> bool {
    let (resource, subresource) = right
        .resource
        .split_once('/')
        .map_or((right.resource, None), |(resource, sub)| (resource, Some(sub)));
    let attributes = ResourceAttributes {
        verb: Some(right.verb.to_owned()),
        group: Some(right.group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: subresource.map(str::to_owned),
        namespace: namespace.map(str::to_owned),
        name: name.map(str::to_owned),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await;
    answer.ok().and_then(|review| review.status).is_some_and(|status| status.allowed)
}
