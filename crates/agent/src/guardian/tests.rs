//! Guardian with real processes.

mod cgroups;
mod hostile;
mod lease;
mod temporary;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use agentaflow_api::end::{EndCause, EndReason};
use agentaflow_api::ids::JobId;
use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_api::units::Secret;

use super::client::Guardian;
use super::wire::{ExitRecord, ProcessSpec, Response, StartFault};
use super::{MARKER, TASKS, procs, record};
use crate::skip::skip;

const SWITCH: &str = "AGENTAFLOW_TEST_GUARDIAN";

/// Entry point, not a test: the tests start this program again as their guardian.
#[test]
fn the_guardian_of_other_tests_runs_in_this_program() {
    if let Some(dir) = std::env::var_os(SWITCH) {
        super::run(Path::new(&dir)).unwrap();
    }
}

/// State directory with a script that starts the guardian.
struct TestDir {
    dir: TempDir,
}

impl TestDir {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(TASKS)).unwrap();
        let script = dir.path().join("agentaflow");
        let program = std::env::current_exe().unwrap();
        let name = "guardian::tests::the_guardian_of_other_tests_runs_in_this_program";
        let text = format!(
            "#!/bin/sh\n{SWITCH}=\"$3\" exec {} --exact {name} --nocapture\n",
            program.display()
        );
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    fn agent(&self) -> Guardian {
        self.agent_with(Duration::from_secs(10))
    }

    fn agent_with(&self, interval: Duration) -> Guardian {
        let dir = self.dir.path().to_owned();
        Guardian::new(dir.clone(), dir.join("agentaflow"), interval)
    }

    /// Pid of the guardian, not of a task.
    fn guardian(&self) -> u32 {
        let ours = |pid: &u32| {
            procs::variable(*pid, MARKER).is_none()
                && procs::variable(*pid, super::role::ROLE).is_none()
                && procs::variable(*pid, SWITCH)
                    .is_some_and(|dir| Path::new(&dir) == self.dir.path())
        };
        procs::all().into_iter().find(ours).unwrap()
    }

    fn sentinel(&self) -> Option<u32> {
        let ours = |pid: &u32| {
            procs::variable(*pid, super::role::ROLE).is_some()
                && procs::variable(*pid, SWITCH)
                    .is_some_and(|dir| Path::new(&dir) == self.dir.path())
        };
        procs::all().into_iter().find(ours)
    }

    fn task(&self, job: i64) -> PathBuf {
        record::folder(&self.dir.path().join(TASKS), key(job))
    }

    fn spec(&self, job: i64, script: &str) -> ProcessSpec {
        let dir = self.task(job);
        fs::create_dir_all(&dir).unwrap();
        let marker = format!("{}/out/output.json", dir.display());
        let env = [("PATH", "/usr/bin:/bin"), (MARKER, marker.as_str())];
        ProcessSpec {
            key: key(job),
            argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: env
                .map(|(name, value)| (name.to_owned(), Secret::from(value)))
                .into_iter()
                .collect::<BTreeMap<_, _>>(),
            working_dir: dir,
            user: None,
            exclusive_user: false,
            memory: 0,
            cpu_milli: 0,
            pids: 0,
            open_files: 0,
            denied_devices: Vec::new(),
            grace_ms: 200,
            leased: false,
            log_limit: 1 << 20,
            temporary_files: None,
        }
    }

    fn output(&self, job: i64) -> String {
        fs::read_to_string(self.task(job).join("output.log")).unwrap_or_default()
    }

    /// Waits until a task has written `lines` pids.
    async fn pid_written(&self, job: i64, lines: usize) -> Vec<u32> {
        for _ in 0..2000 {
            let text = self.output(job);
            let pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
            if pids.len() >= lines && text.ends_with('\n') {
                return pids;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the task wrote only {:?}", self.output(job));
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let ours = format!("{}/", self.dir.path().display());
        for pid in procs::all() {
            let guardian =
                procs::variable(pid, SWITCH).is_some_and(|dir| format!("{dir}/") == ours);
            if guardian || procs::variable(pid, MARKER).is_some_and(|path| path.starts_with(&ours))
            {
                procs::signal(pid, Signal::KILL);
            }
        }
    }
}

fn key(job: i64) -> TaskKey {
    TaskKey { job: JobId(job), epoch: 1, incarnation: 0, task: 0 }
}

fn is_alive(pid: u32) -> bool {
    procs::stat(pid).is_some_and(|stat| !stat.zombie)
}

async fn run(agent: &Guardian, spec: ProcessSpec) -> ExitRecord {
    let key = spec.key;
    let response = agent.start(spec).await.unwrap();
    assert!(matches!(response, Response::Started { .. }), "{response:?}");
    agent.wait(key).await.unwrap()
}

#[tokio::test]
async fn exit_codes_signals_and_output_arrive() {
    let test = TestDir::new();
    let agent = test.agent();
    let exit = run(&agent, test.spec(1, "echo out; echo err >&2; exit 3")).await;
    assert_eq!((exit.code, exit.signal, exit.stopped), (Some(3), None, None));
    assert_eq!(test.output(1), "out\nerr\n");
    let exit = run(&agent, test.spec(2, "kill -SEGV $$")).await;
    assert_eq!((exit.code, exit.signal), (Some(139), Some(11)));
    let kept: ExitRecord = record::read(&test.task(2).join("exit.json")).unwrap();
    assert_eq!(kept, exit);
}

#[tokio::test]
async fn a_missing_program_or_directory_is_a_fault_of_the_job() {
    let test = TestDir::new();
    let agent = test.agent();
    let spec = ProcessSpec { argv: vec!["no-such-program".into()], ..test.spec(1, "") };
    let job_failure = |response: Response| match response {
        Response::Failed { fault: StartFault::Job(failure) } => failure,
        other => panic!("{other:?}"),
    };
    let failure = job_failure(agent.start(spec).await.unwrap());
    assert_eq!(failure.cause, Some(EndCause::ProgramNotFound));
    let spec = ProcessSpec { working_dir: "/no/such/folder".into(), ..test.spec(2, "true") };
    let failure = job_failure(agent.start(spec).await.unwrap());
    assert_eq!((failure.reason, failure.cause), (EndReason::StartFailed, None));
}

#[tokio::test]
async fn a_task_gets_only_the_environment_of_its_spec() {
    let test = TestDir::new();
    let exit = run(&test.agent(), test.spec(1, "env | cut -d= -f1 | sort | tr '\\n' ' '")).await;
    assert_eq!(exit.code, Some(0));
    let names: Vec<String> = test
        .output(1)
        .split(' ')
        .filter(|name| !matches!(*name, "PWD" | "OLDPWD" | "SHLVL" | "_" | ""))
        .map(str::to_owned)
        .collect();
    assert_eq!(names, [MARKER, "PATH"]);
}

#[tokio::test]
async fn the_kernel_prefers_tasks_to_their_guardian_and_its_sentinel_when_memory_is_short() {
    let protect = format!("echo {} > /proc/self/oom_score_adj", super::PROTECTED_OOM_SCORE);
    let may = std::process::Command::new("sh").args(["-c", &protect]).output().unwrap();
    if !may.status.success() {
        skip!("needs the right to lower the OOM score");
    }
    let score = |pid: u32| -> i32 {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        text.trim().parse().unwrap()
    };
    let test = TestDir::new();
    let agent = test.agent();
    agent.start(test.spec(1, "echo $$; sleep 300")).await.unwrap();
    let task = test.pid_written(1, 1).await[0];
    assert_eq!(score(task), score(std::process::id()));
    assert!(score(test.guardian()) <= super::PROTECTED_OOM_SCORE);
    // The sentinel inherits the score, so no moment is unprotected.
    assert!(score(test.sentinel().unwrap()) <= super::PROTECTED_OOM_SCORE);
}

#[tokio::test]
async fn a_task_that_ignores_term_is_killed_after_the_grace() {
    let test = TestDir::new();
    let agent = test.agent();
    agent.start(test.spec(1, "trap '' TERM; echo $$; while :; do sleep 0.05; done")).await.unwrap();
    test.pid_written(1, 1).await;
    let begun = Instant::now();
    agent.stop(key(1), StopCause::Cancelled, Duration::from_millis(300));
    let exit = agent.wait(key(1)).await.unwrap();
    assert_eq!(
        (exit.code, exit.signal, exit.stopped),
        (Some(137), Some(9), Some(StopCause::Cancelled))
    );
    assert!(begun.elapsed() >= Duration::from_millis(290), "{:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn background_processes_of_a_task_are_killed_at_its_end() {
    let test = TestDir::new();
    let agent = test.agent();
    // One process in the task's process group, one in its own session.
    let script = "sleep 300 & echo $!; setsid sh -c 'echo $$; exec sleep 300' & sleep 0.2; exit 0";
    let exit = run(&agent, test.spec(1, script)).await;
    assert_eq!(exit.code, Some(0));
    let left = test.pid_written(1, 2).await;
    assert!(left.iter().all(|pid| !is_alive(*pid)), "{left:?} still run");
}

#[tokio::test]
async fn background_processes_survive_the_end_of_another_task() {
    let test = TestDir::new();
    let agent = test.agent();
    agent
        .start(test.spec(1, "(setsid sh -c 'echo $$; exec sleep 300' &); sleep 300"))
        .await
        .unwrap();
    let daemon = test.pid_written(1, 1).await[0];
    run(&agent, test.spec(2, "true")).await;
    assert!(is_alive(daemon));
    agent.stop(key(1), StopCause::Cancelled, Duration::from_secs(5));
    agent.wait(key(1)).await.unwrap();
    assert!(!is_alive(daemon));
}

#[tokio::test]
async fn tasks_survive_the_agent_and_the_next_agent_gets_their_end() {
    let test = TestDir::new();
    let first = test.agent();
    first.start(test.spec(1, "echo $$; sleep 0.5; echo done; exit 7")).await.unwrap();
    test.pid_written(1, 1).await;
    drop(first);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let second = test.agent();
    let exit = second.wait(key(1)).await.unwrap();
    assert_eq!(exit.code, Some(7));
    assert!(test.output(1).ends_with("done\n"));
    assert_eq!(second.list().await.unwrap().len(), 1);
    second.forget(key(1));
    assert!(second.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn the_next_guardian_kills_the_processes_of_a_killed_one() {
    let test = TestDir::new();
    let agent = test.agent();
    agent
        .start(test.spec(1, "echo $$; setsid sh -c 'echo $$; exec sleep 300' & sleep 300"))
        .await
        .unwrap();
    let orphans = test.pid_written(1, 2).await;
    let guardian = procs::all().into_iter().find(|pid| {
        procs::variable(*pid, SWITCH).is_some_and(|dir| Path::new(&dir) == test.dir.path())
            && procs::children(*pid).iter().any(|child| orphans.contains(child))
    });
    procs::signal(guardian.unwrap(), Signal::KILL);
    let exit = agent.wait(key(1)).await.unwrap();
    assert_eq!(exit.stopped, Some(StopCause::LeaseLost));
    assert!(orphans.iter().all(|pid| !is_alive(*pid)), "{orphans:?} still run");
}

#[tokio::test]
async fn endless_output_does_not_fill_the_disk() {
    let test = TestDir::new();
    let agent = test.agent();
    let spec = ProcessSpec {
        log_limit: 1000,
        ..test.spec(1, "while :; do echo $$ >> rounds; head -c 3000000 /dev/zero; done")
    };
    agent.start(spec).await.unwrap();
    // A round starts only after the guardian has read the previous one.
    let rounds = test.task(1).join("rounds");
    let more = async {
        while fs::read_to_string(&rounds).unwrap_or_default().lines().count() <= 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), more).await.expect("more rounds");
    let length = test.task(1).join("output.log").metadata().unwrap().len();
    assert_eq!(length, 1001);
    agent.stop(key(1), StopCause::Cancelled, Duration::ZERO);
    agent.wait(key(1)).await.unwrap();
}

#[tokio::test]
async fn endless_output_does_not_block_other_tasks() {
    let test = TestDir::new();
    let agent = test.agent();
    for job in 1..=3 {
        let script = "trap '' TERM; echo on; yes & yes & yes";
        agent.start(ProcessSpec { log_limit: 1000, ..test.spec(job, script) }).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = Instant::now();
    // Another task runs meanwhile.
    assert_eq!(run(&agent, test.spec(4, "exit 5")).await.code, Some(5));
    for job in 1..=3 {
        agent.stop(key(job), StopCause::TimedOut, Duration::from_millis(100));
    }
    for job in 1..=3 {
        let exit = agent.wait(key(job)).await.unwrap();
        assert_eq!(exit.stopped, Some(StopCause::TimedOut));
        assert_eq!(test.task(job).join("output.log").metadata().unwrap().len(), 1001);
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_task_cannot_gain_privileges() {
    let test = TestDir::new();
    let agent = test.agent();
    run(&agent, test.spec(1, "grep NoNewPrivs /proc/self/status | tr -d '\\t'")).await;
    assert_eq!(test.output(1), "NoNewPrivs:1\n");
}

#[tokio::test]
async fn an_escaped_process_is_killed_while_another_task_runs() {
    let test = TestDir::new();
    let agent = test.agent();
    agent.start(test.spec(2, "sleep 300")).await.unwrap();
    // Own session, own environment, and its parents end before the first sample.
    let script = "(setsid env -i /bin/sh -c 'echo $$; exec /bin/sleep 300' &); sleep 0.2";
    run(&agent, test.spec(1, script)).await;
    let escaped = test.pid_written(1, 1).await[0];
    let begun = Instant::now();
    while is_alive(escaped) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{escaped} still runs");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(agent.list().await.unwrap().iter().filter(|task| task.ended.is_none()).count(), 1);
}

#[tokio::test]
async fn an_invalid_message_does_not_affect_later_messages() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let test = TestDir::new();
    let agent = test.agent();
    run(&agent, test.spec(1, "true")).await;
    let mut stream = super::socket::connect(test.dir.path()).await.unwrap();
    stream
        .write_all(b"{\"id\":1,\"command\":\"fly\"}\nnonsense\n{\"id\":2,\"command\":\"hello\"}\n")
        .await
        .unwrap();
    let mut answers = String::new();
    while answers.lines().count() < 3 || !answers.ends_with('\n') {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "{answers}");
        answers.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    assert!(answers.contains("\"protocol\":1"), "{answers}");
    assert_eq!(run(&agent, test.spec(2, "exit 4")).await.code, Some(4));
}

#[tokio::test]
async fn many_short_tasks_are_quick() {
    let test = TestDir::new();
    let agent = test.agent();
    run(&agent, test.spec(0, "true")).await;
    let begun = Instant::now();
    let runs = (1..=300).map(|job| {
        let spec = ProcessSpec { argv: vec!["true".into()], ..test.spec(job, "") };
        let agent = agent.clone();
        tokio::spawn(async move { run(&agent, spec).await.code })
    });
    for run in runs.collect::<Vec<_>>() {
        assert_eq!(run.await.unwrap(), Some(0));
    }
    let rate = 300.0 / begun.elapsed().as_secs_f64();
    println!("{rate:.0} processes per second");
    assert!(rate > 100.0, "{rate:.0} processes per second");
}
