//! cgroups of tasks, on hosts that have them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, waitpid};

use agentaflow_api::link::StopCause;

use super::{TestDir, key, run};
use crate::gpus::device_files;
use crate::guardian::TASKS;
use crate::guardian::cgroup::CgroupRoot;
use crate::guardian::cgroup_v1::V1Root;
use crate::guardian::device_rule::{DeviceControl, DeviceRule};
use crate::guardian::groups::GroupRoots;
use crate::guardian::spawn::spawn;
use crate::guardian::supervisor::Supervisor;
use crate::guardian::wire::{ProcessSpec, Response, StartFault};
use crate::skip::skip;

#[tokio::test]
async fn a_task_over_its_memory_limit_ends_out_of_memory_on_hosts_with_cgroups() {
    let Some(root) = CgroupRoot::find("test-of-limits") else {
        skip!("needs a usable cgroup v2 hierarchy");
    };
    root.remove();
    let test = TestDir::new();
    let agent = test.agent();
    let spec =
        ProcessSpec { memory: 32, ..test.spec(1, "head -c 300000000 /dev/zero | tail | wc -c") };
    let exit = run(&agent, spec).await;
    assert!(exit.out_of_memory, "{exit:?}");
    assert!((16..=32).contains(&exit.memory), "{exit:?}");
    let exit = run(&agent, ProcessSpec { memory: 32, ..test.spec(2, "true") }).await;
    assert!(!exit.out_of_memory && exit.code == Some(0), "{exit:?}");
}

#[tokio::test]
async fn a_task_cannot_open_denied_devices_on_hosts_with_the_devices_controller() {
    let test = TestDir::new();
    let agent = test.agent();
    // Stands for a GPU: `/dev/zero`.
    let script = "head -c 1 /dev/zero > /dev/null && echo open; head -c 1 /dev/null && echo other";
    run(&agent, test.spec(1, script)).await;
    assert_eq!(test.output(1), "open\nother\n");
    if !Path::new("/sys/fs/cgroup/devices").exists() {
        skip!("needs the devices controller of cgroup v1");
    }
    let denied_devices = vec![DeviceRule { major: 1, minor: Some(5) }];
    run(&agent, ProcessSpec { denied_devices, ..test.spec(2, script) }).await;
    let log = test.output(2);
    assert!(!log.contains("open\n") && log.contains("other\n"), "{log}");
}

#[tokio::test]
async fn a_task_cannot_open_denied_devices_on_hosts_with_cgroup_v2() {
    let name = format!("agentaflow-test-{}", std::process::id());
    let Some(root) = CgroupRoot::without_controllers(&name) else {
        skip!("needs a cgroup v2 hierarchy that this user may change");
    };
    let roots = GroupRoots::new(Some(root), V1Root::default());
    if roots.device_control() != DeviceControl::CgroupV2 {
        roots.remove();
        skip!("needs the right to load device filters");
    }
    let test = TestDir::new();
    let denied_devices = vec![DeviceRule { major: 1, minor: Some(5) }];
    let script = "head -c 1 /dev/zero > /dev/null && echo open; head -c 1 /dev/null && echo other";
    let spec = ProcessSpec { denied_devices, ..test.spec(1, script) };
    let groups = roots.create(&spec).unwrap();
    let started = spawn(&spec, &test.task(1), groups.open().unwrap()).unwrap();
    waitpid(Pid::from_raw(started.pid.cast_signed()), WaitOptions::empty()).unwrap();
    started.output.finish();
    let log = test.output(1);
    assert!(!log.contains("open\n") && log.contains("other\n"), "{log}");
    drop(groups);
    roots.remove();
}

/// The task would run without its limits.
#[tokio::test]
async fn a_task_does_not_start_without_a_control_of_the_host() {
    let name = format!("agentaflow-test-gone-{}", std::process::id());
    let unified = CgroupRoot::without_controllers(&name)
        .map(|root| GroupRoots::new(Some(root), V1Root::default()));
    let v1 = V1Root::find(&name);
    let v1 = v1.filters_devices().then(|| GroupRoots::new(None, v1));
    if unified.is_none() && v1.is_none() {
        skip!("needs usable cgroups");
    }
    let test = TestDir::new();
    for roots in unified.into_iter().chain(v1) {
        let mut supervisor = Supervisor::new(test.dir.path().join(TASKS), roots.clone());
        // Tasks get no cgroup below missing parents.
        roots.remove();
        let response = supervisor.start(&test.spec(1, "true"));
        let of_node = matches!(response, Some(Response::Failed { fault: StartFault::Node { .. } }));
        assert!(of_node, "{response:?}");
    }
}

/// With `--nocapture` prints the mechanism: `cgroup_v1` or `cgroup_v2`.
#[tokio::test]
#[ignore = "needs an NVIDIA GPU, root, and the devices controller of cgroup v1 or BPF filters on cgroup v2"]
async fn on_a_real_gpu_a_task_without_gpus_cannot_open_it() {
    let test = TestDir::new();
    let agent = test.agent();
    let script = "for file in /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia[0-9]; do \
                  (: < $file) && echo usable $file; done; true";
    run(&agent, test.spec(1, script)).await;
    assert!(test.output(1).contains("usable /dev/nvidiactl\n"), "{}", test.output(1));
    println!("{}", agent.device_control().unwrap().as_str());
    let denied_devices = device_files::denied(&[]);
    run(&agent, ProcessSpec { denied_devices, ..test.spec(2, script) }).await;
    let log = test.output(2);
    assert!(!log.contains("usable") && log.contains("nvidiactl"), "{log}");
}

/// A guardian in the cgroup of a task would end with the memory limit of that task.
#[tokio::test]
async fn a_task_is_in_its_own_cgroup_and_the_guardian_never_is() {
    let test = TestDir::new();
    let agent = test.agent();
    agent.start(test.spec(1, "cat /proc/self/cgroup; echo $$; sleep 300")).await.unwrap();
    test.pid_written(1, 1).await;
    let own = format!("/{}", key(1));
    if !test.output(1).contains(&own) {
        skip!("needs usable cgroups");
    }
    let guardian = fs::read_to_string(format!("/proc/{}/cgroup", test.guardian())).unwrap();
    assert!(!guardian.contains(&own), "{guardian}");
    agent.stop(key(1), StopCause::Cancelled, Duration::ZERO);
    agent.wait(key(1)).await.unwrap();
}
