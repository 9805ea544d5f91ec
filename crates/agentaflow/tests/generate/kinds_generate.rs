//! An API server with the CRDs of KEDA and Karpenter accepts the generated objects.

use std::path::PathBuf;

use crate::kube_generate::{generate, texts};
use crate::support::{Share, wait_for};

/// Directory of the CRDs.
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// CRDs, and commands that generate their objects.
const KINDS: [(&str, &str); 2] = [
    ("scaledobjects.keda.sh", "keda --target llm"),
    ("nodepools.karpenter.sh", "nodepool --gpu a100"),
];

const LINES: [&str; 8] = [
    "keda --target llm",
    "keda --target llm --min 0 --max 8 --query waiting --namespace default",
    "keda --target llm --query up --value 10 --scale-down-delay 10m",
    "nodepool --gpu a100",
    "nodepool --gpu l4 --spot --name spot",
    "nodepool --gpu t4 --max-gpus 4 --idle 1h",
    "nodepool --cloud karpenter --instance-type p5.48xlarge --node-class gpu",
    "scaler --cloud karpenter",
];

/// One test, since CRDs are cluster-wide.
#[tokio::test]
#[ignore = "needs a Kubernetes control plane and the kinds of KEDA and Karpenter"]
async fn keda_and_karpenter_accept_generated_objects() {
    let share = Share::new().await;
    for (kind, line) in KINDS {
        remove(&share, kind).await;
        let output = generate(&share, &format!("{line} --apply --dry-run")).await;
        let (_, errors) = texts(&output);
        assert!(errors.contains("is its CRD installed?"), "{line}: {errors}");
    }
    let kinds = std::env::var_os("AGENTAFLOW_TEST_KINDS").map(PathBuf::from);
    let kinds = kinds.expect("AGENTAFLOW_TEST_KINDS names a folder with definitions of kinds");
    for entry in std::fs::read_dir(kinds).expect("a folder") {
        let text = std::fs::read_to_string(entry.expect("a file").path()).expect("a text");
        share.apply(&text).await;
    }
    for (_, line) in KINDS {
        wait_for("the kind is served", async || {
            let output = generate(&share, &format!("{line} --apply --dry-run")).await;
            if output.status.success() { Ok(()) } else { Err(texts(&output).1) }
        })
        .await;
    }
    for line in LINES {
        let output = generate(&share, &format!("{line} --apply --dry-run")).await;
        let (message, errors) = texts(&output);
        assert!(output.status.success(), "{line}: {errors}");
        assert!(message.ends_with(" applied (dry run)\n"), "{message}");
    }
    // Strict validation rejects unknown fields.
    let pool = texts(&generate(&share, "nodepool --gpu a100").await).0;
    for (there, wrong) in [
        ("consolidationPolicy: WhenEmpty", "consolidationPolicy: Sometimes"),
        ("limits:", "limit:"),
    ] {
        assert!(pool.contains(there), "{pool}");
        let pool: serde_json::Value = serde_saphyr::from_str(&pool.replace(there, wrong)).unwrap();
        let path = "/apis/karpenter.sh/v1/nodepools?dryRun=All&fieldValidation=Strict";
        let answer = share.request("POST", path, Some(&pool)).await;
        assert!(matches!(answer.status, 400 | 422), "{wrong}: {}", answer.body);
    }
    for (kind, _) in KINDS {
        remove(&share, kind).await;
    }
}

/// Deletes a CRD and waits until its API is gone.
async fn remove(share: &Share, kind: &str) {
    let path = format!("{DEFINITIONS}/{kind}");
    share.request("DELETE", &path, None).await;
    wait_for("the kind is gone", async || {
        let answer = share.request("GET", &path, None).await;
        if answer.status == 404 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}
