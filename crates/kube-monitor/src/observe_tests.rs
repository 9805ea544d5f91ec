use super::*;
use crate::observation::{Allocation, NodeFacts, PodDevices, PodName, Unschedulable};

const MINUTE: i64 = 60;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn gpu(index: u32) -> (Device, Sample) {
    let uuid = format!("GPU-{index}");
    let device = Device {
        index,
        uuid: uuid.clone(),
        name: "NVIDIA A100".into(),
        memory: 40_960,
        pci_bus_id: Some(format!("0000:0{index}:00.0")),
        ..Device::default()
    };
    let sample = Sample {
        uuid,
        utilization: Some(10),
        memory_used: Some(1_000),
        temperature: Some(40),
        power: Some(99.6),
        ecc_errors: Some(0),
        ..Sample::default()
    };
    (device, sample)
}

fn seen(devices: Vec<(Device, Sample)>) -> Observation {
    Observation {
        node: NodeFacts { name: "n1".into(), replicas: 1, ..NodeFacts::default() },
        gpus: Ok(Gpus { driver: "580.1".into(), devices }),
        holders: PodDevices::default(),
        goal: 80,
        boot: "boot-1".into(),
    }
}

fn with(mut gpu: (Device, Sample), change: impl FnOnce(&mut Sample)) -> (Device, Sample) {
    change(&mut gpu.1);
    gpu
}

/// Last report of a sequence of observations, 15 seconds apart.
fn after(turns: &[Observation]) -> Report {
    let mut report = Report::default();
    for (turn, seen) in (0..).zip(turns) {
        report = observe(&report.memory, seen, at(turn * 15));
    }
    report
}

fn reasons(report: &Report) -> Vec<&'static str> {
    report.events.iter().map(|event| event.reason).collect()
}

fn condition<'a>(report: &'a Report, kind: &str) -> &'a Condition {
    report.status.conditions.iter().find(|condition| condition.type_ == kind).unwrap()
}

#[test]
fn a_healthy_node_is_published_as_documented() {
    let report = after(&[seen(vec![gpu(0), gpu(1)])]);
    assert_eq!(report.spec.node_name, "n1");
    let device = &report.spec.gpu_devices[1];
    assert_eq!((&*device.id, &*device.name, device.memory_total), ("GPU-1", "NVIDIA A100", 40_960));
    assert_eq!((&*device.pci_bus_id, &*device.driver_version), ("0000:01:00.0", "580.1"));
    let status = &report.status.gpu_status[0];
    assert!(status.available && status.reason.is_none());
    assert_eq!((status.memory_used, status.power_usage), (1_000, 100.0));
    assert_eq!(report.status.phase, Some(GpuNodePhase::Active));
    assert_eq!(report.status.last_updated, Some(Time(at(0))));
    let labels: Vec<(&str, &str)> =
        report.labels.iter().map(|(key, value)| (*key, &**value)).collect();
    assert_eq!(
        labels,
        [
            ("agentaflow.gpu/count", "2"),
            ("agentaflow.gpu/enabled", "true"),
            ("agentaflow.gpu/schedulable", "true"),
            ("agentaflow.gpu/utilization-tier", "low"),
        ]
    );
    let devices: serde_json::Value =
        serde_json::from_str(&report.annotations[names::NODE_DEVICES]).unwrap();
    assert_eq!(devices[1]["pciBusID"], "0000:01:00.0");
    let line: serde_json::Value =
        serde_json::from_str(&report.annotations[names::NODE_STATUS]).unwrap();
    assert_eq!(
        (&line["available"], &line["utilizationGoal"], &line["aboveGoal"]),
        (&2.into(), &80.into(), &false.into())
    );
    assert_eq!(report.annotations[names::NODE_LAST_UPDATE], "2027-01-15T08:00:00Z");
    assert!(report.events.is_empty());
    for kind in ["Ready", "Healthy", "Schedulable"] {
        assert_eq!(condition(&report, kind).status, "True", "{kind}");
    }
}

/// The admission policy denies the monitor every other label and annotation.
#[test]
fn the_policy_of_the_monitor_permits_the_fields_that_it_writes() {
    let file =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes/23-monitor-policy.yaml");
    let policy = std::fs::read_to_string(file).unwrap();
    let report = after(&[seen(vec![gpu(0)])]);
    let written = report.labels.keys().chain(report.annotations.keys());
    for name in written.chain([&names::POD_DEVICES]) {
        assert!(policy.contains(&format!("'{name}'")), "no `{name}` in the policy");
    }
}

#[test]
fn the_tier_follows_the_mean_exactly() {
    for (percents, expected) in [
        (vec![0, 0], "low"),
        (vec![24, 25], "low"),
        (vec![25, 25], "medium"),
        (vec![74, 75], "medium"),
        (vec![75, 75], "high"),
        (vec![100, 50], "high"),
    ] {
        let busy =
            |(index, percent): (u32, &u32)| with(gpu(index), |s| s.utilization = Some(*percent));
        let report = after(&[seen((0..).zip(&percents).map(busy).collect())]);
        assert_eq!(report.labels[names::NODE_TIER], expected, "{percents:?}");
    }
}

#[test]
fn a_node_above_its_goal_says_so() {
    let busy = |percent| seen(vec![with(gpu(0), |sample| sample.utilization = Some(percent))]);
    assert!(!after(&[busy(80)]).line.above_goal);
    assert!(after(&[busy(81)]).line.above_goal);
}

#[test]
fn an_unhealthy_gpu_is_taken_out_and_comes_back_when_healthy() {
    let hot = || seen(vec![with(gpu(0), |sample| sample.temperature = Some(96)), gpu(1)]);
    let cool = || seen(vec![gpu(0), gpu(1)]);
    let report = after(&[cool(), hot()]);
    assert_eq!(reasons(&report), ["GPUOverheated"]);
    assert!(!report.status.gpu_status[0].available && report.status.gpu_status[1].available);
    assert_eq!(report.labels[names::NODE_SCHEDULABLE], "true");
    assert_eq!(condition(&report, "Healthy").reason, "GPUUnhealthy");
    let report = after(&[cool(), hot(), cool(), cool()]);
    assert!(report.events.is_empty() && !report.status.gpu_status[0].available);
    let report = after(&[cool(), hot(), cool(), cool(), cool()]);
    assert_eq!(reasons(&report), ["GPURecovered"]);
    assert!(report.status.gpu_status[0].available);
}

#[test]
fn each_class_of_xid_takes_out_nothing_a_gpu_or_the_machine() {
    for (xid, available, event) in [
        (63, [true, true], None),
        (94, [true, true], Some("GPUApplicationError")),
        (109, [false, true], Some("GPUXidError")),
        (54, [false, true], Some("GPUXidError")),
        (79, [false, false], Some("GPUXidError")),
    ] {
        let sick = || seen(vec![with(gpu(0), |sample| sample.xids = vec![xid]), gpu(1)]);
        let report = after(&[seen(vec![gpu(0), gpu(1)]), sick()]);
        assert_eq!(reasons(&report), event.into_iter().collect::<Vec<_>>(), "XID {xid}");
        let report = after(&[sick(), seen(vec![gpu(0), gpu(1)])]);
        let found: Vec<bool> =
            report.status.gpu_status.iter().map(|status| status.available).collect();
        assert_eq!(found, available, "XID {xid}");
        let schedulable = report.labels[names::NODE_SCHEDULABLE] == "true";
        assert_eq!(schedulable, available.contains(&true), "XID {xid}");
        let named = report.status.gpu_status[1].reason.as_ref();
        assert_eq!(
            named.is_some_and(|reason| reason.contains("GPU-0")),
            !available[1],
            "{named:?}"
        );
    }
}

#[test]
fn after_a_restart_of_the_machine_all_its_gpus_are_available() {
    let sick = seen(vec![with(gpu(0), |sample| sample.xids = vec![79]), gpu(1)]);
    let lost = after(&[sick]);
    assert_eq!(lost.status.phase, Some(GpuNodePhase::Unavailable));
    let restarted = Observation { boot: "boot-2".into(), ..seen(vec![gpu(0), gpu(1)]) };
    let report = observe(&lost.memory, &restarted, at(MINUTE));
    assert!(report.status.gpu_status.iter().all(|status| status.available));
    assert_eq!(report.status.phase, Some(GpuNodePhase::Active));
}

#[test]
fn a_node_with_only_unhealthy_gpus_takes_no_work() {
    let report = after(&[seen(vec![with(gpu(0), |sample| sample.ecc_errors = Some(1))])]);
    assert_eq!(reasons(&report), ["GPUEccError"]);
    assert_eq!(report.status.phase, Some(GpuNodePhase::Unavailable));
    assert_eq!(report.labels[names::NODE_SCHEDULABLE], "false");
    assert_eq!(condition(&report, "Schedulable").reason, "NoHealthyGPU");
}

#[test]
fn a_lost_gpu_stays_in_the_list_until_the_machine_was_restarted() {
    let lost = after(&[seen(vec![gpu(0), gpu(1)]), seen(vec![gpu(1)])]);
    assert_eq!(reasons(&lost), ["GPULost"]);
    assert_eq!(lost.spec.gpu_devices.len(), 2);
    assert!(!lost.status.gpu_status[0].available);
    assert_eq!(lost.labels[names::NODE_COUNT], "2");
    let restarted = Observation { boot: "boot-2".into(), ..seen(vec![gpu(1)]) };
    let report = observe(&lost.memory, &restarted, at(MINUTE));
    assert_eq!(reasons(&report), ["GPURemoved"]);
    assert_eq!(report.spec.gpu_devices.len(), 1);
}

#[test]
fn a_lost_gpu_does_not_make_other_gpus_look_idle() {
    let busy = |index| with(gpu(index), |sample| sample.utilization = Some(80));
    let report = after(&[seen(vec![busy(0), busy(1)]), seen(vec![busy(0)])]);
    assert_eq!(report.labels[names::NODE_TIER], "high");
}

#[test]
fn a_gpu_that_cannot_tell_its_name_is_the_one_that_is_missed() {
    let nameless = || {
        let (device, _) = gpu(1);
        let uuid = "GPU-unreadable-1".to_owned();
        let sample = Sample { uuid: uuid.clone(), fault: Some("lost".into()), ..Sample::default() };
        (Device { uuid, memory: 0, ..device }, sample)
    };
    let ids = |report: &Report| -> Vec<String> {
        report.spec.gpu_devices.iter().map(|device| device.id.clone()).collect()
    };
    let both = || seen(vec![gpu(0), gpu(1)]);
    let half = || seen(vec![gpu(0), nameless()]);
    assert_eq!(ids(&after(&[both(), half(), half()])), ["GPU-0", "GPU-1"]);
    assert_eq!(ids(&after(&[half()])), ["GPU-0", "GPU-unreadable-1"]);
    assert_eq!(ids(&after(&[half(), both()])), ["GPU-0", "GPU-1"]);
}

#[test]
fn a_driver_that_fails_makes_the_node_unavailable_and_never_empty() {
    let broken = || Observation { gpus: Err("version mismatch".into()), ..seen(vec![]) };
    let report = after(&[seen(vec![gpu(0), gpu(1)]), broken()]);
    assert_eq!(reasons(&report), ["GPUDriverFailed"]);
    assert_eq!(report.spec.gpu_devices.len(), 2);
    assert_eq!(report.status.phase, Some(GpuNodePhase::Unavailable));
    assert!(report.status.gpu_status.iter().all(|status| !status.available));
    assert_eq!(report.line.message.as_deref(), Some("version mismatch"));
    assert_eq!(condition(&report, "Ready").message, "version mismatch");
    let again = after(&[seen(vec![gpu(0), gpu(1)]), broken(), broken()]);
    assert!(again.events.is_empty());
    let well = || seen(vec![gpu(0), gpu(1)]);
    let back = after(&[well(), broken(), well()]);
    assert_eq!(reasons(&back), ["GPUDriverRecovered"]);
    let back = after(&[well(), broken(), well(), well(), well()]);
    assert_eq!(back.status.phase, Some(GpuNodePhase::Active));
    assert!(back.events.is_empty());
}

#[test]
fn maintenance_closes_the_node_and_its_end_forgives_old_errors() {
    let closed = |closed| {
        let node = NodeFacts { name: "n1".into(), replicas: 1, closed, ..NodeFacts::default() };
        Observation { node, ..seen(vec![gpu(0)]) }
    };
    let unhealthy = || seen(vec![with(gpu(0), |sample| sample.xids = vec![79])]);
    for (why, reason) in
        [(Unschedulable::Maintenance, "Maintenance"), (Unschedulable::Cordoned, "Cordoned")]
    {
        let report = after(&[unhealthy(), closed(Some(why))]);
        assert_eq!(report.status.phase, Some(GpuNodePhase::Maintenance));
        assert_eq!(report.labels[names::NODE_SCHEDULABLE], "false");
        assert_eq!(condition(&report, "Schedulable").reason, reason);
        assert!(!report.status.gpu_status[0].available);
    }
    let report = after(&[unhealthy(), closed(Some(Unschedulable::Maintenance)), closed(None)]);
    assert_eq!(reasons(&report), ["GPURecovered"]);
    assert_eq!(report.status.phase, Some(GpuNodePhase::Active));
}

#[test]
fn the_time_of_a_condition_is_when_it_changed() {
    let hot = || seen(vec![with(gpu(0), |sample| sample.temperature = Some(99))]);
    let report = after(&[seen(vec![gpu(0)]), hot(), hot()]);
    assert_eq!(condition(&report, "Ready").last_transition_time, Time(at(0)));
    assert_eq!(condition(&report, "Healthy").last_transition_time, Time(at(15)));
}

#[test]
fn the_pods_of_a_device_are_named() {
    let pod = |name: &str| PodName { namespace: "ml".into(), name: name.into() };
    let given = |name: &str, id: &str| Allocation { pod: pod(name), ids: vec![id.into()] };
    let allocations = [given("a", "GPU-0::0"), given("b", "GPU-0::1")];
    let devices: Vec<Device> = vec![gpu(0).0, gpu(1).0];
    let holders = PodDevices::of(&allocations, &devices, 2);
    let report = after(&[Observation { holders, ..seen(vec![gpu(0), gpu(1)]) }]);
    assert_eq!(report.status.gpu_status[0].current_workload.as_deref(), Some("ml/a,ml/b"));
    assert_eq!(report.status.gpu_status[1].current_workload, None);
}

#[test]
fn a_restarted_monitor_remembers_unhealthy_and_lost_gpus() {
    let unhealthy = seen(vec![with(gpu(0), |sample| sample.xids = vec![109]), gpu(1), gpu(2)]);
    let before = after(&[unhealthy, seen(vec![gpu(0), gpu(1)])]);
    let mut published = GpuNode::new("n1", before.spec.clone());
    published.status = Some(before.status.clone());
    let memory = restore(Some(&published), Some(&before.annotations[names::NODE_STATUS]));
    let report = observe(&memory, &seen(vec![gpu(0), gpu(1)]), at(MINUTE));
    let available: Vec<bool> =
        report.status.gpu_status.iter().map(|status| status.available).collect();
    assert_eq!(available, [false, true, false]);
    assert!(report.events.is_empty(), "{:?}", report.events);
    assert_eq!(condition(&report, "Ready").last_transition_time, Time(at(0)));
    let rebooted = Observation { boot: "boot-2".into(), ..seen(vec![gpu(0), gpu(1)]) };
    assert_eq!(reasons(&observe(&memory, &rebooted, at(MINUTE))), ["GPURecovered", "GPURemoved"]);
}

#[test]
fn invalid_published_values_are_not_remembered() {
    let published = GpuNode::new("n1", GpuNodeSpec::default());
    for line in [None, Some(""), Some("[]"), Some("{\"devices\": 7}"), Some("{\"phase\":\"Odd\"}")]
    {
        assert_eq!(restore(Some(&published), line), MonitorState::default(), "{line:?}");
    }
    assert_eq!(restore(None, None), MonitorState::default());
}

#[test]
fn a_driver_without_end_is_cut_short() {
    let report = after(&[Observation { gpus: Err("ä".repeat(5_000)), ..seen(vec![]) }]);
    assert!(report.events[0].note.chars().count() < 700);
    assert!(report.annotations[names::NODE_STATUS].len() < 4_000);
}
