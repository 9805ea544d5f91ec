//! Admission policies of `deploy/`.

use kube::client::Body;
use serde_json::{Value, json};

use crate::support::{NodePlan, PodPlan, Share, repository, wait_for};

/// A token stolen from one node cannot change other nodes, or identity fields of its own node.
#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_monitor_can_write_only_its_fields_of_its_own_node() {
    let share = Share::new().await;
    let own = share.node("own", &NodePlan::gpus(1)).await;
    let other = share.node("other", &NodePlan::gpus(1)).await;
    let pod = PodPlan::new("there").gpus(1).spec("nodeName", json!(own));
    share.create_pod(&pod.label("team", "a").annotation("kept", "yes")).await;
    for file in ["21-rbac-monitor.yaml", "23-monitor-policy.yaml"] {
        install(&share, file).await;
    }
    let [own, other] = [own, other].map(|name| format!("/api/v1/nodes/{name}"));
    let there = format!("/api/v1/namespaces/{}/pods/there", share.namespace);
    let labels = |key: &str, value: Value| json!({"metadata": {"labels": {key: value}}});
    let annotations = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
    // The policies take effect after a moment.
    wait_for("the policy in force", async || {
        let (status, body) =
            patch(&share, &other, &labels("agentaflow.gpu/count", json!("1"))).await;
        (status == 403 && is_of_policy(&body)).then_some(()).ok_or(body)
    })
    .await;
    let zone = "topology.kubernetes.io/zone";
    let isolation = "node-restriction.kubernetes.io/team";
    for (path, change, allowed) in [
        (&own, labels("agentaflow.gpu/enabled", json!("true")), true),
        (&own, labels("agentaflow.gpu/utilization-tier", json!("low")), true),
        (&own, labels("agentaflow.gpu/enabled", Value::Null), true),
        (&own, annotations("agentaflow.gpu/status", json!("{}")), true),
        (&there, annotations("agentaflow.gpu/allocated-devices", json!("GPU-1")), true),
        (&own, labels(isolation, json!("a")), false),
        (&own, labels("node-role.kubernetes.io/control-plane", json!("")), false),
        (&own, labels(zone, json!("z")), false),
        (&own, labels("kubernetes.io/hostname", Value::Null), false),
        (&own, labels("agentaflow.gpu/maintenance", json!("true")), false),
        (&own, annotations("agentaflow.gpu/price-per-gpu-hour", json!("0")), false),
        (&own, annotations("agentaflow.gpu/cordoned", json!("0")), false),
        (&own, json!({"spec": {"unschedulable": true}}), false),
        (&there, annotations("agentaflow.gpu/priority", json!("10")), false),
        (&there, annotations("kept", Value::Null), false),
        (&there, labels("team", json!("b")), false),
    ] {
        let (status, body) = patch(&share, path, &change).await;
        assert_eq!(status, if allowed { 200 } else { 403 }, "{path} {change}: {body}");
        assert_eq!(is_of_policy(&body), !allowed, "{path} {change}: {body}");
    }
}

/// RBAC denies requests with the same status.
fn is_of_policy(body: &str) -> bool {
    body.contains("ValidatingAdmissionPolicy")
}

/// A file of `deploy/` with account and names of the share, since other tests use the cluster.
async fn install(share: &Share, file: &str) {
    let text = std::fs::read_to_string(repository().join("deploy/kubernetes").join(file));
    let text = text
        .expect("a manifest")
        .replace("namespace: agentaflow\n", &format!("namespace: {}\n", share.namespace))
        .replace("serviceaccount:agentaflow:", &format!("serviceaccount:{}:", share.namespace))
        .replace("agentaflow-monitor", &format!("monitor-{}", share.id));
    share.apply(&text).await;
}

/// A merge patch by the monitor of the node `own`.
async fn patch(share: &Share, path: &str, change: &Value) -> (u16, String) {
    let account = format!("system:serviceaccount:{}:monitor-{}", share.namespace, share.id);
    let request = http::Request::patch(path)
        .header("content-type", "application/merge-patch+json")
        .header("impersonate-user", account)
        .header(
            "impersonate-extra-authentication.kubernetes.io%2fnode-name",
            share.node_name("own"),
        )
        .body(Body::from(change.to_string().into_bytes()));
    let answer = share.client().send(request.expect("a request")).await;
    let answer = answer.expect("the API server answers");
    let status = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await.expect("a whole answer");
    (status, String::from_utf8_lossy(&body).into_owned())
}
