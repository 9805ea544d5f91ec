use super::*;
use agentaflow_api::ids::JobId;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn key(job: i64) -> TaskKey {
    TaskKey { job: JobId(job), epoch: 1, incarnation: 0, task: 0 }
}

fn task(job: i64, pids: &[u32], groups: &[&str]) -> TaskMarks {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    TaskMarks { key: key(job), pids: pids.iter().copied().collect(), groups }
}

fn process(pid: u32, ancestors: &[u32], group: &str) -> ProcessOrigin {
    ProcessOrigin {
        pid,
        started: 5,
        ancestors: ancestors.to_vec(),
        cgroups: vec![group.to_owned()],
    }
}

#[test]
fn the_owner_is_found_by_pid_cgroup_or_nearest_ancestor() {
    let tasks =
        [task(1, &[100], &["/agentaflow/a/1-1-0-00000000"]), task(2, &[200, 201], &["/docker/x"])];
    for (process, expected) in [
        (process(100, &[], "/"), Some(1)),
        (process(201, &[100], "/"), Some(2)),
        (process(7, &[6, 5], "/agentaflow/a/1-1-0-00000000"), Some(1)),
        (process(7, &[6, 5], "/docker/x/deeper"), Some(2)),
        (process(7, &[6, 200, 100], "/"), Some(2)),
        (process(7, &[6, 5], "/docker/xy"), None),
        (process(7, &[6, 5], "/agentaflow/a/1-1-0-000000001"), None),
        (process(7, &[], "/user.slice"), None),
    ] {
        assert_eq!(owner(&process, &tasks), expected.map(key), "{process:?}");
    }
}

#[test]
fn a_pid_that_two_tasks_claim_decides_nothing_and_the_cgroup_comes_first() {
    let tasks = [task(1, &[7], &[]), task(2, &[7], &[]), task(3, &[8], &["/docker/x"])];
    for (process, expected) in [
        (process(7, &[], "/"), None),
        (process(7, &[8], "/"), Some(3)),
        (process(7, &[], "/docker/x"), Some(3)),
    ] {
        assert_eq!(owner(&process, &tasks), expected.map(key), "{process:?}");
    }
}

#[test]
fn a_mark_is_the_cgroup_prefix_of_one_task() {
    for (path, expected) in [
        ("/agentaflow/a/17-1-0-00000000", Some("/agentaflow/a/17-1-0-00000000".to_owned())),
        (
            "/x/agentaflow/a/17-1-0-00000000/inner",
            Some("/x/agentaflow/a/17-1-0-00000000".to_owned()),
        ),
        ("/agentaflow/a/18-1-0-00000000", None),
        ("/17-1-0-00000000", None),
        ("/user.slice/session-1.scope", None),
        (&format!("/docker/{ID}/init"), Some(format!("/docker/{ID}"))),
        (
            &format!("/system.slice/docker-{ID}.scope"),
            Some(format!("/system.slice/docker-{ID}.scope")),
        ),
        (&format!("/docker/{}", &ID[..60]), None),
        ("", None),
    ] {
        assert_eq!(mark(path, key(17)), expected, "{path}");
    }
}

#[test]
fn a_cgroup_shared_with_the_agent_or_another_task_identifies_no_task() {
    let tasks = vec![task(1, &[], &["/docker/a", "/b"]), task(2, &[], &["/b", "/c"])];
    let left = distinct(tasks, &["/docker/a/agent".to_owned()]);
    assert_eq!(left, [task(1, &[], &[]), task(2, &[], &["/c"])]);
}

#[test]
fn a_detached_process_keeps_its_owner() {
    let (mut owners, now) = (Owners::default(), Instant::now());
    let tasks = [task(1, &[100], &[])];
    assert_eq!(owners.owner(&process(7, &[100], "/"), &tasks, now), Owner::Task(key(1)));
    assert_eq!(owners.owner(&process(7, &[], "/"), &tasks, now), Owner::Task(key(1)));
    let another = ProcessOrigin { started: 6, ..process(7, &[], "/") };
    assert_eq!(owners.owner(&another, &tasks, now), Owner::Foreign);
}

#[test]
fn a_process_of_an_ended_task_becomes_foreign_after_a_delay() {
    let (mut owners, now) = (Owners::default(), Instant::now());
    owners.owner(&process(7, &[], "/"), &[task(1, &[7], &[])], now);
    let gone = ProcessOrigin { pid: 7, ..ProcessOrigin::default() };
    assert_eq!(owners.owner(&gone, &[], now), Owner::Leaving);
    assert_eq!(owners.owner(&process(7, &[], "/"), &[], now), Owner::Leaving);
    owners.forget_old(now + LEAVING);
    assert_eq!(owners.owner(&process(7, &[], "/"), &[], now + LEAVING), Owner::Foreign);
}
