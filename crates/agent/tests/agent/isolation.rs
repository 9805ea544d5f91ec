//! Isolation of process jobs.

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
