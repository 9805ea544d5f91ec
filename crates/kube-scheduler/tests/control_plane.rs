//! Behaviour of the test control plane that other tests rely on.

mod support;

use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use support::{Binder, Cluster, NodePlan, PodPlan, Program, Proxy, Share, wait_for};

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_a_pod_is_placed_by_kube_scheduler_runs_and_completes() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(2)).await;
    share.create_pod(&PodPlan::new("train").gpus(2).complete_after("500ms")).await;
    assert_eq!(share.bound("train").await, node);
    let reporter = Some("default-scheduler".to_owned());
    assert_eq!(share.bound_by("train").await, Binder { reporter, assigned_node: None });
    let pod = share.in_phase("train", "Succeeded").await;
    assert_eq!(exit_code(&serde_json::to_value(pod).unwrap()), 0);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_a_pod_fails_with_the_code_it_is_given_and_a_deleted_one_goes_away() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(2)).await;
    share.create_pod(&PodPlan::new("crash").gpus(1).fail_after("100ms", 137)).await;
    share.create_pod(&PodPlan::new("serve").gpus(1).stop_after("1s")).await;
    let pod = share.in_phase("crash", "Failed").await;
    assert_eq!(exit_code(&serde_json::to_value(pod).unwrap()), 137);
    share.in_phase("serve", "Running").await;
    share.delete_pod("serve").await;
    let pod = share.pod("serve").await.expect("it is still ending");
    assert!(pod.metadata.deletion_timestamp.is_some());
    share.gone("serve").await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_pods_of_a_share_use_only_its_nodes() {
    let (one, other) = (Share::new().await, Share::new().await);
    one.node("a", &NodePlan::gpus(8)).await;
    let own = other.node("a", &NodePlan::gpus(1)).await;
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "sweep"},
        "spec": {
            "completions": 3,
            "parallelism": 3,
            "template": PodPlan::new("").gpus(1).complete_after("100ms").template(),
        },
    });
    other.apply(&job.to_string()).await;
    wait_for("the job complete", async || {
        let pods = other.pods("job-name=sweep").await;
        let nodes = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.as_ref());
        let nodes: Vec<&String> = nodes.collect();
        assert!(nodes.iter().all(|node| **node == own), "{nodes:?}");
        let done = |pod: &&Pod| {
            pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded")
        };
        let done = pods.iter().filter(done).count();
        (done == 3).then_some(()).ok_or_else(|| format!("{done} pods are done"))
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_a_node_goes_dark_and_comes_back() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(1)).await;
    share.darken_node(&node).await;
    share.create_pod(&PodPlan::new("waits").gpus(1)).await;
    share.lighten_node(&node).await;
    assert_eq!(share.bound("waits").await, node);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_an_account_has_only_the_permissions_of_its_role() {
    let share = Share::new().await;
    let role = format!("reads-nodes-{}", share.id);
    let manifests = format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: reader}}\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: {role}}}\n\
         rules: [{{apiGroups: [''], resources: [nodes], verbs: [list]}}]\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\n\
         metadata: {{name: {role}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {role}}}\n\
         subjects: [{{kind: ServiceAccount, name: reader, namespace: {}}}]\n",
        share.namespace
    );
    share.apply(&manifests).await;
    let kubeconfig = share.kubeconfig_of("reader").await;
    let client = Cluster::client_of(&kubeconfig).await;
    let nodes: Api<Node> = Api::all(client);
    wait_for("the role in force", async || nodes.list(&ListParams::default()).await).await;
    let refused = nodes.delete("any", &DeleteParams::default()).await.unwrap_err();
    assert!(refused.to_string().contains("forbidden"), "{refused}");
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kube_a_pulled_cable_cuts_a_client_off_until_it_is_plugged_in_again() {
    let share = Share::new().await;
    let proxy = Proxy::start(&share.cluster.kubeconfig).await;
    let kubeconfig = proxy.write_kubeconfig(share.file("proxy.kubeconfig"));
    let nodes: Api<Node> = Api::all(Cluster::client_of(&kubeconfig).await);
    let own = ListParams::default().labels(&share.node_selector());
    assert!(nodes.list(&own).await.unwrap().items.is_empty());
    proxy.unplug();
    assert!(nodes.list(&own).await.is_err());
    proxy.plug();
    share.node("a", &NodePlan::plain()).await;
    assert_eq!(nodes.list(&own).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn a_killed_program_begins_again_and_its_log_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut sh = Command::new("sh");
    sh.args(["-c", "trap 'echo bye; exit 3' TERM; echo life $$; while :; do sleep 0.05; done"]);
    let mut program = Program::start(sh, &folder.path().join("log"));
    let first = program.pid();
    program.says(&format!("life {first}")).await;
    program.kill();
    assert!(!program.runs());
    program.restart();
    let second = program.pid();
    program.says(&format!("life {second}")).await;
    assert_eq!(program.terminate().code(), Some(3));
    assert_eq!(program.log(), format!("life {first}\nlife {second}\nbye\n"));
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
#[should_panic(expected = "what there is: waits: Pending on no node")]
async fn kube_a_timed_out_wait_reports_the_present_state() {
    let share = Share::new().await;
    share.create_pod(&PodPlan::new("waits").gpus(1)).await;
    let limit = Duration::from_secs(1);
    support::wait_within(limit, "pod waits bound", async || {
        let pod = share.pod("waits").await.expect("the pod");
        pod.spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone())
            .ok_or_else(|| support::state(&pod))
    })
    .await;
}

fn exit_code(pod: &Value) -> i64 {
    let state = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    state["exitCode"].as_i64().unwrap_or_else(|| panic!("not ended: {pod}"))
}
