use agentaflow_api::ids::JobId;
use agentaflow_api::link::GpuGrant;
use agentaflow_gpu::MigDevice;

use super::*;

fn key(job: i64) -> TaskKey {
    TaskKey { job: JobId(job), epoch: 1, incarnation: 0, task: 0 }
}

fn task(job: i64, uuid: &str, memory: u64, shared: bool) -> TaskLoad {
    let grant = GpuGrant { index: 0, uuid: uuid.to_owned(), milli: 100, memory, shared };
    TaskLoad { key: key(job), grants: vec![grant], pids: vec![] }
}

fn process(uuid: &str, memory: u64, owner: Owner) -> (DeviceProcess, Owner) {
    (DeviceProcess { uuid: uuid.to_owned(), pid: 1, memory }, owner)
}

fn gpu(uuid: &str, slices: Option<&[&str]>) -> Device {
    let slice = |uuid: &&str| MigDevice { uuid: (*uuid).to_owned(), ..MigDevice::default() };
    let mig = slices.map(|slices| slices.iter().map(slice).collect());
    Device { uuid: uuid.to_owned(), memory: 80_000, mig, ..Device::default() }
}

fn an_over(job: i64) -> OverShare {
    OverShare { key: key(job), uuid: "GPU-a".into(), used: 2, share: 1 }
}

#[test]
fn a_task_is_over_its_share_only_beyond_the_tolerance() {
    for (share, used, expected) in [
        (1_000, 1_000, false),
        (1_000, 2_024, false),
        (1_000, 2_025, true),
        (40_000, 42_000, false),
        (40_000, 42_001, true),
        (0, 1_024, false),
        (0, 1_025, true),
    ] {
        let tasks = [task(1, "GPU-a", share, true)];
        let held = held(&[process("GPU-a", used, Owner::Task(key(1)))]);
        let over = over(&held, &tasks, &BTreeMap::new());
        assert_eq!(!over.is_empty(), expected, "{share} {used}");
    }
}

#[test]
fn a_task_without_gpus_is_over_its_share_with_any_memory() {
    let tasks = [TaskLoad { key: key(1), grants: Vec::new(), pids: vec![1] }];
    let held = held(&[process("GPU-a", 1, Owner::Task(key(1)))]);
    let expected = OverShare { key: key(1), uuid: "GPU-a".into(), used: 1, share: 0 };
    assert_eq!(over(&held, &tasks, &BTreeMap::new()), [expected]);
}

#[test]
fn only_the_task_over_its_share_is_reported() {
    let tasks = [task(1, "GPU-a", 8_000, true), task(2, "GPU-a", 8_000, true)];
    let processes = [
        process("GPU-a", 5_000, Owner::Task(key(1))),
        process("GPU-a", 5_000, Owner::Task(key(1))),
        process("GPU-a", 8_000, Owner::Task(key(2))),
        process("GPU-a", 60_000, Owner::Foreign),
    ];
    let over = over(&held(&processes), &tasks, &BTreeMap::new());
    let expected = OverShare { key: key(1), uuid: "GPU-a".into(), used: 10_000, share: 8_000 };
    assert_eq!(over, [expected]);
}

#[test]
fn the_share_of_an_unassigned_gpu_is_zero() {
    let tasks = [task(1, "GPU-a", 8_000, false)];
    let held = held(&[process("GPU-b", 4_000, Owner::Task(key(1)))]);
    let over = over(&held, &tasks, &BTreeMap::new());
    assert_eq!((over.len(), over[0].share), (1, 0));
}

#[test]
fn whole_devices_and_mig_slices_have_no_limit() {
    let parents = parents(&[gpu("GPU-a", Some(&["MIG-1"])), gpu("GPU-b", None)]);
    for (granted, shared, used_on) in
        [("GPU-b", false, "GPU-b"), ("MIG-1", true, "MIG-1"), ("MIG-1", true, "GPU-a")]
    {
        let tasks = [task(1, granted, 100, shared)];
        let held = held(&[process(used_on, 70_000, Owner::Task(key(1)))]);
        assert_eq!(over(&held, &tasks, &parents), [], "{granted} {used_on}");
    }
}

#[test]
fn an_excess_counts_only_without_interruption() {
    let begin = Instant::now();
    let at = |ms: u64| begin + Duration::from_millis(ms);
    let mut counter = OverCounter::default();
    assert!(counter.observe(vec![an_over(1)], at(0)).is_empty());
    assert!(counter.observe(vec![an_over(1)], at(4_900)).is_empty());
    assert!(counter.observe(vec![], at(5_000)).is_empty());
    assert!(counter.observe(vec![an_over(1), an_over(2)], at(6_000)).is_empty());
    assert_eq!(counter.observe(vec![an_over(2)], at(11_000)), [an_over(2)]);
    assert_eq!(counter.observe(vec![an_over(1), an_over(2)], at(12_000)), [an_over(2)]);
}

#[test]
fn memory_without_a_known_owner_is_foreign() {
    use Owner::{Foreign, Leaving, Task};
    let ours = process("GPU-a", 6_000, Task(key(1)));
    let shared = || vec![task(1, "GPU-a", 8_000, true)];
    let whole = || vec![task(1, "GPU-a", 8_000, false)];
    let theirs = process("GPU-a", 900, Foreign);
    for (used, processes, tasks, expected) in [
        (0, vec![], vec![], 0),
        (500, vec![], vec![], 0),
        (10_512, vec![], vec![], 10_000),
        (6_300, vec![ours.clone()], shared(), 0),
        (7_200, vec![ours.clone(), theirs.clone()], shared(), 900),
        (900, vec![theirs], vec![], 900),
        (900, vec![process("GPU-a", 900, Leaving)], vec![], 0),
        // Unattributed memory within the task's grant is not foreign.
        (8_000, vec![], shared(), 0),
        (20_512, vec![], shared(), 12_000),
        (79_000, vec![process("GPU-a", 0, Task(key(1)))], whole(), 0),
    ] {
        let sample = Sample { memory_used: Some(used), ..Sample::default() };
        let samples = BTreeMap::from([("GPU-a".to_owned(), sample)]);
        let found = foreign(&[gpu("GPU-a", None)], &samples, &processes, &tasks);
        assert_eq!(found["GPU-a"], expected, "{used} {processes:?}");
    }
}

#[test]
fn foreign_memory_of_a_mig_slice_counts_on_its_gpu() {
    let devices = [gpu("GPU-a", Some(&["MIG-1"]))];
    let processes = [process("MIG-1", 700, Owner::Foreign)];
    assert_eq!(foreign(&devices, &BTreeMap::new(), &processes, &[])["GPU-a"], 700);
}
