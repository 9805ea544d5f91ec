//! Gang scheduling.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::plans::{
    WorkloadPlan, event, in_phase, placed_by_us, pod_waits, waits_because, workload,
};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, get, state, wait_for};

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_gang_of_64_starts_whole_or_not_at_all() {
    let share = Share::new().await;
    share.nodes(8, &NodePlan::gpus(8)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let blocker = share.one_gpu("blocker").annotation("agentaflow.gpu/preemptible", "false");
    share.create_pod(&blocker).await;
    placed_by_us(&share, "blocker").await;
    WorkloadPlan::new(&share, "gang", &PodPlan::new("")).spec("gangSize", 64).create(&share).await;
    waits_because(&share, "gang", "GangIncomplete").await;
    pod_waits(&share, "gang-63", "Unschedulable").await;
    let gang = "agentaflow.gpu/workload=gang";
    assert_eq!(bound(&share.pods(gang).await), BTreeMap::new());
    share.delete_pod("blocker").await;
    in_phase(&share, "gang", "Running").await;
    let pods = share.pods(gang).await;
    assert_eq!(bound(&pods).into_values().collect::<Vec<usize>>(), [8; 8]);
    assert!(pods.iter().all(is_ours), "a different scheduler bound a pod");
    let stale: Vec<String> = pods.iter().filter(|pod| !is_scheduled(pod)).map(state).collect();
    assert!(stale.is_empty(), "bound pods with a pending condition: {stale:?}");
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn pod_groups_of_both_apis_start_as_gangs() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(4)).await;
    share.apply_object(pod_group_kind()).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let plugin = json!({
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "plugin"},
        "spec": {"minMember": 2},
    });
    let native = json!({
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "native"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    });
    let served = share.request("GET", "/apis/scheduling.k8s.io/v1alpha2", None).await;
    let mut groups = vec![("plugin", plugin)];
    if served.status == 404 {
        let reason = "needs a control plane that serves scheduling.k8s.io/v1alpha2";
        crate::skip::report("kube_gangs::native_pod_groups", reason);
    } else {
        groups.push(("native", native));
    }
    for (name, group) in groups {
        let member = |index: u32| {
            let pod = share.one_gpu(&format!("{name}-{index}"));
            match name {
                "plugin" => pod.label("scheduling.x-k8s.io/pod-group", name),
                _ => pod.spec("schedulingGroup", json!({"podGroupName": name})),
            }
        };
        // The client type lacks the field `schedulingGroup`.
        share.apply_object(member(0).object()).await;
        pod_waits(&share, &format!("{name}-0"), "PodGroupMissing").await;
        share.apply_object(group).await;
        pod_waits(&share, &format!("{name}-0"), "Gated").await;
        share.apply_object(member(1).object()).await;
        placed_by_us(&share, &format!("{name}-0")).await;
        placed_by_us(&share, &format!("{name}-1")).await;
    }
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_gang_with_a_failed_binding_is_unbound_and_retried() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(4)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    forbid_binding(&share, "gang-2").await;
    WorkloadPlan::new(&share, "gang", &PodPlan::new("")).spec("gangSize", 3).create(&share).await;
    event(&share, "Pod", "gang-2", "FailedBinding").await;
    // The bound pods are deleted.
    share.wait_deleted("gang-0").await;
    share.wait_deleted("gang-1").await;
    let policy = format!("never-{}", share.id);
    for kind in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}/{policy}");
        share.request("DELETE", &path, None).await;
    }
    in_phase(&share, "gang", "Running").await;
    let pods = share.pods("agentaflow.gpu/workload=gang").await;
    assert_eq!(bound(&pods).values().sum::<usize>(), 3);
    assert!(pods.iter().all(is_ours));
}

/// Three nodes of four GPUs; the gang `run` of two pods runs, the gang `wait` is pending.
async fn busy_cluster(share: &Share) -> Scheduler {
    share.nodes(3, &NodePlan::gpus(4)).await;
    share.apply_object(pod_group_kind()).await;
    let scheduler = Scheduler::start(PROGRAM, share, &[]).await;
    for gang in ["run", "wait"] {
        share
            .apply_object(json!({
                "apiVersion": "scheduling.x-k8s.io/v1alpha1",
                "kind": "PodGroup",
                "metadata": {"name": gang},
                "spec": {"minMember": 2},
            }))
            .await;
        for task in 0..2 {
            share.create_pod(&member(share, gang, task)).await;
        }
        if gang == "run" {
            share.in_phase("run-0", "Running").await;
            share.in_phase("run-1", "Running").await;
        }
    }
    pod_waits(share, "wait-1", "Unschedulable").await;
    scheduler
}

fn member(share: &Share, gang: &str, task: u32) -> PodPlan {
    let pod = share.one_gpu(&format!("{gang}-{task}")).gpus(4);
    pod.label("scheduling.x-k8s.io/pod-group", gang)
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_running_gang_keeps_the_place_of_a_deleted_pod() {
    let share = Share::new().await;
    let scheduler = busy_cluster(&share).await;
    let place = share.bound("run-0").await;
    share.delete_pod("run-0").await;
    share.wait_deleted("run-0").await;
    event(&share, "Pod", "run-1", "WaitingForReplacement").await;
    let path = format!("/explain/{}/run", share.namespace);
    let explained = get(scheduler.http, &path).expect("an answer").json();
    assert_eq!(explained["reason"], "WaitingForReplacement", "{explained}");
    assert_eq!(explained["explanation"]["pending_reason"]["reason"], "WaitingForReplacement");
    assert!(explained["lines"][0].as_str().is_some_and(|line| line.contains(&place)));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bound(&share.pods("scheduling.x-k8s.io/pod-group=wait").await), BTreeMap::new());
    share.create_pod(&member(&share, "run", 0)).await;
    assert_eq!(placed_by_us(&share, "run-0").await, place);
    assert_eq!(bound(&share.pods("scheduling.x-k8s.io/pod-group=wait").await), BTreeMap::new());
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_running_gang_without_a_replacement_restarts_whole() {
    let share = Share::new().await;
    let _scheduler = busy_cluster(&share).await;
    let settings = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "agentaflow-scheduler-config"},
        "data": {"replacementTimeout": "4s"},
    });
    share.apply_object(settings).await;
    // The watch of the settings reports the change within moments.
    tokio::time::sleep(Duration::from_secs(2)).await;
    share.delete_pod("run-0").await;
    share.wait_deleted("run-0").await;
    assert!(share.pod("run-1").await.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none()));
    share.wait_deleted("run-1").await;
    placed_by_us(&share, "wait-0").await;
    placed_by_us(&share, "wait-1").await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn the_replacement_of_a_workloads_pod_starts_in_its_place() {
    let share = Share::new().await;
    share.nodes(3, &NodePlan::gpus(4)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    for gang in ["run", "wait"] {
        let plan = WorkloadPlan::new(&share, gang, &PodPlan::new("")).gpus(4);
        plan.spec("gangSize", 2).create(&share).await;
        if gang == "run" {
            in_phase(&share, "run", "Running").await;
        }
    }
    waits_because(&share, "wait", "GangIncomplete").await;
    let place = share.bound("run-0").await;
    share.delete_pod("run-0").await;
    waits_because(&share, "run", "WaitingForReplacement").await;
    in_phase(&share, "run", "Running").await;
    let pods = share.pods("agentaflow.gpu/workload=run").await;
    assert_eq!(bound(&pods).get(&place), Some(&1), "{pods:?}");
    waits_because(&share, "wait", "GangIncomplete").await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn of_two_gangs_under_a_quota_for_one_each_runs_in_turn() {
    let share = Share::new().await;
    share.nodes(3, &NodePlan::gpus(8)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let quota = json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "pods"},
        "spec": {"hard": {"pods": "6"}},
    });
    share.apply_object(quota).await;
    let path = format!("/api/v1/namespaces/{}/resourcequotas/pods", share.namespace);
    wait_for("the quota is counted", async || {
        let quota = share.request("GET", &path, None).await.json();
        (quota["status"]["hard"]["pods"] == "6").then_some(()).ok_or_else(|| quota.to_string())
    })
    .await;
    let pods = PodPlan::new("").complete_after("8s");
    for gang in ["one", "two"] {
        WorkloadPlan::new(&share, gang, &pods).spec("gangSize", 6).create(&share).await;
    }
    let first = wait_for("one gang runs", async || {
        for gang in ["one", "two"] {
            let object = workload(&share, gang).await.unwrap_or_default();
            if object["status"]["phase"] == "Running" {
                return Ok(gang);
            }
        }
        Err("both gangs are pending".to_owned())
    })
    .await;
    let second = if first == "one" { "two" } else { "one" };
    waits_because(&share, second, "WaitingForQuota").await;
    in_phase(&share, first, "Succeeded").await;
    in_phase(&share, second, "Running").await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_gang_gets_a_service_is_suspended_and_expires() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(4)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let overrides = json!([{"tasks": "0", "containers": [{"args": ["--leader"]}]}]);
    let plan = WorkloadPlan::new(&share, "gang", &PodPlan::new("")).spec("gangSize", 2);
    let plan = plan.spec("taskOverrides", overrides).spec("ttlSecondsAfterFinished", 2);
    plan.create(&share).await;
    in_phase(&share, "gang", "Running").await;
    let services = format!("/api/v1/namespaces/{}/services/gang-gang", share.namespace);
    let service = share.request("GET", &services, None).await.json();
    assert_eq!(service["spec"]["publishNotReadyAddresses"], true, "{service}");
    wait_for("the service has both pods", async || {
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector=kubernetes.io/service-name%3Dgang-gang",
            share.namespace
        );
        let slices = share.request("GET", &path, None).await.json();
        let endpoints = slices["items"][0]["endpoints"].as_array().cloned().unwrap_or_default();
        let mut hosts: Vec<&str> =
            endpoints.iter().filter_map(|one| one["hostname"].as_str()).collect();
        hosts.sort_unstable();
        if hosts == ["gang-0", "gang-1"] { Ok(()) } else { Err(slices.to_string()) }
    })
    .await;
    let leader = share.pod("gang-0").await.expect("a pod").spec.expect("a spec");
    assert_eq!(leader.containers[0].args, Some(vec!["--leader".to_owned()]));
    let suspend = async |on: bool| {
        let path =
            format!("/apis/agentaflow.io/v1/namespaces/{}/gpuworkloads/gang", share.namespace);
        let patched = share.request("PATCH", &path, Some(&json!({"spec": {"suspend": on}}))).await;
        assert_eq!(patched.status, 200, "{}", patched.body);
    };
    suspend(true).await;
    waits_because(&share, "gang", "Suspended").await;
    share.wait_deleted("gang-0").await;
    share.wait_deleted("gang-1").await;
    suspend(false).await;
    in_phase(&share, "gang", "Running").await;
    let path = format!("/apis/agentaflow.io/v1/namespaces/{}/gpuworkloads/gang", share.namespace);
    let done = json!({"metadata": {"annotations": {"agentaflow.gpu/complete": "true"}}});
    assert_eq!(share.request("PATCH", &path, Some(&done)).await.status, 200);
    wait_for("the workload is deleted after its time", async || {
        match workload(&share, "gang").await {
            None => Ok(()),
            Some(object) => Err(object["status"].to_string()),
        }
    })
    .await;
}

/// Number of pods per node.
fn bound(pods: &[Pod]) -> BTreeMap<String, usize> {
    let mut nodes = BTreeMap::new();
    for node in pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone()) {
        *nodes.entry(node).or_default() += 1;
    }
    nodes
}

/// The pod has the condition `PodScheduled`.
fn is_scheduled(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == "PodScheduled" && one.status == "True")
}

/// Unbound, or bound by the scheduler under test.
fn is_ours(pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    let annotations = pod.metadata.annotations.as_ref();
    node.is_none() || annotations.and_then(|all| all.get("agentaflow.gpu/assigned-node")) == node
}

/// Minimal `PodGroup` CRD of the scheduler plugins.
pub(crate) fn pod_group_kind() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "podgroups.scheduling.x-k8s.io"},
        "spec": {
            "group": "scheduling.x-k8s.io",
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                }},
            }],
        },
    })
}

/// Prevents the binding of the pod with this name.
async fn forbid_binding(share: &Share, pod: &str) {
    let name = format!("never-{}", share.id);
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": share.namespace}});
    share
        .apply_object(json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"namespaceSelector": here, "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["pods/binding"],
                }]},
                "validations": [{
                    "expression": format!("request.name != '{pod}'"),
                    "message": "not this one",
                }],
            },
        }))
        .await;
    share
        .apply_object(json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        }))
        .await;
    // The policy takes effect after a while; a probe binding detects this.
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/binding?dryRun=All", share.namespace);
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"},
    });
    wait_for("the policy in force", async || {
        let answer = share.request("POST", &path, Some(&binding)).await;
        // A policy answers 422; a binding that passes the policy fails in another way, such as 404.
        if answer.status == 422 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}
