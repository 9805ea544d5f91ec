//! Checks of permissions in the namespace, for nodes, and for the scheduler.

use agentaflow_kube_client::Cluster;
use agentaflow_kube_core::names;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::super::Check;

/// A permission and its purpose.
struct Permission {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    purpose: &'static str,
}

const fn permission(
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    purpose: &'static str,
) -> Permission {
    Permission { verb, group, resource, purpose }
}

const JOBS: [Permission; 4] = [
    permission("create", names::GROUP, "gpuworkloads", "submit jobs"),
    permission("list", names::GROUP, "gpuworkloads", "list jobs"),
    permission("delete", names::GROUP, "gpuworkloads", "cancel jobs"),
    permission("get", "", "pods/log", "read logs"),
];

const NODES: Permission = permission("list", "", "nodes", "list nodes");
const QUERY: Permission = permission("create", "", "services/proxy", "query the scheduler");

pub(super) async fn checks(cluster: &Cluster) -> Vec<Check> {
    let mut missing = Vec::new();
    for permission in &JOBS {
        if !allowed(cluster, permission, Some(&cluster.namespace), None).await {
            missing.push(permission.purpose);
        }
    }
    let jobs = if missing.is_empty() {
        Check::ok(
            "permissions",
            format!("submit, list and cancel jobs in namespace {}", cluster.namespace),
        )
    } else {
        let fix = format!(
            "request a RoleBinding to the ClusterRole `edit`, which includes `agentaflow-editor`, in namespace {}",
            cluster.namespace
        );
        Check::fail("permissions", format!("missing: {}", missing.join(", ")), fix)
    };
    let mut checks = vec![jobs];
    if !allowed(cluster, &NODES, None, None).await {
        let fix = format!("request a ClusterRoleBinding to `{}`", names::NODE_VIEWER_ROLE);
        checks.push(Check::fail("permissions", "missing: list nodes", fix));
    }
    let service = format!("{}:8080", names::SCHEDULER_SERVICE);
    // A context with a scheduler URL does not need the proxy.
    if cluster.scheduler.is_none()
        && !allowed(cluster, &QUERY, Some(&cluster.system), Some(&service)).await
    {
        let fix = format!(
            "request a RoleBinding to the ClusterRole `{}` in namespace {}; `what-if` and parts of `explain` need it",
            names::ASKER_ROLE,
            cluster.system
        );
        checks.push(Check::warn("permissions", "missing: query the scheduler", fix));
    }
    checks
}

async fn allowed(
    cluster: &Cluster,
    permission: &Permission,
    namespace: Option<&str>,
    name: Option<&str>,
) -> bool {
    let (resource, subresource) = permission
        .resource
        .split_once('/')
        .map_or((permission.resource, None), |(resource, sub)| (resource, Some(sub)));
    let attributes = ResourceAttributes {
        verb: Some(permission.verb.to_owned()),
        group: Some(permission.group.to_owned()),
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
    let result = reviews.create(&PostParams::default(), &review).await;
    result.ok().and_then(|review| review.status).is_some_and(|status| status.allowed)
}
