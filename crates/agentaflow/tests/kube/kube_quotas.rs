//! Gangs under a `ResourceQuota`.

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use serde_json::json;

use crate::PROGRAM;
use crate::kube_gangs::pod_group_kind;
use crate::kube_units::{quota, quota_in_force};
use crate::plans::{WorkloadPlan, in_phase, placed_by_us, pod_waits, waits_because, workload};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, get, wait_for};

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn of_two_gangs_under_a_quota_for_one_each_runs_in_turn() {
    let share = Share::new().await;
    share.nodes(3, &NodePlan::gpus(8)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.apply_object(quota(6)).await;
    quota_in_force(&share, "6").await;
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
async fn pod_groups_that_share_a_quota_name_it_until_it_is_larger() {
    let share = Share::new().await;
    share.nodes(1, &NodePlan::gpus(8)).await;
    share.apply_object(pod_group_kind()).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.apply_object(quota(4)).await;
    quota_in_force(&share, "4").await;
    let member = |group: &str, number: u32| {
        let pod = share.one_gpu(&format!("{group}-{number}"));
        pod.label("scheduling.x-k8s.io/pod-group", group)
    };
    for group in ["one", "two"] {
        share
            .apply_object(json!({
                "apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
                "metadata": {"name": group}, "spec": {"minMember": 3},
            }))
            .await;
        for number in 0..2 {
            share.create_pod(&member(group, number)).await;
        }
    }
    let refused = member("one", 2).pod();
    let refused = share.api::<Pod>().create(&PostParams::default(), &refused).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("exceeded quota")));
    for pod in ["one-0", "one-1", "two-0", "two-1"] {
        pod_waits(&share, pod, "WaitingForQuota").await;
    }
    let path = format!("/explain/{}/two", share.namespace);
    let explained = get(scheduler.http, &path).expect("an answer").json();
    assert_eq!(explained["reason"], "WaitingForQuota", "{explained}");
    share.apply_object(quota(6)).await;
    quota_in_force(&share, "6").await;
    for group in ["one", "two"] {
        share.create_pod(&member(group, 2)).await;
    }
    for pod in ["one-0", "two-0"] {
        placed_by_us(&share, pod).await;
    }
}
