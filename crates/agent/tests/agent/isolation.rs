//! Isolation of process jobs.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use agentaflow_api::ids::UserId;
use agentaflow_api::link::StopCause;

use crate::skip::skip;
use crate::{TestBed, shell};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_different_users_have_different_uids_and_cannot_reach_each_other() {
    if !is_root() {
        skip!("needs root: only an agent that runs as root changes users");
    }
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let script = "echo \"uid $(id -u) pid $$ tmp $TMPDIR\"; touch $TMPDIR/mine; sleep 60";
    let mut first = shell(1, script);
    first.user_id = Some(UserId(1));
    let first = bed.assign(first);
    let line = bed
        .server
        .until("the first job", |_| Some(bed.server_log(first)).filter(|log| log.contains("tmp /")))
        .await;
    let word = |at: usize| line.split_whitespace().nth(at).unwrap().to_owned();
    let (uid, pid, tmp) = (word(1), word(3), word(5));
    let spy = |job: i64, user: i64| {
        let mut spy = shell(
            job,
            &format!(
                "echo uid $(id -u); cat /proc/{pid}/environ >/dev/null && echo read; \
                 kill -0 {pid} && echo signalled; ls {tmp} && echo listed; exit 0"
            ),
        );
        spy.user_id = Some(UserId(user));
        bed.assign(spy)
    };
    let other = spy(2, 2);
    bed.server.ended(other).await;
    let log = bed.server.log(other);
    assert!(!log.contains(&format!("uid {uid}\n")), "{log}");
    for success in ["read\n", "signalled\n", "listed\n"] {
        assert!(!log.contains(success), "{log}");
    }
    // The same commands work for jobs of the same user.
    let own = spy(3, 1);
    bed.server.ended(own).await;
    let log = bed.server.log(own);
    for success in [format!("uid {uid}\n").as_str(), "read\n", "signalled\n", "listed\n"] {
        assert!(log.contains(success), "{log}");
    }
    let stop = agentaflow_api::link::Stop { key: first, cause: StopCause::Cancelled, grace_ms: 0 };
    bed.server.send(agentaflow_api::link::Message::Stop(stop));
    bed.server.ended(first).await;
    bed.server.until("a clean folder", |_| bed.folder_is_gone(first).then_some(())).await;
    assert!(!std::path::Path::new(&tmp).exists());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_job_has_limits_on_open_files_and_processes() {
    if !is_root() {
        skip!("needs root: only an agent that runs as root changes users");
    }
    let bed = TestBed::new().await;
    let mut settings = bed.open_settings();
    settings.open_files_limit = 77;
    settings.pids_limit = 12;
    let agent = TestBed::agent_with(settings);
    let script = "ulimit -n; for i in $(seq 1 40); do sleep 3 & done; wait; echo unreachable";
    let key = bed.assign(shell(1, script));
    bed.server.ended(key).await;
    let log = bed.server.log(key);
    assert!(log.starts_with("77\n"), "{log}");
    assert!(log.to_lowercase().contains("fork"), "{log}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_job_above_its_disk_limit_is_stopped() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let mut over = shell(1, "head -c 3000000 /dev/zero > $TMPDIR/file; sleep 60");
    over.storage = 1;
    let mut under = shell(2, "head -c 3000000 /dev/zero > file; sleep 6");
    under.storage = 10;
    let (over, under) = (bed.assign(over), bed.assign(under));
    let ended = bed.server.ended(over).await;
    assert_eq!(ended.stopped, Some(StopCause::StorageExceeded));
    let ended = bed.server.ended(under).await;
    assert_eq!((ended.stopped, ended.exit_code), (None, Some(0)));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn temporary_files_of_a_job_are_its_own_and_end_with_it() {
    if !is_root() {
        skip!("needs root: only an agent that runs as root separates temporary files");
    }
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let node = bed.server.until("the node", |memory| memory.node.clone()).await;
    assert_eq!(node.node_metadata.get("private_tmp"), Some(&serde_json::json!(true)));
    let name = format!("agentaflow-test-{}", std::process::id());
    let folders = ["/tmp", "/var/tmp", "/dev/shm"];
    let files = folders.map(|folder| format!("{folder}/{name}"));
    let script = format!(
        "for file in {}; do echo x > $file || exit 1; done; echo ready; sleep 60",
        files.join(" ")
    );
    let first = bed.assign(shell(1, &script));
    bed.server.until("its files", |_| bed.server_log(first).contains("ready").then_some(())).await;
    // The same user in another job.
    let second = bed.assign(shell(
        2,
        &format!("ls {}; echo $?; touch $AGENTAFLOW_OUTPUT $TMPDIR/x; echo $?", files.join(" ")),
    ));
    bed.server.ended(second).await;
    let log = bed.server.log(second);
    assert!(log.ends_with("\n2\n0\n"), "{log}");
    let own = bed.dir.path().join("agent/tasks").join(first.to_string()).join("tmp").join(&name);
    assert!(own.exists(), "{}", own.display());
    let stop = agentaflow_api::link::Stop { key: first, cause: StopCause::Cancelled, grace_ms: 0 };
    bed.server.send(agentaflow_api::link::Message::Stop(stop));
    bed.server.ended(first).await;
    bed.server.until("a clean folder", |_| bed.folder_is_gone(first).then_some(())).await;
    for file in &files {
        assert!(!std::path::Path::new(file).exists(), "{file}");
    }
    assert!(!own.exists());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_in_tmp_count_into_the_disk_limit_of_a_job() {
    if !is_root() {
        skip!("needs root: only an agent that runs as root separates temporary files");
    }
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let mut over = shell(1, "head -c 3000000 /dev/zero > /var/tmp/file; sleep 60");
    over.storage = 1;
    let over = bed.assign(over);
    let ended = bed.server.ended(over).await;
    assert_eq!(ended.stopped, Some(StopCause::StorageExceeded));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_working_directory_below_tmp_is_that_of_the_host() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let folder = tempfile::Builder::new().prefix("agentaflow-").tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::write(folder.path().join("input"), "data of the host\n").unwrap();
    let mut job = shell(1, "cat input; pwd; echo result > output");
    job.working_dir = Some(folder.path().display().to_string());
    let key = bed.assign(job);
    let ended = bed.server.ended(key).await;
    let log = bed.server.log(key);
    assert_eq!(log, format!("data of the host\n{}\n", folder.path().display()), "{ended:?}");
    assert_eq!(std::fs::read_to_string(folder.path().join("output")).unwrap(), "result\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_registration_reports_the_control_of_device_files() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let node = bed.server.until("the node", |memory| memory.node.clone()).await;
    let control = node.node_metadata.get("device_control").and_then(|value| value.as_str());
    let known = ["cgroup_v1", "cgroup_v2", "monitoring"];
    assert!(control.is_some_and(|control| known.contains(&control)), "{control:?}");
    agent.stop().await;
}

/// The agent process of these tests has inherited descriptor 9, and its guardian inherits it too.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_inherits_no_descriptor_of_agent_and_guardian() {
    let bed = TestBed::new().await;
    let mut agent = bed.agent_process();
    // `ls` lists the descriptors of the shell.
    let key = bed.assign(shell(1, "ls /proc/$$/fd; true"));
    bed.server.ended(key).await;
    let guardian = bed.guardians()[0];
    let file = std::fs::read_link(format!("/proc/{guardian}/fd/9"));
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert_eq!(bed.server.log(key), "0\n1\n2\n");
    assert_eq!(file.unwrap(), std::path::Path::new("/etc/passwd"));
}

/// Agent and guardian killed together: nothing restarts the guardian.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_dies_with_its_agent_and_guardian() {
    let bed = TestBed::new().await;
    let mut agent = bed.agent_process();
    let script = "echo $$; sleep 300 & echo $!; setsid env -i /bin/sh -c 'echo $$; exec sleep 300' & \
                  setsid sh -c 'echo $$; exec sleep 300' & sleep 300";
    let key = bed.assign(shell(1, script));
    let pids = bed
        .server
        .until("its processes", |_| {
            let log = bed.server_log(key);
            let pids: Vec<u32> = log.lines().filter_map(|line| line.parse().ok()).collect();
            (pids.len() == 4).then_some(pids)
        })
        .await;
    let guardians = bed.guardians();
    assert_eq!(guardians.len(), 1, "{guardians:?}");
    agent.kill().unwrap();
    agent.wait().unwrap();
    TestBed::kill(guardians[0]);
    let alive = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    let began = std::time::Instant::now();
    while pids.iter().any(alive) {
        let left: Vec<&u32> = pids.iter().filter(|pid| alive(pid)).collect();
        assert!(began.elapsed() < Duration::from_secs(10), "{left:?} still run");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // No helper of the guardian is left either.
    while !bed.processes(|_| true).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", bed.processes(|_| true));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
