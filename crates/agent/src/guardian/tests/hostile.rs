//! Tasks of hostile users. The tests need root, since each user has a uid of its own.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};

use agentaflow_api::link::StopCause;
use agentaflow_api::units::{Secret, Stamp};

use super::{TestDir, is_alive, key, run};
use crate::clock::boot_ms;
use crate::guardian::groups::{GroupRoots, TaskGroups};
use crate::guardian::output::Output;
use crate::guardian::record::{self, StartRecord};
use crate::guardian::running_task::{RunningTask, StartState};
use crate::guardian::wire::ProcessSpec;
use crate::guardian::{MARKER, TASKS, leftovers, procs};
use crate::skip::skip;

const HOSTILE: u32 = 54_399;
const VICTIM: u32 = 54_398;

/// Kills and reaps a process when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Process that sleeps, with the marker of a task.
fn sleeper(uid: u32, marker: &str) -> Killed {
    let child = Command::new("sleep").arg("300").env(MARKER, marker).uid(uid).gid(uid).spawn();
    let child = Killed(child.unwrap());
    // The environment is that of this program until `exec`.
    while procs::variable(child.0.id(), MARKER).as_deref() != Some(marker) {
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

fn of_user(uid: u32, spec: ProcessSpec) -> ProcessSpec {
    // The folder of the test is closed to other users.
    ProcessSpec { user: Some((uid, uid)), working_dir: "/".into(), ..spec }
}

/// A long search for the program gives the hostile user time to stop the process before its program runs.
fn slow_to_start(spec: ProcessSpec) -> ProcessSpec {
    let mut env = spec.env.clone();
    let path = format!("{}/usr/bin:/bin", "/n:".repeat(40_000));
    env.insert("PATH".to_owned(), Secret::from(path.as_str()));
    ProcessSpec { env, ..spec }
}

#[tokio::test]
async fn a_user_that_stops_its_processes_before_their_programs_run_delays_no_other_task() {
    if !geteuid().is_root() {
        skip!("needs root");
    }
    let test = TestDir::new();
    let agent = test.agent();
    agent.renew(boot_ms() + 5000);
    let script = "trap '' TERM; echo $$; while :; do kill -STOP -1; done";
    agent.start(of_user(HOSTILE, test.spec(1, script))).await.unwrap();
    test.pid_written(1, 1).await;
    let leased = ProcessSpec { leased: true, ..test.spec(2, "sleep 300") };
    agent.start(of_user(VICTIM, leased)).await.unwrap();
    let stopped = slow_to_start(of_user(HOSTILE, test.spec(3, "true")));
    let start = tokio::spawn({
        let agent = agent.clone();
        async move { agent.start(stopped).await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!start.is_finished(), "the process was not stopped");
    let begun = Instant::now();
    assert_eq!(run(&agent, of_user(VICTIM, test.spec(4, "exit 4"))).await.code, Some(4));
    assert_eq!(agent.wait(key(2)).await.unwrap().stopped, Some(StopCause::LeaseLost));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // A stop ends a start too.
    for job in [1, 3] {
        agent.stop(key(job), StopCause::Cancelled, Duration::ZERO);
    }
    start.await.unwrap().unwrap();
    for job in [1, 3] {
        let exit = agent.wait(key(job)).await.unwrap();
        assert_eq!(exit.stopped, Some(StopCause::Cancelled), "{job}");
    }
}

#[tokio::test]
async fn a_process_of_another_user_does_not_belong_to_a_task_whose_marker_it_has() {
    if !geteuid().is_root() {
        skip!("needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    let marker = "/tasks/victim";
    let first = sleeper(VICTIM, marker);
    let task = task(dir.path().to_owned(), first.0.id(), marker);
    let own = sleeper(VICTIM, marker);
    let foreign = sleeper(HOSTILE, marker);
    assert!(task.owns(own.0.id()));
    assert!(!task.owns(foreign.0.id()));
}

fn task(dir: PathBuf, pid: u32, marker: &str) -> RunningTask {
    let (output, _) = Output::open(&dir, None, 0).unwrap();
    RunningTask {
        key: key(1),
        pid,
        start: StartState::Done,
        user: Some(VICTIM),
        dir,
        started_at: Stamp::now(),
        since: Instant::now(),
        grace: Duration::ZERO,
        leased: false,
        output,
        stopped: None,
        kill_at: None,
        groups: TaskGroups::default(),
        marker: marker.to_owned(),
        peak: 0,
        memory_now: 0,
        descendants: BTreeSet::new(),
        ended: None,
    }
}

/// Frozen processes with the marker of a task, which cannot die before the end of this value.
struct Frozen {
    process: Killed,
    dir: PathBuf,
}

impl Frozen {
    fn new(marker: &str) -> Option<Self> {
        let name = format!("/sys/fs/cgroup/freezer/agentaflow-test-{}", std::process::id());
        let dir = PathBuf::from(name);
        fs::create_dir(&dir).ok()?;
        let process = sleeper(VICTIM, marker);
        fs::write(dir.join("cgroup.procs"), process.0.id().to_string()).unwrap();
        fs::write(dir.join("freezer.state"), "FROZEN").unwrap();
        Some(Self { process, dir })
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("freezer.state"), "THAWED");
        let _ = self.process.0.kill();
        let _ = self.process.0.wait();
        let _ = fs::remove_dir(&self.dir);
    }
}

/// The sentinel of the killed guardian leaves as soon as another guardian has the lock.
#[tokio::test]
async fn a_guardian_that_waits_for_the_end_of_leftovers_has_a_sentinel() {
    let test = TestDir::new();
    let Some(frozen) = Frozen::new(&format!("{}/x", test.dir.path().join(TASKS).display())) else {
        skip!("needs the freezer of cgroup v1");
    };
    let agent = test.agent();
    let begun = Instant::now();
    while test.sentinel().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before_the_guardian_answers = is_alive(frozen.process.0.id())
        && crate::guardian::socket::connect(test.dir.path()).await.is_err();
    assert!(before_the_guardian_answers);
    drop(frozen);
    assert!(agent.list().await.unwrap().is_empty());
}

/// The processes have neither the environment nor the session of their task.
#[test]
fn a_process_that_hid_from_a_killed_guardian_is_found_by_its_user() {
    if !geteuid().is_root() {
        skip!("needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    let tasks = dir.path().join(TASKS);
    let folder = record::folder(&tasks, key(1));
    fs::create_dir_all(&folder).unwrap();
    let hidden = |uid: u32| {
        let script = "env -i setsid sleep 300 > /dev/null 2>&1 & echo $!";
        let output = Command::new("sh").args(["-c", script]).uid(uid).gid(uid).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse::<u32>().unwrap()
    };
    let (escaped, other) = (hidden(HOSTILE - 10), hidden(VICTIM - 10));
    let uid = Some(HOSTILE - 10);
    let boot = procs::boot_id();
    let start = StartRecord { pid: u32::MAX >> 2, started: 1, boot, started_at: Stamp::now(), uid };
    record::write_start(&folder, &start).unwrap();
    let ended = leftovers::settle(&tasks, &GroupRoots::default());
    let alive = (is_alive(escaped), is_alive(other));
    procs::signal(escaped, Signal::KILL);
    procs::signal(other, Signal::KILL);
    assert_eq!((ended.len(), alive), (1, (false, true)));
}
