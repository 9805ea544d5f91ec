//! Matching and conflicting models, machines and slices.

use serde_json::{Value, json};

use crate::clouds::pod;
use crate::{make, refusal};

#[test]
fn flags_that_contradict_each_other_are_refused() {
    for (line, words) in [
        (
            "pod --name p --image i:1 --gpu a100 --product NVIDIA-H100-PCIe",
            "--product: `NVIDIA-H100-PCIe` has the GPU H100 80 GB, but A100 40 GB is requested",
        ),
        (
            "pod --name p --image i:1 --instance-type p4d.24xlarge --product Tesla-T4",
            "--product: `Tesla-T4` has the GPU T4 16 GB",
        ),
        (
            "workload --name w --image i:1 --gpu t4 --gpu-memory 999999",
            "--gpu-memory: no T4 16 GB has more than 16384 MiB",
        ),
        (
            "pod --name p --image i:1 --cloud gke --gpu a30 --instance-type own.type",
            "--gpu: gke has no A30 24 GB: use another",
        ),
        (
            "nodepool --gpu a100 --instance-type g4dn.xlarge",
            "--instance-type: `g4dn.xlarge` has the GPU T4 16 GB, not A100 40 GB",
        ),
        (
            "nodepool --cloud aks --instance-type g4dn.xlarge",
            "--instance-type: `g4dn.xlarge` is a machine of eks, but --cloud is aks",
        ),
    ] {
        let output = refusal(line);
        assert!(output.starts_with(words), "{line}: {output}");
    }
    make("pod --name p --image i:1 --gpu a100 --product NVIDIA-A100-SXM4-80GB");
    make("workload --name w --image i:1 --gpu a100 --gpu-memory 81920");
    // A machine with several models.
    make("pod --name p --image i:1 --cloud gke --gpu v100 --instance-type n1-standard-8");
}

#[test]
fn unknown_machines_are_noted() {
    for (line, words) in [
        (
            "pod --name p --image i:1 --cloud eks --instance-type p4d.24xlrage",
            "p4d.24xlrage is not in the catalogue (did you mean `p4d.24xlarge`?)",
        ),
        (
            "nodepool --instance-type own.type",
            "own.type is not in the catalogue and is not checked",
        ),
    ] {
        let notes = make(line).notes;
        assert!(notes.iter().any(|note| note.starts_with(words)), "{line}: {notes:?}");
    }
}

#[test]
fn slices_come_from_a_gpu_that_has_them() {
    let at = |flags: &str, path: &str| pod(flags).pointer(path).cloned().unwrap_or_default();
    let machine = "/nodeSelector/node.kubernetes.io~1instance-type";
    for (flags, path, expected) in [
        ("--gpu a100 --mig 1g.5gb", "/nodeSelector/accelerator", "nvidia-tesla-a100"),
        // The plain name selects the larger GPU if only it has the profile.
        ("--gpu a100 --mig 3g.40gb", "/nodeSelector/accelerator", "nvidia-a100-80gb"),
        ("--cloud eks --gpu a100 --mig 3g.40gb", machine, "p4de.24xlarge"),
        ("--cloud eks --gpu a100 --mig 3g.20gb --gpus 16", machine, "p4d.24xlarge"),
        // The cheapest A100 of Azure is the larger one, which lacks these slices.
        ("--cloud aks --gpu a100 --mig 1g.5gb", machine, "Standard_ND96asr_v4"),
    ] {
        assert_eq!(at(flags, path), expected, "{flags}");
    }
    let products = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0\
                    /matchExpressions/0/values";
    assert_eq!(
        at("--cloud nvidia --gpu a100 --mig 1g.5gb", products),
        json!(["NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"])
    );
    for (flags, words) in [
        ("--gpu h100 --mig 1g.5gb", "--mig: an H100-80 has no profile `1g.5gb`: use 1g.10gb"),
        ("--gpu t4 --mig 1g.5gb", "--mig: no MIG geometry is known for `t4`"),
        ("--product NVIDIA-H100-PCIe --mig 1g.5gb", "--mig: an H100-80 has no profile `1g.5gb`"),
        (
            "--instance-type p4de.24xlarge --mig 1g.5gb",
            "--mig: an A100-80 has no profile `1g.5gb`: use",
        ),
        (
            "--cloud eks --gpu a100 --mig 3g.20gb --gpus 20",
            "--gpus: no eks machine is large enough (20 × 3g.20gb need 10 of its GPUs); the largest is p4d.24xlarge",
        ),
        (
            "--instance-type p4d.24xlarge --mig 3g.20gb --gpus 20",
            "--gpus: the machine has fewer GPUs (20 × 3g.20gb need 10 of its GPUs): p4d.24xlarge",
        ),
        (
            "--cloud eks --gpu h100 --mig 1g.12gb",
            "--mig: no eks machine of the catalogue has the GPU H100 80 GB with the profile 1g.12gb",
        ),
        ("--mig 5g.5gb", "--mig: no GPU has the profile `5g.5gb`"),
    ] {
        let output = refusal(&format!("pod --name p --image i:1 {flags}"));
        assert!(output.starts_with(words), "{flags}: {output}");
    }
}

#[test]
fn on_gke_a_slice_is_a_gpu_of_nodes_that_are_cut_so() {
    let sliced = pod("--cloud gke --gpu a100 --mig 1g.5gb --gpus 2");
    assert_eq!(
        sliced["nodeSelector"],
        json!({
            "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
            "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
        })
    );
    let resources = &sliced["containers"][0]["resources"];
    assert_eq!(
        (&resources["limits"]["nvidia.com/gpu"], &resources["requests"]["nvidia.com/gpu"]),
        (&json!("2"), &json!("2"))
    );
    assert_eq!(resources["limits"].as_object().unwrap().len(), 3, "{resources}");
    let made = make("workload --name w --image i:1 --cloud gke --gpu a100 --mig 1g.5gb");
    let spec = &made.objects[0]["spec"];
    assert_eq!(spec["gpuRequirements"]["migProfile"], Value::Null);
    assert_eq!(
        spec["podTemplate"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"],
        "1"
    );
    assert!(
        made.notes.iter().any(|note| note.contains("gpu-partition-size=1g.5gb")),
        "{:?}",
        made.notes
    );
    let output = refusal("pod --name p --image i:1 --cloud gke --mig 1g.5gb.me");
    assert!(
        output.starts_with("--mig: GKE has no MIG slices with media extensions: use 1g.5gb"),
        "{output}"
    );
}

#[test]
fn unused_gpus_of_machines_are_noted() {
    let free = |line: &str| {
        let notes = make(line).notes;
        notes
            .into_iter()
            .filter(|note| note.contains("stay available") || note.contains("one node"))
            .collect::<Vec<_>>()
    };
    for (line, words) in [
        ("job --gpus 3", "5 of the 8 GPUs of p4d.24xlarge stay available for other pods"),
        (
            "deployment --gpus 3 --replicas 3",
            "3 pods of 3 GPUs need 2 × p4d.24xlarge: 7 of 16 GPUs stay available for other pods",
        ),
        ("workload --gpus 8 --gang 2", ""),
        (
            "workload --gpus 5 --gang 2",
            "2 pods of 5 GPUs need 2 × p4d.24xlarge: 6 of 16 GPUs stay available for other pods",
        ),
        ("model-server --gpus 4 --replicas 2", ""),
        ("deployment --gpus 4 --replicas 0", ""),
        ("job --gpus 8", ""),
        ("job --mig 1g.5gb", ""),
    ] {
        let output = free(&format!("{line} --name x --image i:1 --cloud eks --gpu a100"));
        assert_eq!(output.join("; "), words, "{line}");
    }
    let many = free("job --name x --image i:1 --gpu a100 --gpus 12");
    assert_eq!(many, ["all GPUs of a pod are on one node, and few machines have more than 8"]);
    assert!(free("job --name x --image i:1 --gpu a100 --gpus 8").is_empty());
}
