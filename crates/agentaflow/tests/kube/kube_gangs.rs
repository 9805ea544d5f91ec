//! Gang scheduling.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::plans::{WorkloadPlan, in_phase, placed_by_us, pod_waits, waits_because};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, state, wait_for};

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_gang_of_64_starts_whole_or_not_at_all() {
    let share = Share::new().await;
    share.nodes(8, &NodePlan::gpus(8)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let ours = share.scheduler_name();
    let firm = PodPlan::new("blocker")
        .gpus(1)
        .scheduler(&ours)
        .annotation("agentaflow.gpu/preemptible", "false");
    share.create_pod(&firm).await;
    placed_by_us(&share, "blocker").await;
    WorkloadPlan::new(&share, "gang", &PodPlan::new("")).spec("gangSize", 64).create(&share).await;
    let words = waits_because(&share, "gang", "GangIncomplete").await;
    assert!(words.contains("63/64 tasks of the gang fit now"), "{words}");
    let words = pod_waits(&share, "gang-63", "Unschedulable").await;
    assert!(words.contains("63/64 tasks of the gang fit now"), "{words}");
    let gang = "agentaflow.gpu/workload=gang";
    assert_eq!(bound(&share.pods(gang).await).values().sum::<usize>(), 0);
    share.delete_pod("blocker").await;
    let nodes = wait_for("all 64 pods bound", async || {
        let pods = share.pods(gang).await;
        let nodes = bound(&pods);
        let count: usize = nodes.values().sum();
        assert!(pods.iter().all(is_ours), "a different scheduler bound a pod");
        (count == 64).then_some(nodes).ok_or_else(|| format!("{count} are"))
    })
    .await;
    assert_eq!(nodes.values().copied().collect::<Vec<usize>>(), [8; 8]);
    in_phase(&share, "gang", "Running").await;
    let pods = share.pods(gang).await;
    let stale: Vec<String> = pods.iter().filter(|pod| !is_told_placed(pod)).map(state).collect();
    assert!(stale.is_empty(), "bound, and yet they say that they wait: {stale:?}");
    // A lost pod of a running gang is replaced alone.
    let (others, lost) = (uids(&pods, "7"), uid_of(&pods, "7"));
    share.delete_pod("gang-7").await;
    // With the same name if nothing was left, else as the next attempt.
    let name = wait_for("another pod of task 7", async || {
        let pods = share.pods(gang).await;
        let another = pods.iter().find(|pod| is_task(pod, "7") && pod.metadata.uid != lost);
        another.and_then(|pod| pod.metadata.name.clone()).ok_or("there is none")
    })
    .await;
    placed_by_us(&share, &name).await;
    assert_eq!(uids(&share.pods(gang).await, "7"), others);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn pods_of_a_pod_group_wait_for_each_other_even_when_they_differ() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(2)).await;
    share.apply_object(pod_group_kind()).await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let member = |name: &str| {
        let pod = PodPlan::new(name).scheduler(&share.scheduler_name());
        pod.label("scheduling.x-k8s.io/pod-group", "mpi")
    };
    share.create_pod(&member("launcher").asks("cpu", "1")).await;
    let words = pod_waits(&share, "launcher", "PodGroupMissing").await;
    assert!(words.contains("mpi"), "{words}");
    share.apply_object(pod_group("mpi", 3)).await;
    share.create_pod(&member("worker-0").gpus(1)).await;
    let words = pod_waits(&share, "worker-0", "Gated").await;
    // The count is not updated while the reason stays the same.
    assert!(words.contains("/3 pods created"), "{words}");
    share.create_pod(&member("worker-1").gpus(1)).await;
    for pod in ["launcher", "worker-0", "worker-1"] {
        assert_eq!(placed_by_us(&share, pod).await, node);
        share.in_phase(pod, "Running").await;
    }
    // A replaced member does not wait for a complete gang while the others run, and a restarted
    // scheduler knows that they run.
    for (old, new) in [("worker-1", "worker-2"), ("worker-0", "worker-3")] {
        share.delete_pod(old).await;
        share.gone(old).await;
        share.create_pod(&member(new).gpus(1)).await;
        assert_eq!(placed_by_us(&share, new).await, node);
        scheduler.crash_and_restart().await;
    }
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn pods_beyond_min_member_start_one_by_one() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(3)).await;
    share.apply_object(pod_group_kind()).await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.apply_object(pod_group("pair", 2)).await;
    for i in 0..4 {
        let pod = PodPlan::new(&format!("pair-{i}")).gpus(1).scheduler(&share.scheduler_name());
        share.create_pod(&pod.label("scheduling.x-k8s.io/pod-group", "pair")).await;
    }
    // Pods created in the same second have no order.
    let waits = wait_for("all but one have a node", async || {
        let mut pods = share.pods("").await;
        pods.retain(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()));
        let mut names: Vec<String> = pods.into_iter().filter_map(|pod| pod.metadata.name).collect();
        if names.len() == 1 { Ok(names.remove(0)) } else { Err(format!("{names:?} wait")) }
    })
    .await;
    let placed: Vec<String> =
        (0..4).map(|i| format!("pair-{i}")).filter(|name| *name != waits).collect();
    for pod in &placed {
        placed_by_us(&share, pod).await;
    }
    pod_waits(&share, &waits, "Unschedulable").await;
    scheduler.crash_and_restart().await;
    share.delete_pod(&placed[0]).await;
    placed_by_us(&share, &waits).await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_pod_group_without_room_for_all_starts_none_of_them() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(2)).await;
    share.apply_object(pod_group_kind()).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.apply_object(pod_group("trio", 3)).await;
    for i in 0..3 {
        let pod = PodPlan::new(&format!("trio-{i}")).gpus(1).scheduler(&share.scheduler_name());
        share.create_pod(&pod.label("scheduling.x-k8s.io/pod-group", "trio")).await;
    }
    let words = pod_waits(&share, "trio-0", "Unschedulable").await;
    assert!(words.contains("2/3 tasks of the gang fit now"), "{words}");
    assert!(bound(&share.pods("").await).is_empty());
    share.node("b", &NodePlan::gpus(1)).await;
    for i in 0..3 {
        placed_by_us(&share, &format!("trio-{i}")).await;
    }
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_kubernetes_pod_group_starts_as_a_gang() {
    let share = Share::new().await;
    let served = share.request("GET", "/apis/scheduling.k8s.io/v1alpha2", None).await;
    if served.status == 404 {
        eprintln!("not shown: this control plane serves no scheduling.k8s.io/v1alpha2");
        return;
    }
    share.node("a", &NodePlan::gpus(2)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share
        .apply_object(json!({
            "apiVersion": "scheduling.k8s.io/v1alpha2",
            "kind": "PodGroup",
            "metadata": {"name": "pair"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
        }))
        .await;
    let member = |name: &str| {
        let pod = PodPlan::new(name).gpus(1).scheduler(&share.scheduler_name());
        pod.spec("schedulingGroup", json!({"podGroupName": "pair"}))
    };
    // The client type lacks the field.
    for name in ["pair-0", "pair-1"] {
        share.apply_object(member(name).object()).await;
        if name == "pair-0" {
            let words = pod_waits(&share, name, "Gated").await;
            assert!(words.contains("1/2"), "{words}");
        }
    }
    placed_by_us(&share, "pair-0").await;
    placed_by_us(&share, "pair-1").await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_gang_with_a_failed_binding_is_unbound_and_retried() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(4)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    forbid_binding(&share, "gang-2").await;
    WorkloadPlan::new(&share, "gang", &PodPlan::new("")).spec("gangSize", 3).create(&share).await;
    wait_for("the failed binding told", async || {
        let events = share.events("gang-2").await;
        let told = events.iter().any(|event| {
            event.reason.as_deref() == Some("FailedBinding")
                && event.message.as_deref().unwrap_or_default().contains("not this one")
        });
        told.then_some(()).ok_or("no event")
    })
    .await;
    // The bound pods are deleted.
    share.gone("gang-0").await;
    share.gone("gang-1").await;
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

/// Number of pods per node.
fn bound(pods: &[Pod]) -> BTreeMap<String, usize> {
    let mut nodes = BTreeMap::new();
    for node in pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone()) {
        *nodes.entry(node).or_default() += 1;
    }
    nodes
}

fn is_task(pod: &Pod, task: &str) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get("agentaflow.gpu/task")).is_some_and(|of| of == task)
}

fn uid_of(pods: &[Pod], task: &str) -> Option<String> {
    pods.iter().find(|pod| is_task(pod, task))?.metadata.uid.clone()
}

/// Names and UIDs of all pods except the pods of one task.
fn uids(pods: &[Pod], but: &str) -> Vec<(Option<String>, Option<String>)> {
    let others = pods.iter().filter(|pod| !is_task(pod, but));
    others.map(|pod| (pod.metadata.name.clone(), pod.metadata.uid.clone())).collect()
}

/// The pod has the condition `PodScheduled`.
fn is_told_placed(pod: &Pod) -> bool {
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
fn pod_group_kind() -> Value {
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

fn pod_group(name: &str, least: u32) -> Value {
    json!({
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": least},
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
        answer.body.contains("not this one").then_some(()).ok_or(answer.body)
    })
    .await;
}
