//! Faults of an installation that `health` and `doctor` report.

use agentaflow_api::Stamp;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::command_line::CommandLine;
use crate::plans::alone;
use crate::support::{NodePlan, Scheduler, Share, free_port, wait_for};

/// The report of a monitor that stopped an hour ago.
pub(crate) async fn old_report(share: &Share, node: &str) {
    let gpu = json!({"id": "GPU-0", "name": "NVIDIA A100", "memoryTotal": 81_920});
    let object = json!({
        "apiVersion": "agentaflow.io/v1",
        "kind": "GPUNode",
        "metadata": {"name": node, "namespace": share.namespace},
        "spec": {"nodeName": node, "gpuDevices": [gpu]},
    });
    share.apply_object(object).await;
    let hour_ago = Stamp(Stamp::now().0 - 3_600_000).to_string();
    let status = json!({"status": {
        "phase": "Active", "lastUpdated": hour_ago, "conditions": [],
        "gpuStatus": [{"id": "GPU-0", "available": true, "utilization": 10}],
    }});
    let path =
        format!("/apis/agentaflow.io/v1/namespaces/{}/gpunodes/{node}/status", share.namespace);
    let answer = share.request("PATCH", &path, Some(&status)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Status of a check of `doctor`, and of a finding of `health` about a node.
struct Findings<'a>(&'a CommandLine);

impl Findings<'_> {
    fn check(&self, name: &str) -> Option<String> {
        let report = self.output(&["doctor", "--remote-only", "-o", "json"]);
        let check = report.as_array()?.iter().find(|check| check["name"] == name)?;
        check["status"].as_str().map(str::to_owned)
    }

    fn severity(&self, node: &str) -> Option<String> {
        let report = self.output(&["health", "-o", "json"]);
        let finding = report["findings"].as_array()?.iter().find(|one| one["node"] == node)?;
        finding["severity"].as_str().map(str::to_owned)
    }

    /// Both commands exit with 1 on a fault.
    fn output(&self, words: &[&str]) -> Value {
        let output = self.0.run(words);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{words:?}: {error}: {}", String::from_utf8_lossy(&output.stderr))
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_dead_monitor_is_reported_and_its_node_gets_pods() {
    let share = Share::new().await;
    share.apply_file("deploy/crds").await;
    let node = share.node("a", &NodePlan::gpus(1)).await;
    // A report that a running scheduler receives is new for it, whatever the clock of the node says.
    old_report(&share, &node).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let me = CommandLine::new(&share, &scheduler);
    let findings = Findings(&me);
    wait_for("both commands report the monitor", async || {
        let found = (findings.check("gpu health"), findings.severity(&node));
        let expected = (Some("warn".to_owned()), Some("warning".to_owned()));
        if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    share.create_pod(&share.one_gpu("train")).await;
    assert_eq!(share.bound("train").await, node);
    let path = format!("/apis/agentaflow.io/v1/namespaces/{}/gpunodes/{node}", share.namespace);
    let status = share.request("GET", &path, None).await.json()["status"].take();
    assert_eq!(status["phase"], "Unavailable", "`kubectl get gpunodes` shows it: {status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_dead_monitor_is_reported_while_no_scheduler_runs() {
    let share = Share::new().await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    scheduler.program.kill();
    let node = share.node("a", &NodePlan::gpus(1)).await;
    old_report(&share, &node).await;
    let me = CommandLine::new(&share, &scheduler);
    let findings = Findings(&me);
    assert_eq!(findings.severity(&node).as_deref(), Some("warning"));
    assert_eq!(findings.check("gpu health").as_deref(), Some("warn"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn doctor_reports_a_webhook_that_refuses_connections() {
    let _alone = alone().await;
    let share = Share::new().await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let me = CommandLine::new(&share, &scheduler);
    let certificate = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let bundle = ByteString(certificate.cert.pem().into_bytes());
    let url = format!("https://127.0.0.1:{}/mutate-pods", free_port());
    share
        .apply_object(json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "agentaflow"},
            "webhooks": [{
                "name": "pods.agentaflow.io",
                "clientConfig": {"url": url, "caBundle": bundle},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                    "operations": ["CREATE"]}],
                "namespaceSelector":
                    {"matchLabels": {"kubernetes.io/metadata.name": share.namespace}},
                "failurePolicy": "Ignore",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }],
        }))
        .await;
    let found = Findings(&me).check("webhook");
    // Before the next test that runs alone.
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/agentaflow";
    share.request("DELETE", path, None).await;
    assert_eq!(found.as_deref(), Some("fail"));
}
