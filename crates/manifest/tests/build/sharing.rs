//! Shared GPUs: configurations of the device plugin and of mig-parted, with explanations.

use serde_json::{Value, json};

use crate::{make, refusal};

fn config(line: &str) -> Value {
    let made = make(line);
    serde_saphyr::from_str(made.objects[0]["data"]["config.yaml"].as_str().unwrap()).unwrap()
}

#[test]
fn a_gpu_is_shared_by_turns_or_by_mps() {
    assert_eq!(
        config("time-slicing --replicas 8 --rename --strict"),
        json!({"version": "v1", "sharing": {"timeSlicing": {
            "renameByDefault": true,
            "failRequestsGreaterThanOne": true,
            "resources": [{"name": "nvidia.com/gpu", "replicas": 8}],
        }}})
    );
    assert_eq!(
        config("time-slicing --mps --replicas 2"),
        json!({"version": "v1", "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}})
    );
    assert_eq!(
        config("time-slicing --mig 1g.5gb"),
        json!({
            "version": "v1",
            "flags": {"migStrategy": "mixed"},
            "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/mig-1g.5gb", "replicas": 4}]}},
        })
    );
}

#[test]
fn a_gpu_is_cut_into_slices() {
    assert_eq!(
        config(
            "mig-config --gpu a100 --slices 3g.20gb=1 --slices 2g.10gb=1 --slices 1g.5gb=2 --layout mixed"
        ),
        json!({"version": "v1", "mig-configs": {
            "all-disabled": [{"devices": "all", "mig-enabled": false}],
            "mixed": [{
                "devices": "all",
                "mig-enabled": true,
                "mig-devices": {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1},
            }],
        }})
    );
}

#[test]
fn shares_are_explained() {
    for (line, words) in [
        ("time-slicing", "`nvidia.com/gpu: 1` means 1/4 of a GPU: pods take turns"),
        (
            "time-slicing --mps --rename",
            "`nvidia.com/gpu.shared: 1` means 1/4 of a GPU: each pod can use 1/4",
        ),
        ("time-slicing --mps", "a pod that requests two shares is rejected"),
        (
            "mig-config --gpu h100 --slices 1g.10gb=7",
            "nvidia.com/mig-1g.10gb: each is 1 of 7 compute slices",
        ),
        (
            "mig-config --gpu h100 --slices 1g.10gb=7",
            "kubectl label node NODE nvidia.com/mig.config=custom",
        ),
        (
            "pod --name p --image i:1 --mig 2g.10gb",
            "nvidia.com/mig-2g.10gb: each is 2 of 7 compute slices",
        ),
    ] {
        let notes = make(line).notes;
        assert!(notes.iter().any(|note| note.contains(words)), "{line}: {notes:?}");
    }
}

#[test]
fn strict_sharing_has_no_note_about_two_shares() {
    let warns =
        |line: &str| make(line).notes.iter().any(|note| note.contains("--strict rejects them"));
    assert!(warns("time-slicing") && warns("time-slicing --mig 1g.5gb"));
    assert!(!warns("time-slicing --strict") && !warns("time-slicing --mig 1g.5gb --strict"));
}

#[test]
fn a_part_that_cannot_be_is_refused() {
    for (line, words) in [
        (
            "mig-config --gpu a100 --slices 3g.20gb=3",
            "--slices: an A100-40 cannot have the layout 3 × 3g.20gb; the nearest possible layout is 2 × 3g.20gb",
        ),
        (
            "mig-config --gpu h200 --slices 1g.5gb=1",
            "--slices: an H200-141 has no profile `1g.5gb`: use 1g.18gb",
        ),
        ("mig-config --gpu t4 --slices 1g.5gb=1", "--gpu: no MIG geometry is known for `t4`"),
        ("mig-config --gpu a100", "--slices: the slices are required"),
        ("mig-config --gpu a100 --slices 1g.5gb=many", "--slices: `many` is not a number"),
        ("mig-config --slices 1g.5gb=1", "--gpu: the GPU model is required"),
        ("mig-config --gpu a100 --slices 1g.5gb=1 --layout all-disabled", "--layout: "),
        ("time-slicing --replicas 1", "--replicas: 1 is not between 2 and 48"),
        (
            "time-slicing --mps --mig 1g.5gb",
            "--mps: the device plugin shares MIG slices by time-slicing only",
        ),
    ] {
        let output = refusal(line);
        assert!(output.starts_with(words), "{line}: {output}");
    }
}

#[test]
fn a_slice_is_explained_for_the_gpu_that_is_meant() {
    for (line, words) in [
        ("mig-config --gpu h100 --slices 1g.10gb=7", "9.8 GiB of an H100-80"),
        ("pod --name p --image i:1 --gpu h100 --mig 1g.10gb", "9.8 GiB of an H100-80"),
        (
            "pod --name p --image i:1 --cloud gke --gpu a100-80 --mig 1g.10gb",
            "9.5 GiB of an A100-80",
        ),
    ] {
        let notes = make(line).notes;
        let note = notes.iter().find(|note| note.contains("each is")).unwrap();
        assert!(note.ends_with(&format!(": each is 1 of 7 compute slices and {words}")), "{note}");
    }
}

#[test]
fn several_slices_have_a_note_about_cuda() {
    let warns = |flags: &str| {
        let notes = make(&format!("pod --name p --image i:1 --gpu a100 {flags}")).notes;
        notes.iter().any(|note| note.starts_with("a CUDA process can use only one slice"))
    };
    assert!(warns("--mig 1g.5gb --gpus 3"));
    assert!(!warns("--mig 1g.5gb") && !warns("--gpus 3"));
}

#[test]
fn slices_may_stand_in_one_list() {
    let list = make("mig-config --gpu a100-80 --slices 3g.40gb=1,2g.20gb=2").objects;
    assert_eq!(
        list,
        make("mig-config --gpu a100-80 --slices 3g.40gb=1 --slices 2g.20gb=2").objects
    );
}
