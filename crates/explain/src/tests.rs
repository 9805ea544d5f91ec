//! Golden sentences: this file and the golden scripts are the only tests that a rewording breaks.

use agentaflow_engine::{
    FitSummary, Gate, MiB, MilliGpu, QuotaResource, UnavailableGpus, WorkloadId,
};

use super::*;

fn check(reason: &WaitReason, expected: &str) {
    assert_eq!(super::reason(reason, Time(0)), expected);
}

#[test]
fn shortfalls_are_counted_by_node() {
    let summary = FitSummary {
        nodes: 12,
        shortfalls: vec![
            (Shortfall::GpuMemory { need: MiB(24_576), most: MiB(8192) }, 5),
            (Shortfall::Taint("spot".into()), 4),
            (
                Shortfall::GpuModel { has: vec!["NVIDIA A100".into()], asked: vec!["H100".into()] },
                3,
            ),
        ],
    };
    check(
        &WaitReason::NoRoom(summary),
        "0/12 nodes fit: 5 lack 24 GiB on one GPU (largest free 8 GiB), 4 have untolerated taint spot, \
         3 have NVIDIA A100 (requested H100)",
    );
}

#[test]
fn a_model_shortfall_names_both_sides() {
    let named = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
    let output = |has: &[&str], asked: &[&str], nodes| {
        shortfall(&Shortfall::GpuModel { has: named(has), asked: named(asked) }, nodes)
    };
    assert_eq!(output(&["NVIDIA A100"], &["H100"], 1), "1 has NVIDIA A100 (requested H100)");
    assert_eq!(
        output(&["A100", "T4"], &["H100", "L4"], 2),
        "2 have A100 and T4 (requested H100 or L4)"
    );
    assert_eq!(
        output(&["A", "B", "C", "D", "E"], &["H100"], 9),
        "9 have A, B, C and 2 more (requested H100)"
    );
}

#[test]
fn the_exclusive_resource_reads_as_shared_gpus() {
    let name = "agentaflow.gpu/exclusive".into();
    let shortfalls = vec![(Shortfall::Resource { name, need: 1, most: 0 }, 2)];
    check(
        &WaitReason::NoRoom(FitSummary { nodes: 2, shortfalls }),
        "0/2 nodes fit: 2 share their GPUs among pods",
    );
}

fn unavailable(numbers: [u32; 3], gpus: &[&str]) -> Shortfall {
    let [cordoned, draining, failed] = numbers;
    let gpus = gpus.iter().map(|gpu| (*gpu).into()).collect();
    Shortfall::UnavailableGpus(UnavailableGpus { cordoned, draining, failed, gpus })
}

#[test]
fn unavailable_gpus_are_counted_by_state() {
    let output = |numbers, nodes| shortfall(&unavailable(numbers, &[]), nodes);
    assert_eq!(output([1, 0, 0], 1), "1 has 1 cordoned GPU");
    assert_eq!(output([0, 4, 0], 3), "3 have 4 draining GPUs");
    assert_eq!(output([1, 0, 2], 2), "2 have 3 closed GPUs (1 cordoned, 2 unhealthy)");
}

#[test]
fn the_closest_node_comes_with_a_command() {
    let output = |numbers, gpus: &[&str]| shortfall_of("gpu-7", &unavailable(numbers, gpus));
    assert_eq!(output([1, 0, 0], &["0"]), "has 1 cordoned GPU; run `agentaflow uncordon gpu-7/0`");
    assert_eq!(
        output([1, 1, 1], &["0", "3"]),
        "has 3 closed GPUs (1 cordoned, 1 draining, 1 unhealthy); \
         run `agentaflow uncordon gpu-7/0 gpu-7/3`"
    );
    assert_eq!(output([0, 0, 1], &[]), "has 1 unhealthy GPU");
    assert_eq!(
        output([2, 0, 0], &["GPU-a::0", "GPU-a::1"]),
        "has 2 cordoned GPUs; run `agentaflow uncordon gpu-7/GPU-a`"
    );
    assert_eq!(
        shortfall_of("gpu-7", &Shortfall::Unschedulable),
        "is cordoned; run `agentaflow uncordon gpu-7`"
    );
}

#[test]
fn a_node_closed_by_its_agent_is_not_opened_by_the_server() {
    let cluster = closed_by_agent(Some("gpu-7"));
    assert!(cluster.contains("`kubectl uncordon gpu-7`"), "{cluster}");
    for text in [cluster, closed_by_agent(None)] {
        assert!(!text.contains("agentaflow uncordon"), "{text}");
    }
}

#[test]
fn the_taint_of_kubectl_cordon_reads_as_cordoned() {
    let taint = |taint: &str| shortfall(&Shortfall::Taint(taint.to_owned()), 2);
    assert_eq!(taint("node.kubernetes.io/unschedulable:NoSchedule"), "2 are cordoned");
    assert_eq!(taint("gpu:NoSchedule"), "2 have untolerated taint gpu:NoSchedule");
}

#[test]
fn one_node_takes_the_singular() {
    let shortfalls = vec![(Shortfall::FreeGpus { need: 4, most: 2 }, 1), (Shortfall::TaskLimit, 1)];
    check(
        &WaitReason::NeverFits(FitSummary { nodes: 2, shortfalls }),
        "0/2 nodes fit even when empty: 1 lacks 4 free GPUs (most free 2), 1 is at its task limit",
    );
}

#[test]
fn a_gang_shows_how_many_tasks_fit() {
    let shortfalls = vec![(Shortfall::FreeGpus { need: 8, most: 3 }, 8)];
    let summary = FitSummary { nodes: 8, shortfalls };
    check(
        &WaitReason::Gang { needs: 4, fits: 2, fits_when_empty: true, summary },
        "2/4 tasks of the gang fit now; for one more task 8 lack 8 free GPUs (most free 3)",
    );
    let summary = FitSummary::default();
    check(
        &WaitReason::Gang { needs: 4, fits: 2, fits_when_empty: false, summary },
        "2/4 tasks of the gang fit now, and an empty cluster is too small",
    );
    check(
        &WaitReason::Gated(Gate::SecretsSealed("/data/secret-key".to_owned())),
        "Secrets cannot be decrypted: their key is missing in `/data/secret-key` of the server. An admin restores the file",
    );
    check(
        &WaitReason::Gated(Gate::PodsMissing { have: 3, need: 4 }),
        "Waiting for gang: 3/4 pods created",
    );
}

#[test]
fn a_quota_has_its_own_unit() {
    let quota = |resource, [limit, used, reserved, requested]: [u64; 4]| WaitReason::Quota {
        queue: "research".into(),
        resource,
        limit,
        used,
        reserved,
        requested,
    };
    check(
        &quota(QuotaResource::Gpu, [8000, 7500, 0, 1000]),
        "Quota of queue `research` exceeded: limit 8 GPUs, 7.5 GPUs in use, 1 GPU requested",
    );
    check(
        &quota(QuotaResource::Gpu, [8000, 5000, 8000, 1000]),
        "Quota of queue `research` exceeded: limit 8 GPUs, 5 GPUs in use, 8 GPUs reserved, 1 GPU requested",
    );
}

#[test]
fn times_are_relative_to_now() {
    let reserved =
        WaitReason::Reserved { workload: "train-7".into(), until: Some(Time(7_500_000)) };
    check(&reserved, "Reserved for `train-7`, next in the queue, expected to start in 2 h 5 min");
    check(
        &WaitReason::BackingOff { until: Time(8000), refusals: 1 },
        "1 placement failed; next attempt in 8 s",
    );
    let victims = ["a", "b", "c", "d", "e"].map(WorkloadId::from).to_vec();
    check(
        &WaitReason::Preempting { victims, until: Time(300_000) },
        "Preempting `a`, `b`, `c` and 2 more; replanned in 5 min at the latest",
    );
}

#[test]
fn an_explanation_has_reason_position_and_alternatives() {
    let explained = Explanation {
        reason: Some(WaitReason::NoNodes),
        position: Some(2),
        waiting: 5,
        alternatives: vec![
            Alternative::GpuCount(2),
            Alternative::GpuFraction(MilliGpu::new(250).unwrap()),
        ],
        closest: Vec::new(),
        eta: Eta::Unknown,
    };
    assert_eq!(
        explanation(&explained, Time(0)),
        [
            "No nodes in the cluster",
            "Position 2 of 5 in the queue; start time unknown",
            "Would start now with 2 GPUs, or with 0.25 of one GPU",
        ]
    );
}

#[test]
fn a_duration_has_two_units_at_most() {
    let spans = [(1, "1 s"), (60_000, "1 min"), (61_000, "1 min 1 s"), (90_061_000, "1 d 1 h")];
    for (milliseconds, text) in spans {
        assert_eq!(span(Span(milliseconds)), text);
    }
}

#[test]
fn memory_is_rounded_only_while_amounts_differ() {
    let output = |need, most| shortfall(&Shortfall::Memory { need: MiB(need), most: MiB(most) }, 1);
    assert_eq!(output(1_048_576, 24_105), "1 lacks 1 TiB of memory (most free 23.5 GiB)");
    assert_eq!(output(1024, 512), "1 lacks 1 GiB of memory (most free 512 MiB)");
    assert_eq!(output(24_106, 24_105), "1 lacks 24106 MiB of memory (most free 24105 MiB)");
    let proposed = |mib| alternative(&Alternative::GpuMemory(MiB(mib)));
    assert_eq!(proposed(20_480), "with 20 GiB of GPU memory");
    assert_eq!(proposed(24_140), "with 23.5 GiB of GPU memory", "a proposal is rounded down");
    assert_eq!(proposed(900), "with 900 MiB of GPU memory");
}

#[test]
fn a_sentence_is_capitalised_unless_it_starts_with_a_name() {
    for (text, changed) in [
        ("node `a` was deleted", "Node `a` was deleted"),
        ("waits: no room", "Waits: no room"),
        ("gpu-1 left", "gpu-1 left"),
        ("`gpus` must be 1", "`gpus` must be 1"),
        ("max_jobs is 0", "max_jobs is 0"),
        ("", ""),
    ] {
        assert_eq!(capitalised(text), changed);
    }
    assert_eq!(uncapitalised("Queue `a` not found"), "queue `a` not found");
    assert_eq!(uncapitalised("GPU 0 failed"), "GPU 0 failed");
    assert_eq!(uncapitalised("Start in 5 min"), "start in 5 min");
}
