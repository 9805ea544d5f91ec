//! Correct manifests of real projects.

use crate::{fixed, found, ids};

/// A pod that requests a GPU on nodes with these labels.
fn on(labels: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: a}}
spec:
  containers:
  - name: a
    image: a:1
    resources: {{limits: {{memory: 8Gi, nvidia.com/gpu: 1}}}}
  tolerations: [{{operator: Exists}}]
  nodeSelector: {{{labels}}}
"
    )
}

#[test]
fn labels_that_clouds_and_operators_set_are_known_and_stay() {
    for label in [
        "kubernetes.io/os: linux",
        "kubernetes.io/arch: amd64",
        "kubernetes.io/hostname: gpu-1",
        "topology.kubernetes.io/zone: us-east-1a",
        "node.kubernetes.io/worker: a",
        "cloud.google.com/gke-tpu-accelerator: tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology: 2x4",
        "cloud.google.com/gke-gpu-driver-version: latest",
        "cloud.google.com/gke-of-next-year: a",
        "nvidia.com/gpu.deploy.driver: a",
        "nvidia.com/mps.capable: a",
        "nvidia.com/mig-1g.5gb.count: a",
        "karpenter.k8s.aws/instance-cpu-manufacturer: intel",
        "karpenter.k8s.aws/instance-network-bandwidth: a",
        "eks.amazonaws.com/compute-type: auto",
    ] {
        let text = on(label);
        assert!(!ids(&text).contains(&"AF104"), "{label}");
        assert_eq!(fixed(&text), text, "{label}");
    }
}

#[test]
fn a_typo_in_a_label_is_replaced_by_the_intended_label() {
    for (wrong, right) in [
        ("nvidia.com/gpu.prodcut: a", "nvidia.com/gpu.product: a"),
        ("node.kubernetes.io/arch: arm64", "kubernetes.io/arch: arm64"),
        ("node.kubernetes.io/zone: a", "topology.kubernetes.io/zone: a"),
        (
            "cloud.google.com/gke-acelerator: nvidia-l4",
            "cloud.google.com/gke-accelerator: nvidia-l4",
        ),
    ] {
        assert_eq!(fixed(&on(wrong)), on(right), "{wrong}");
    }
    // Unknown label without a suggestion.
    let strange = on("nvidia.com/tensor-cores: many");
    assert!(ids(&strange).contains(&"AF104"));
    assert_eq!(fixed(&strange), strange);
}

#[test]
fn slices_of_gpus_of_which_only_the_names_are_known_are_right() {
    for profile in ["1g.23gb", "1g.34gb", "2g.67gb", "1g.24gb.gfx", "1g.24gb-me", "7g.278gb"] {
        let text = on("a: b").replace("nvidia.com/gpu:", &format!("nvidia.com/mig-{profile}:"));
        assert!(!ids(&text).contains(&"AF006"), "{profile}");
    }
    let text = on("a: b").replace("nvidia.com/gpu:", "nvidia.com/mig-1g.11gb:");
    assert!(ids(&text).contains(&"AF006"));
}

#[test]
fn placeholders_are_not_checked() {
    let text = on("accelerator: \"${GPU_TYPE}\"")
        .replace("image: a:1", "image: ${REGISTRY}/a")
        .replace("nvidia.com/gpu: 1", "nvidia.com/gpu: \"${GPUS:-1}\"");
    assert_eq!(ids(&text), Vec::<&str>::new());
    // A script is no such value.
    let script = text.replace(
        "    image:",
        "    command: [sh, -c, \"echo ${A}; apt install nvidia-docker2\"]\n    image:",
    );
    assert_eq!(ids(&script), ["AF304"]);
}

#[test]
fn a_memory_volume_without_a_mount_is_not_checked() {
    let text =
        on("a: b") + "  volumes:\n  - name: gke-gcsfuse-cache\n    emptyDir: {medium: Memory}\n";
    assert!(!ids(&text).contains(&"AF402"), "{:?}", ids(&text));
    let mounted = text.replace(
        "    image:",
        "    volumeMounts: [{name: gke-gcsfuse-cache, mountPath: /c}]\n    image:",
    );
    let severity = |text: &str| {
        let findings = found(text);
        let finding = findings.iter().find(|one| one.rule.id == "AF402").unwrap();
        (finding.severity.as_str(), finding.fix.len())
    };
    // A memory limit bounds it; otherwise it can take all memory of the node.
    assert_eq!(severity(&mounted), ("info", 1));
    let unlimited = mounted.replace("memory: 8Gi, ", "");
    assert_eq!(severity(&unlimited), ("warning", 1));
    // The need of other accelerators is unknown.
    assert_eq!(severity(&unlimited.replace("nvidia.com/gpu", "google.com/tpu")), ("warning", 0));
}

#[test]
fn ray_mounts_shared_memory_by_itself() {
    let spec = "{containers: [{name: a, image: a:1, resources: {limits: {nvidia.com/gpu: 2}}}]}";
    let ray = format!(
        "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {{name: a}}\nspec: {{workerGroupSpecs: [{{template: {{spec: {spec}}}}}]}}\n"
    );
    assert!(!ids(&ray).contains(&"AF401"));
    let other = ray.replace("ray.io/v1", "leaderworkerset.x-k8s.io/v1");
    assert!(ids(&other).contains(&"AF401"));
}

#[test]
fn google_tolerates_for_pods_that_choose_its_nodes() {
    let bare = |label: &str| on(label).replace("  tolerations: [{operator: Exists}]\n", "");
    for label in ["gke-accelerator: nvidia-l4", "compute-class: gpus", "gke-nodepool: a"] {
        let text = bare(&format!("cloud.google.com/{label}"));
        assert!(!ids(&text).contains(&"AF101"), "{label}");
    }
    assert!(ids(&bare("a: b")).contains(&"AF101"));
    // Not all of its spot nodes are tainted.
    let spot = bare("cloud.google.com/gke-spot: \"true\"");
    let spot: Vec<_> = found(&spot)
        .into_iter()
        .filter(|one| one.rule.id == "AF111")
        .map(|one| one.severity.as_str())
        .collect();
    assert_eq!(spot, ["info"]);
}

#[test]
fn fields_with_server_defaults_may_be_absent() {
    let job = "apiVersion: batch/v1
kind: Job
metadata: {name: a}
spec:
  podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}
  template: {spec: {restartPolicy: Never, containers: [{name: a, image: \"a:1\"}]}}
";
    assert_eq!(ids(job), Vec::<&str>::new());
    let nameless = job.replace("{type: DisruptionTarget}", "{}");
    assert_eq!(ids(&nameless), ["AF703"]);
}

#[test]
fn unknown_gpu_resources_are_found() {
    let named = |name: &str| on("a: b").replace("nvidia.com/gpu: 1", &format!("{name}: 1"));
    for name in
        ["gpu", "nvidia.com/gpus", "nvidia.com/GPU", "nvidia/gpu", "alpha.kubernetes.io/nvidia-gpu"]
    {
        assert_eq!(ids(&named(name)), ["AF010"], "{name}");
        assert_eq!(fixed(&named(name)), on("a: b"), "{name}");
    }
    // Names of other plugins, and of shares.
    for name in [
        "amd.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.5gb.shared",
    ] {
        assert_eq!(ids(&named(name)), Vec::<&str>::new(), "{name}");
    }
    let twice = on("a: b").replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 1, gpu: 1");
    assert_eq!(fixed(&twice), twice);
}

#[test]
fn amounts_that_no_container_can_run_with_are_found() {
    let text = on("a: b");
    assert_eq!(ids(&text.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: -1")), ["AF003"]);
    assert_eq!(ids(&text.replace("8Gi", "8000m")), ["AF703"]);
}

#[test]
fn a_launcher_with_too_many_gpus_is_found() {
    let started = |command: &str| {
        on("a: b")
            .replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 2")
            .replace("    image:", &format!("    args: [{command}]\n    image:"))
    };
    for command in [
        "torchrun, --nproc_per_node=4, train.py",
        "torchrun, --nproc-per-node, '4', train.py",
        "sh, -c, 'exec torchrun --nproc-per-node 4 train.py'",
        "--model, m, --tensor-parallel-size, '4'",
        "--model, m, --tensor-parallel-size=4",
    ] {
        assert!(ids(&started(command)).contains(&"AF011"), "{command}");
    }
    for command in [
        "torchrun, --nproc_per_node=2, train.py",
        "torchrun, --nproc_per_node=gpu, train.py",
        "torchrun, --nnodes=4, --nproc_per_node=2, train.py",
        "--model, m, --tensor-parallel-size, '2'",
        "--model, m, --tensor-parallel-size",
        // These reach into other pods.
        "--model, m, --tensor-parallel-size, '4', --distributed-executor-backend, ray",
    ] {
        assert!(!ids(&started(command)).contains(&"AF011"), "{command}");
    }
    let spread = started("vllm, serve, m, --tensor-parallel-size, '4'")
        .replace("apiVersion: v1\nkind: Pod", "apiVersion: a.example.org/v1\nkind: Group");
    assert!(!ids(&spread).contains(&"AF011"));
}
