//! Alerts of the scheduler: sinks from a Secret, rules and silences from a `ConfigMap`, and a new leader.

use agentaflow_api::Stamp;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::command_line::CommandLine;
use crate::receiver::{Received, Receiver};
use crate::support::{NodePlan, Scheduler, Share, wait_for};

/// No delays.
const FAST: &str = "interval = \"200ms\"\ngroup_wait = \"0s\"\ngroup_interval = \"0s\"\n";

/// Publishes the report of a monitor about one GPU.
async fn report(share: &Share, node: &str, gpu: Value) {
    let device = json!({"id": "GPU-0", "name": "NVIDIA A100", "memoryTotal": 81_920});
    let object = json!({
        "apiVersion": "agentaflow.io/v1",
        "kind": "GPUNode",
        "metadata": {"name": node, "namespace": share.namespace},
        "spec": {"nodeName": node, "gpuDevices": [device]},
    });
    share.apply_object(object).await;
    let mut status = json!({"id": "GPU-0", "available": true});
    for (key, value) in gpu.as_object().expect("fields") {
        status[key] = value.clone();
    }
    let now = Stamp::now().to_string();
    let body = json!({"status": {
        "phase": "Active", "lastUpdated": now, "conditions": [], "gpuStatus": [status],
    }});
    let path =
        format!("/apis/agentaflow.io/v1/namespaces/{}/gpunodes/{node}/status", share.namespace);
    let answer = share.request("PATCH", &path, Some(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

async fn configure(share: &Share, document: &str) {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "agentaflow-alerts"},
        "data": {"alerts.toml": document},
    });
    share.apply_object(map).await;
}

/// Replaces the documented Secret.
async fn webhook(share: &Share, url: &str) {
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "alert-webhook"},
        "stringData": {"webhook-url": url},
    });
    share.apply_object(secret).await;
}

/// A message about XIDs with this status.
fn xid(status: &'static str) -> impl Fn(&Received) -> bool {
    move |received| received.body["kind"] == "gpu_xid" && received.body["status"] == status
}

/// Waits for a request without blocking the runtime.
async fn arrives(receiver: &Receiver, what: &str, test: impl Fn(&Received) -> bool) -> Received {
    wait_for(what, async || {
        let all = receiver.received();
        all.iter().find(|one| test(one)).cloned().ok_or_else(|| format!("{all:#?}"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn the_secret_names_the_webhook_and_a_changed_one_takes_effect_without_a_restart() {
    let share = Share::new().await;
    share.apply_file("deploy/crds").await;
    let receiver = Receiver::start(Some(200));
    configure(&share, FAST).await;
    let node = share.node("a", &NodePlan::gpus(1)).await;
    report(&share, &node, json!({"available": false, "xid": 79})).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let me = CommandLine::new(&share, &scheduler);
    wait_for("the alert fires without a sink", async || {
        // Until the scheduler leads, the command fails.
        let listed = me.run(&["alerts", "list", "-o", "csv"]);
        let listed = format!("{listed:?}");
        listed.contains("gpu_xid").then_some(()).ok_or(listed)
    })
    .await;
    // A wrong address first: it is retried, and never logged.
    webhook(&share, "http://127.0.0.1:1/topsecret").await;
    wait_for("the failure is shown", async || {
        let sinks = me.says(&["alerts", "list", "--sinks", "-o", "csv"]);
        let shown = sinks.contains("cannot connect: connection refused");
        shown.then_some(()).ok_or(sinks)
    })
    .await;
    webhook(&share, &receiver.url("/first")).await;
    let first = arrives(&receiver, "the alert at the new address", xid("firing")).await;
    assert_eq!(first.path, "/first");
    let alert = &first.body["alerts"][0];
    assert_eq!((&alert["node"], &alert["gpu"]), (&json!(node), &json!("GPU-0")));
    webhook(&share, &receiver.url("/second")).await;
    let map = wait_for("the test reaches the second address", async || {
        let tested = me.run(&["alerts", "test"]);
        assert!(tested.status.success(), "{tested:?}");
        let all = receiver.received();
        all.iter().find(|one| one.path == "/second").cloned().ok_or_else(|| format!("{all:#?}"))
    })
    .await;
    assert_eq!(map.body["kind"], "test");
    report(&share, &node, json!({})).await;
    let resolved = arrives(&receiver, "the end of the alert", xid("resolved")).await;
    assert_eq!(
        (resolved.path.as_str(), &resolved.body["alerts"][0]["id"]),
        ("/second", &alert["id"])
    );
    let log = scheduler.program.log();
    for secret in ["topsecret", "/first", "/second", &receiver.port().to_string()] {
        assert!(!log.contains(secret), "the log contains {secret}:\n{log}");
    }
    let events = share.events(&node).await;
    let reasons: Vec<_> = events.iter().filter_map(|event| event.reason.as_deref()).collect();
    for reason in ["AlertFiring", "AlertResolved"] {
        assert!(reasons.contains(&reason), "{reasons:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_leader_killed_between_attempt_and_answer_leaves_the_message_to_the_next() {
    let share = Share::new().await;
    share.apply_file("deploy/crds").await;
    let receiver = Receiver::start(None);
    configure(&share, FAST).await;
    webhook(&share, &receiver.url("/hook")).await;
    let node = share.node("a", &NodePlan::gpus(1)).await;
    report(&share, &node, json!({"available": false, "xid": 79})).await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let first = arrives(&receiver, "the first attempt", xid("firing")).await;
    scheduler.program.kill();
    receiver.answer_with(200);
    scheduler.crash_and_restart().await;
    let again = wait_for("the next leader sends it again", async || {
        let all = receiver.received();
        all.get(1).cloned().ok_or_else(|| format!("{all:#?}"))
    })
    .await;
    assert_eq!(again.body, first.body, "the whole payload is equal");
    let me = CommandLine::new(&share, &scheduler);
    wait_for("the success is shown", async || {
        let sinks = me.says(&["alerts", "list", "--sinks", "-o", "csv"]);
        sinks.contains("delivered").then_some(()).ok_or(sinks)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn rules_and_silences_of_the_config_map_apply_at_run_time() {
    let share = Share::new().await;
    share.apply_file("deploy/crds").await;
    let receiver = Receiver::start(Some(200));
    let strict = format!("{FAST}[rules.gpu_hot]\nwarning = 30\nfor = \"0s\"\nkeep = \"0s\"\n");
    configure(&share, &strict).await;
    webhook(&share, &receiver.url("/hook")).await;
    let node = share.node("a", &NodePlan::gpus(1)).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let me = CommandLine::new(&share, &scheduler);
    let silenced = wait_for("the scheduler leads", async || {
        let silenced = me.run(&["alerts", "silence", "--kind", "gpu_hot", "--for", "1h"]);
        let text = String::from_utf8_lossy(&silenced.stdout).into_owned();
        if silenced.status.success() { Ok(text) } else { Err(format!("{silenced:?}")) }
    })
    .await;
    let id = silenced.split(' ').nth(1).expect("an id").to_owned();
    wait_for("the silence is in force", async || {
        let listed = me.says(&["alerts", "list", "--silences", "-o", "name"]);
        listed.contains(&id).then_some(()).ok_or(listed)
    })
    .await;
    report(&share, &node, json!({"temperature": 40})).await;
    wait_for("the alert is silenced", async || {
        let listed = me.says(&["alerts", "list", "-o", "csv"]);
        listed.contains(",silenced,warning,gpu_hot,").then_some(()).ok_or(listed)
    })
    .await;
    assert!(receiver.received().is_empty(), "{:?}", receiver.received());
    assert_eq!(me.says(&["alerts", "unsilence", &id]), format!("silence {id} ended\n"));
    let hot = |received: &Received| received.body["kind"] == "gpu_hot";
    arrives(&receiver, "the alert", hot).await;
    // An invalid document is reported, and the one in force stays.
    configure(&share, "[rules.gpu_hot]\nwarning = \"warm\"").await;
    wait_for("the fault is shown", async || {
        let told = me.run(&["alerts", "list"]);
        let told = String::from_utf8_lossy(&told.stderr).into_owned();
        told.contains("alerts.toml: rules.gpu_hot: use a number").then_some(()).ok_or(told)
    })
    .await;
    configure(&share, &strict.replace("30", "80")).await;
    let cool = |received: &Received| hot(received) && received.body["status"] == "resolved";
    arrives(&receiver, "the end of the alert", cool).await;
}
