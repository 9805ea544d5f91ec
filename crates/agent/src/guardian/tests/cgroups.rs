//! cgroups of tasks, on hosts that have them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use agentaflow_api::link::StopCause;

use super::{TestDir, key, run};
use crate::guardian::wire::ProcessSpec;

#[tokio::test]
async fn a_task_over_its_memory_limit_ends_out_of_memory_on_hosts_with_cgroups() {
    let Some(root) = crate::guardian::cgroup::CgroupRoot::find("test-of-limits") else {
        println!("skipped: this host has no usable cgroup v2");
        return;
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
        println!("skipped: this host has no devices controller of cgroup v1");
        return;
    }
    let denied_devices = vec!["c 1:5 rwm".to_owned()];
    run(&agent, ProcessSpec { denied_devices, ..test.spec(2, script) }).await;
    let log = test.output(2);
    assert!(!log.contains("open\n") && log.contains("other\n"), "{log}");
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
        println!("skipped: this host has no usable cgroups");
        return;
    }
    let guardian = fs::read_to_string(format!("/proc/{}/cgroup", test.guardian())).unwrap();
    assert!(!guardian.contains(&own), "{guardian}");
    agent.stop(key(1), StopCause::Cancelled, Duration::ZERO);
    agent.wait(key(1)).await.unwrap();
}
