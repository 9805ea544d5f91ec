//! The sentences, as a user reads them.

use super::*;
use agentaflow_engine::MilliGpu;

fn check(reason: &WaitReason, expected: &str) {
    assert_eq!(super::reason(reason, Time(0)), expected);
}

#[test]
fn nodes_that_do_not_fit_are_counted_by_what_they_lack() {
    let tally = FitSummary {
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
        &WaitReason::NoRoom(tally),
        "0/12 nodes fit: 5 lack 24 GiB on one GPU (largest free 8 GiB), 4 taint spot, 3 have NVIDIA A100 (asked for H100)",
    );
}

#[test]
fn a_node_of_another_model_says_what_it_has_and_what_was_asked_for() {
    let named = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
    let told = |has: &[&str], asked: &[&str], nodes| {
        lack(&Shortfall::GpuModel { has: named(has), asked: named(asked) }, nodes)
    };
    assert_eq!(told(&["NVIDIA A100"], &["H100"], 1), "1 has NVIDIA A100 (asked for H100)");
    assert_eq!(
        told(&["A100", "T4"], &["H100", "L4"], 2),
        "2 have A100 and T4 (asked for H100 or L4)"
    );
    assert_eq!(
        told(&["A", "B", "C", "D", "E"], &["H100"], 9),
        "9 have A, B, C and 2 more (asked for H100)"
    );
}

#[test]
fn gpus_that_others_share_are_told_in_words_and_not_as_a_resource() {
    let name = "agentaflow.gpu/exclusive".into();
    let tally = FitSummary {
        nodes: 2,
        shortfalls: vec![(Shortfall::Resource { name, need: 1, most: 0 }, 2)],
    };
    check(&WaitReason::NoRoom(tally), "0/2 nodes fit: 2 share their GPUs among pods");
}

fn closed_gpus(numbers: [u32; 3], gpus: &[&str]) -> Shortfall {
    let [cordoned, draining, sick] = numbers;
    let gpus = gpus.iter().map(|gpu| (*gpu).into()).collect();
    Shortfall::UnavailableGpus(UnavailableGpus { cordoned, draining, failed: sick, gpus })
}

#[test]
fn closed_gpus_are_counted_by_why_they_are_closed() {
    let told = |numbers, nodes| lack(&closed_gpus(numbers, &[]), nodes);
    assert_eq!(told([1, 0, 0], 1), "1 has 1 GPU that is cordoned");
    assert_eq!(told([0, 4, 0], 3), "3 have 4 GPUs that are draining");
    assert_eq!(told([1, 0, 2], 2), "2 have 3 GPUs that are closed (1 cordoned, 2 sick)");
}

#[test]
fn who_waits_for_closed_gpus_is_told_how_to_open_them() {
    let told = |numbers, gpus: &[&str]| lack_of("gpu-7", &closed_gpus(numbers, gpus));
    assert_eq!(
        told([1, 0, 0], &["0"]),
        "has 1 GPU that is cordoned; `agentaflow uncordon gpu-7/0` opens it"
    );
    assert_eq!(
        told([1, 1, 1], &["0", "3"]),
        "has 3 GPUs that are closed (1 cordoned, 1 draining, 1 sick); \
         `agentaflow uncordon gpu-7/0 gpu-7/3` opens them"
    );
    assert_eq!(told([0, 0, 1], &[]), "has 1 GPU that is sick");
    assert_eq!(
        lack_of("gpu-7", &Shortfall::Unschedulable),
        "closed to new work; `agentaflow uncordon gpu-7` opens it"
    );
    assert!(told([2, 0, 0], &["GPU-a::0", "GPU-a::1"]).contains("uncordon gpu-7/GPU-a` opens it"));
}

#[test]
fn a_node_that_kubectl_closed_is_called_closed() {
    let taint = |taint: &str| lack(&Shortfall::Taint(taint.to_owned()), 2);
    assert_eq!(taint("node.kubernetes.io/unschedulable:NoSchedule"), "2 closed to new work");
    assert_eq!(taint("gpu:NoSchedule"), "2 taint gpu:NoSchedule");
}

#[test]
fn one_node_takes_the_singular() {
    let tally = FitSummary {
        nodes: 2,
        shortfalls: vec![(Shortfall::FreeGpus { need: 4, most: 2 }, 1), (Shortfall::TaskLimit, 1)],
    };
    check(
        &WaitReason::NeverFits(tally),
        "0/2 nodes fit, even when empty: 1 lacks 4 free GPUs (most free 2), 1 runs as many tasks as it may",
    );
}

#[test]
fn a_gang_says_how_much_of_it_fits() {
    let tally =
        FitSummary { nodes: 8, shortfalls: vec![(Shortfall::FreeGpus { need: 8, most: 3 }, 8)] };
    check(
        &WaitReason::Gang { needs: 4, fits: 2, fits_when_empty: true, summary: tally },
        "2 of 4 tasks fit now, and all start together; for one more, 8 lack 8 free GPUs (most free 3)",
    );
    check(
        &WaitReason::Gang {
            needs: 4,
            fits: 2,
            fits_when_empty: false,
            summary: FitSummary::default(),
        },
        "2 of 4 tasks fit now, and all start together, for which there is no place even on empty nodes",
    );
}

#[test]
fn a_quota_is_told_in_its_own_unit() {
    let quota = |resource, [limit, used, kept, asked]: [u64; 4]| WaitReason::Quota {
        queue: "research".into(),
        resource,
        limit,
        used,
        reserved: kept,
        requested: asked,
    };
    check(
        &quota(QuotaResource::Gpu, [8000, 7500, 0, 1000]),
        "queue `research` may use 8 GPUs: 7.5 GPUs in use, 1 GPU asked",
    );
    check(
        &quota(QuotaResource::Gpu, [8000, 5000, 8000, 1000]),
        "queue `research` may use 8 GPUs: 5 GPUs in use, 8 GPUs kept for work whose turn it is, 1 GPU asked",
    );
    check(
        &quota(QuotaResource::Memory, [1024, 1000, 0, 64]),
        "queue `research` may use 1024 MiB of memory: 1000 MiB of memory in use, 64 MiB of memory asked",
    );
}

#[test]
fn times_to_come_are_told_from_now() {
    let held = WaitReason::Reserved { workload: "train-7".into(), until: Some(Time(7_500_000)) };
    check(
        &held,
        "there is room, but it is kept for `train-7`, whose turn it is and which should start in 2 h 5 min",
    );
    check(
        &WaitReason::BackingOff { until: Time(8000), refusals: 1 },
        "1 placement refused; tried again in 8 s",
    );
    let victims = ["a", "b", "c", "d", "e"].map(WorkloadId::from).to_vec();
    check(
        &WaitReason::Preempting { victims, until: Time(300_000) },
        "waiting for the end of `a`, `b`, `c` and 2 more, which makes room; planned again in 5 min at the latest",
    );
}

#[test]
fn an_explanation_says_why_when_and_what_else() {
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
    let lines = explanation(&explained, Time(0));
    assert_eq!(
        lines,
        [
            "there are no nodes",
            "place 2 of 5 in the queue; start not known",
            "would start now with 2 GPUs, or with 0.25 of one GPU",
        ]
    );
}

#[test]
fn a_length_of_time_has_two_units_at_most() {
    let spans = [(1, "1 s"), (60_000, "1 min"), (61_000, "1 min 1 s"), (90_061_000, "1 d 1 h")];
    for (milliseconds, text) in spans {
        assert_eq!(span(Span(milliseconds)), text);
    }
}

#[test]
fn amounts_of_memory_are_told_as_people_read_them() {
    let told = |need, most| lack(&Shortfall::Memory { need: MiB(need), most: MiB(most) }, 1);
    assert_eq!(told(1_048_576, 24_105), "1 lacks 1 TiB of memory (most free 23.5 GiB)");
    assert_eq!(told(1024, 512), "1 lacks 1 GiB of memory (most free 512 MiB)");
    assert_eq!(told(24_106, 24_105), "1 lacks 24106 MiB of memory (most free 24105 MiB)");
    let proposed = |mib| nearby(&Alternative::GpuMemory(MiB(mib)));
    assert_eq!(proposed(20_480), "with 20 GiB of GPU memory");
    assert_eq!(proposed(24_140), "with 23.5 GiB of GPU memory", "more does not fit");
    assert_eq!(proposed(900), "with 900 MiB of GPU memory");
}
