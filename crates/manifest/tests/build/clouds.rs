//! Placement and machine selection on each cloud.

use serde_json::{Value, json};

use crate::{make, refusal};

pub(crate) fn pod(flags: &str) -> Value {
    make(&format!("pod --name p --image i:1 {flags}")).objects[0]["spec"].clone()
}

#[test]
fn each_cloud_selects_nodes_by_its_own_labels() {
    for (flags, selector) in [
        ("--gpu a100", json!({"accelerator": "nvidia-tesla-a100"})),
        (
            "--gpu t4 --spot",
            json!({"accelerator": "nvidia-tesla-t4", "node.kubernetes.io/lifecycle": "spot"}),
        ),
        (
            "--cloud eks --gpu a100 --gpus 8",
            json!({"node.kubernetes.io/instance-type": "p4d.24xlarge"}),
        ),
        (
            "--cloud eks --gpu v100 --spot --node-pool gpus",
            json!({
                "node.kubernetes.io/instance-type": "p3.2xlarge",
                "eks.amazonaws.com/capacityType": "SPOT",
                "eks.amazonaws.com/nodegroup": "gpus",
            }),
        ),
        (
            "--cloud karpenter --gpu h100 --spot",
            json!({"karpenter.k8s.aws/instance-gpu-name": "h100", "karpenter.sh/capacity-type": "spot"}),
        ),
        // The plain name includes the smaller one.
        (
            "--cloud karpenter --gpu a100-80",
            json!({
                "karpenter.k8s.aws/instance-gpu-name": "a100",
                "karpenter.k8s.aws/instance-gpu-memory": "81920",
            }),
        ),
        (
            "--cloud karpenter --gpu v100-32",
            json!({
                "karpenter.k8s.aws/instance-gpu-name": "v100",
                "karpenter.k8s.aws/instance-gpu-memory": "32768",
            }),
        ),
        ("--cloud karpenter --gpu a100", json!({"karpenter.k8s.aws/instance-gpu-name": "a100"})),
        (
            "--cloud karpenter --gpu a100 --mig 1g.5gb",
            json!({
                "karpenter.k8s.aws/instance-gpu-name": "a100",
                "karpenter.k8s.aws/instance-gpu-memory": "40960",
            }),
        ),
        (
            "--cloud gke --gpu a100-80",
            json!({"cloud.google.com/gke-accelerator": "nvidia-a100-80gb"}),
        ),
        // Only the larger GPU comes with this much memory.
        (
            "--cloud gke --gpu a100 --memory 200Gi",
            json!({"cloud.google.com/gke-accelerator": "nvidia-a100-80gb"}),
        ),
        (
            "--cloud gke --gpu l4 --spot",
            json!({"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-spot": "true"}),
        ),
        (
            "--cloud aks --gpu a100 --gpus 8",
            json!({"accelerator": "nvidia", "node.kubernetes.io/instance-type": "Standard_ND96asr_v4"}),
        ),
        ("--cloud nvidia", json!({"nvidia.com/gpu.present": "true"})),
        ("--cloud nvidia --gpu a100", Value::Null),
        ("--selector zone=a --gpu v100", json!({"accelerator": "nvidia-tesla-v100", "zone": "a"})),
    ] {
        assert_eq!(pod(flags)["nodeSelector"], selector, "{flags}");
    }
    assert_eq!(
        pod("--cloud nvidia --gpu a100-80")["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"][0]["matchExpressions"][0]["values"],
        json!(["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"])
    );
    let preferred = pod("--cloud karpenter --prefer a100-80=50");
    assert_eq!(
        preferred["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
            ["preference"]["matchExpressions"],
        json!([
            {"key": "karpenter.k8s.aws/instance-gpu-name", "operator": "In", "values": ["a100"]},
            {"key": "karpenter.k8s.aws/instance-gpu-memory", "operator": "In", "values": ["81920"]},
        ])
    );
}

#[test]
fn the_taints_of_each_cloud_are_tolerated() {
    let keys = |flags: &str| -> Vec<String> {
        let tolerations = pod(flags)["tolerations"].as_array().cloned().unwrap_or_default();
        tolerations
            .iter()
            .map(|toleration| toleration["key"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(keys("--cloud eks"), ["nvidia.com/gpu"]);
    assert_eq!(keys("--cloud gke --spot"), ["nvidia.com/gpu", "cloud.google.com/gke-spot"]);
    assert_eq!(keys("--cloud aks"), ["nvidia.com/gpu", "sku"]);
    assert_eq!(keys("--spot"), ["nvidia.com/gpu", "spot"]);
    assert_eq!(keys("--taint none"), [""; 0]);
    assert_eq!(pod("--cloud eks")["tolerations"][0]["operator"], "Exists", "whatever its value");
}

#[test]
fn the_machine_is_named_with_its_price_and_the_day_of_the_price() {
    let made = make("job --task-id t --image i:1 --cloud eks --gpu a100 --gpus 8 --timeout 1h");
    assert_eq!(
        made.notes,
        [
            "p4d.24xlarge: 8 × A100 40 GB, 96 vCPU, 1152 GiB, $21.96 per hour on demand (list price of 2026-08-21)"
        ]
    );
}

#[test]
fn spot_recipes_have_a_note_about_checkpoints() {
    let reminded = |flags: &str| {
        let made = make(&format!("pod --name p --image i:1 {flags}"));
        made.notes.iter().any(|note| note.contains("mount a claim for checkpoints"))
    };
    assert!(reminded("--spot"));
    assert!(!reminded("--spot --workspace"));
    assert!(!reminded("--spot --mount ckpt:/checkpoints"));
    assert!(!reminded(""));
}

#[test]
fn requests_fit_the_allocatable_resources() {
    // The preset requests 4 cores and 8 GiB; the smallest machine with a T4 has 4 cores in total.
    let small = pod("--cloud eks --gpu t4");
    assert_eq!(
        small["containers"][0]["resources"]["requests"],
        json!({"cpu": "3500m", "memory": "8Gi", "nvidia.com/gpu": "1"})
    );
    // Explicit requests are not reduced: a larger machine is selected.
    let large = pod("--cloud eks --gpu t4 --cpu-request 4 --memory-request 16Gi");
    assert_eq!(large["nodeSelector"]["node.kubernetes.io/instance-type"], "g4dn.2xlarge");
}

#[test]
fn impossible_requests_name_the_largest_machine() {
    for (flags, words) in [
        (
            "--cloud eks --gpu a100 --gpus 9",
            "--gpus: no eks machine is large enough; the largest is p4d",
        ),
        ("--cloud eks --gpu t4 --memory 2Ti", "--memory: no eks machine is large enough"),
        ("--cloud gke --gpu t4 --cpu 100", "--cpu: no gke machine is large enough"),
        ("--cloud gke --gpu a30", "--gpu: no gke machine of the catalogue has the GPU A30 24 GB"),
        ("--cloud eks --instance-type g4dn.xlarge --gpus 2", "--gpus: the machine has fewer GPUs"),
        ("--instance-type g4dn.xlarge --gpu v100", "--instance-type: the machine has another GPU"),
        (
            "--instance-type g4dn.xlarge --memory-request 16Gi",
            "--memory: the machine has less memory for pods",
        ),
        ("--cloud eks --gpu zx81", "--gpu: unknown GPU model `zx81`: use t4, v100"),
        ("--node-pool a", "--node-pool: generic nodes have no pool label"),
        ("--prefer a100=101", "--prefer: `101` is not a weight"),
        ("--product 'a b'", "--product: `a b` is not a product"),
        ("--taint 'a b'", "--taint: `a b` is not a taint value"),
        ("--selector 'a b=c'", "--selector: "),
        ("--instance-type 'a b'", "--instance-type: "),
    ] {
        let output = refusal(&format!("pod --name p --image i:1 {flags}"));
        assert!(output.starts_with(words), "{flags}: {output}");
    }
}

#[test]
fn pods_are_scaled_by_a_gpu_metric_and_down_to_zero_by_waiting_work() {
    let hpa = &make("hpa --target llm --max 8").objects[0]["spec"];
    assert_eq!(
        hpa["metrics"],
        json!([{"type": "Pods", "pods": {
            "metric": {"name": "gpu_utilization"},
            "target": {"type": "AverageValue", "averageValue": "80"},
        }}])
    );
    let queue = &make("hpa --target llm --queue team --value 5").objects[0]["spec"];
    assert_eq!(
        queue["metrics"],
        json!([{"type": "Object", "object": {
            "describedObject": {"apiVersion": "agentaflow.io/v1", "kind": "GPUQueue", "name": "team"},
            "metric": {"name": "queue_depth"},
            "target": {"type": "AverageValue", "averageValue": "5"},
        }}])
    );
    let external =
        &make("hpa --target llm --external --metric queue --metric-label q=llm --value 5").objects
            [0];
    assert_eq!(
        external["spec"]["metrics"][0]["external"]["metric"],
        json!({"name": "queue", "selector": {"matchLabels": {"q": "llm"}}})
    );
    let keda =
        &make("keda --target llm --query 'sum(requests_waiting)' --value 10").objects[0]["spec"];
    assert_eq!((&keda["minReplicaCount"], &keda["maxReplicaCount"]), (&json!(0), &json!(4)));
    assert_eq!(keda["triggers"][0]["metadata"]["query"], "sum(requests_waiting)");
    let busy = &make("keda --target llm").objects[0]["spec"];
    assert_eq!(busy["minReplicaCount"], 1);
}

#[test]
fn keda_gets_numbers_and_waits_before_every_pod_that_it_removes() {
    for (value, threshold) in [
        ("80", "80"),
        ("100", "100"),
        ("500m", "0.5"),
        ("0.25", "0.25"),
        ("1.50", "1.5"),
        ("2k", "2000"),
        ("1Gi", "1073741824"),
    ] {
        let made = make(&format!("keda --target llm --value {value} --scale-down-delay 10m"));
        let spec = &made.objects[0]["spec"];
        assert_eq!(spec["triggers"][0]["metadata"]["threshold"], threshold);
        assert_eq!(spec["cooldownPeriod"], 600);
        let behavior = &spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"];
        assert_eq!(behavior["scaleDown"]["stabilizationWindowSeconds"], 600);
    }
}
