//! Coexistence with kube-scheduler.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::PROGRAM;
use crate::bursts::{is_over, workload};
use crate::ledger::Ledger;
use crate::support::{NodePlan, PodPlan, Scheduler, Share, wait_for};

/// Pods per scheduler; together they use all GPUs.
const EACH: usize = 104;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn two_schedulers_fill_the_same_nodes() {
    let share = Share::new().await;
    share.nodes(4, &NodePlan::gpus(52)).await;
    let ledger = Ledger::with_kubelets(&share).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    // A kubelet rejects a pod that does not fit after a moment.
    let plan = PodPlan::new("x").start_after("1s");
    let ours = async {
        deploy(&share, "ours", EACH / 2, &plan.clone().gpus(1).scheduler(&share.scheduler_name()))
            .await;
        for index in 0..EACH / 2 {
            share.create_workload(workload(&share, &format!("ours-{index}"), 1, 1, &plan)).await;
        }
    };
    let one_gpu = plan.clone().gpus(1);
    let theirs = deploy(&share, "theirs", EACH, &one_gpu);
    tokio::join!(ours, theirs);
    let pods = wait_for("every GPU in use", async || {
        let running: Vec<Pod> = share.pods("").await.into_iter().filter(is_running).collect();
        if running.len() == 2 * EACH {
            Ok(running)
        } else {
            Err(format!("{} pods run", running.len()))
        }
    })
    .await;
    ledger.check();
    eprintln!("kubelets refused {} pods", ledger.refused());
    let binders = binders(&share, &pods).await;
    for pod in &pods {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let ours = name.starts_with("ours");
        let annotations = pod.metadata.annotations.as_ref();
        let assigned = annotations.and_then(|all| all.get("agentaflow.gpu/assigned-node"));
        assert_eq!(assigned.is_some(), ours, "{name}");
        let wanted = if ours { "agentaflow" } else { "default-scheduler" };
        assert_eq!(binders.get(name).map(String::as_str), Some(wanted), "{name}");
    }
    for index in 0..EACH / 2 {
        let status = share.workload_is(&format!("ours-{index}"), "Running").await;
        assert_eq!(status.retries, 0, "ours-{index} did not fail");
    }
    scheduler.counts("agentaflow_gpu_available", 0.0).await;
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none() && !is_over(pod)
}

async fn deploy(share: &Share, name: &str, replicas: usize, plan: &PodPlan) {
    let mut template = plan.template();
    template["metadata"]["labels"]["app"] = json!(name);
    template["spec"]["restartPolicy"] = json!("Always");
    let deployment = json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
        },
    });
    let deployment: Deployment = serde_json::from_value(deployment).expect("a deployment");
    share.api().create(&PostParams::default(), &deployment).await.expect("a new deployment");
}

/// Source of the `Scheduled` event per pod. Events arrive after bindings.
async fn binders(share: &Share, pods: &[Pod]) -> BTreeMap<String, String> {
    let wish = ListParams::default();
    wait_for("an event for every pod", async || {
        let events = share.api::<Event>().list(&wish).await.expect("events").items;
        let scheduled =
            events.into_iter().filter(|event| event.reason.as_deref() == Some("Scheduled"));
        let binders: BTreeMap<String, String> = scheduled
            .map(|event| {
                let who = event.reporting_component.filter(|name| !name.is_empty());
                let source = event.source.and_then(|source| source.component);
                (event.involved_object.name.unwrap_or_default(), who.or(source).unwrap_or_default())
            })
            .collect();
        let reported =
            |pod: &&Pod| binders.contains_key(pod.metadata.name.as_deref().unwrap_or_default());
        let count = pods.iter().filter(reported).count();
        if count == pods.len() { Ok(binders) } else { Err(format!("{count} have the condition")) }
    })
    .await
}
