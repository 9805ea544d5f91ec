//! Containers on a real Docker engine. Its socket is named by `AGENTAFLOW_TEST_DOCKER`; the image is made from
//! a static busybox, so no registry is needed.

mod bench;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bollard::models::HostConfig;
use serde_json::{Value, json};

use agentaflow_agent::runtime::docker::{
    DATA_FILE, OUT_FOLDER, Pull, stop_containers, stop_leased,
};
use agentaflow_agent::runtime::{Runtime, StartError};
use agentaflow_api::end::{EndReason, StartFailure};
use agentaflow_api::event::EventKind;
use agentaflow_api::link::{StopCause, TaskKey};

use bench::{Bench, connect, name, output, settings, socket, until};

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_exit_code_and_run_time_come_back() {
    let bench = Bench::new().await;
    let launch = bench.launch("sleep 1; exit 7");
    let exit = bench.run(&launch).await;
    assert_eq!((exit.code, exit.signal, exit.stopped), (Some(7), None, None));
    assert!(!exit.out_of_memory && exit.started_at.is_some());
    // The engine notes the beginning a little late.
    assert!(exit.ran >= Duration::from_millis(300) && exit.ran < Duration::from_secs(10));
    // Asked again after the end, also by another object, it says the same.
    let again = connect(settings(bench.state.path())).await;
    assert_eq!(again.wait(launch.assignment.key).await.unwrap(), exit);
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_output_holds_both_streams_in_order_after_what_was_there() {
    let bench = Bench::new().await;
    let script = "for i in 1 2 3; do echo out $i; sleep 0.05; echo err $i >&2; sleep 0.05; done; \
                  printf 'no newline'";
    let launch = bench.launch(script);
    fs::write(launch.dir.join("output.log"), "a notice\n").unwrap();
    bench.run(&launch).await;
    let expected = "a notice\nout 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\nno newline";
    assert_eq!(output(&launch), expected);
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_output_that_comes_faster_than_the_engine_tells_it_is_complete() {
    let bench = Bench::new().await;
    // The engine cuts long lines into parts.
    let launch = bench.launch("seq 1 300000; head -c 100000 /dev/zero | tr '\\0' x");
    bench.run(&launch).await;
    let mut expected = String::new();
    for number in 1..=300_000 {
        writeln!(expected, "{number}").unwrap();
    }
    expected.push_str(&"x".repeat(100_000));
    // The engine waits two seconds for what is left when a container is over, and drops the rest. On a busy machine
    // that happens, and then nobody can have more than the engine has.
    let kept = bench.kept(launch.assignment.key).await;
    assert!(expected.starts_with(&kept), "the engine kept something else");
    let text = output(&launch);
    assert!(text == kept, "{} bytes instead of {}", text.len(), kept.len());
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_output_without_end_does_not_fill_the_disk() {
    let bench = Bench::with(|settings| settings.log_limit = 100_000).await;
    let launch = bench.launch("seq 1 300000");
    assert_eq!(bench.run(&launch).await.code, Some(0));
    let text = output(&launch);
    assert_eq!(text.len(), 100_001);
    assert!(text.starts_with("1\n2\n3\n") && text.contains("\n10000\n"));
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_environment_data_results_and_working_folder_reach_the_container() {
    let bench = Bench::new().await;
    let script = format!(
        "echo $GREETING; cat {DATA_FILE}; pwd; sleep 0.1; \
                          echo '{{}}' > {OUT_FOLDER}/result.json; echo x > {DATA_FILE}"
    );
    let mut launch = bench.launch(&script);
    launch.env.push(("GREETING".to_owned(), "hello = \"world\" $x".to_owned()));
    launch.assignment.working_dir = Some("/bin".to_owned());
    fs::write(launch.dir.join("data.json"), "{\"a\":1}\n").unwrap();
    bench.run(&launch).await;
    let text = output(&launch);
    assert!(text.contains("hello = \"world\" $x\n{\"a\":1}\n/bin\n"), "{text}");
    assert!(text.contains("Read-only file system"), "{text}");
    assert_eq!(fs::read_to_string(launch.dir.join("out/result.json")).unwrap(), "{}\n");
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_container_over_its_memory_is_ended_as_such() {
    let bench = Bench::new().await;
    let mut launch = bench.launch("exec tail -c 200000000 /dev/zero");
    launch.assignment.memory = 64;
    let exit = bench.run(&launch).await;
    assert!(exit.out_of_memory, "{exit:?}");
    assert_eq!((exit.code, exit.signal), (Some(137), Some(9)));
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_limits_and_dropped_rights_are_what_the_engine_applies() {
    let bench = Bench::with(|settings| settings.pids_limit = 77).await;
    let script =
        "grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status; touch /x; touch /tmp/y && echo tmp";
    let mut launch = bench.launch(script);
    let assignment = &mut launch.assignment;
    (assignment.cpu.0, assignment.memory, assignment.shm) = (500, 64, 32);
    assignment.read_only = true;
    bench.run(&launch).await;
    let text = output(&launch);
    assert!(text.contains("NoNewPrivs:\t1"), "{text}");
    // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE.
    assert!(text.contains("CapBnd:\t00000000000004fb"), "{text}");
    assert!(text.contains("/x: Read-only file system") && text.contains("tmp\n"), "{text}");
    let found = bench.inspect(launch.assignment.key).await;
    check_limits(&found.host_config.unwrap());
    let labels = found.config.unwrap().labels.unwrap();
    assert_eq!(labels["agentaflow.key"], launch.assignment.key.to_string());
    assert_eq!((&*labels["agentaflow.leased"], &*labels["agentaflow.grace"]), ("true", "300"));
}

fn check_limits(host: &HostConfig) {
    assert_eq!(host.nano_cpus, Some(500_000_000));
    assert_eq!((host.memory, host.memory_swap), (Some(64 << 20), Some(64 << 20)));
    assert_eq!((host.shm_size, host.pids_limit), (Some(32 << 20), Some(77)));
    assert_eq!(
        (host.readonly_rootfs, host.init, host.privileged),
        (Some(true), Some(true), Some(false))
    );
    assert_eq!(host.cap_drop.as_deref(), Some(&["ALL".to_owned()][..]));
    assert_eq!(host.security_opt.as_deref(), Some(&["no-new-privileges".to_owned()][..]));
    let log = host.log_config.as_ref().unwrap();
    assert_eq!(log.typ.as_deref(), Some("json-file"));
    assert!(log.config.as_ref().unwrap().contains_key("max-size"));
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_gpus_are_asked_for_by_uuid_and_an_engine_without_them_is_not_the_jobs_fault() {
    let bench = Bench::new().await;
    let mut launch = bench.launch("true");
    launch.devices = vec!["GPU-5a1e".to_owned()];
    match bench.docker.start(&launch, &|_, _| {}).await {
        Err(StartError::Node(detail)) => {
            assert!(detail.contains("NVIDIA Container Toolkit"), "{detail}");
        }
        // An engine that can: then the request is what it was asked for.
        started => {
            started.unwrap();
            let host = bench.inspect(launch.assignment.key).await.host_config.unwrap();
            let request = &host.device_requests.unwrap()[0];
            assert_eq!(request.device_ids.as_deref(), Some(&["GPU-5a1e".to_owned()][..]));
        }
    }
    let left = bench.engine.inspect_container(&name(launch.assignment.key), None).await;
    assert!(left.is_err(), "a container that cannot start is removed");
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_container_that_ignores_term_is_killed_after_the_grace() {
    let bench = Bench::new().await;
    let launch = bench.launch("trap 'echo no' TERM; echo up; while true; do sleep 0.05; done");
    bench.start(&launch).await;
    until(|| output(&launch).contains("up")).await;
    let asked = Instant::now();
    let key = launch.assignment.key;
    bench.docker.stop(key, StopCause::TimedOut, Duration::from_secs(2)).await;
    assert!(asked.elapsed() < Duration::from_millis(1900), "stop returns at once");
    // A later reason does not replace the first.
    bench.docker.stop(key, StopCause::Cancelled, Duration::from_secs(2)).await;
    let exit = bench.docker.wait(key).await.unwrap();
    assert!(asked.elapsed() >= Duration::from_secs(2), "{:?}", asked.elapsed());
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    assert_eq!((exit.signal, exit.stopped), (Some(9), Some(StopCause::TimedOut)));
    assert!(!exit.out_of_memory);
    assert!(output(&launch).contains("no\n"), "{}", output(&launch));
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_container_that_heeds_term_ends_by_it_and_the_reason_outlives_the_agent() {
    let bench = Bench::new().await;
    let launch = bench.launch("echo up; exec sleep 60");
    bench.start(&launch).await;
    until(|| output(&launch).contains("up")).await;
    let key = launch.assignment.key;
    bench.docker.stop(key, StopCause::Drained, Duration::from_secs(30)).await;
    let next = connect(settings(bench.state.path())).await;
    let exit = next.wait(key).await.unwrap();
    assert_eq!((exit.code, exit.signal), (Some(143), Some(15)));
    assert_eq!(exit.stopped, Some(StopCause::Drained));
    // Unknown tasks, and those that are over, may be stopped.
    next.stop(key, StopCause::Cancelled, Duration::ZERO).await;
    next.stop(TaskKey { job: 1, epoch: 1, task: 1 }, StopCause::Cancelled, Duration::ZERO).await;
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_mount_outside_the_allowed_roots_is_refused_even_through_a_link() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "from the host\n").unwrap();
    symlink("/etc", root.path().join("link")).unwrap();
    let bench = Bench::with(|settings| settings.allowed_mounts = vec![root.path().into()]).await;
    for source in [PathBuf::from("/etc"), root.path().join("link"), root.path().join("../../etc")] {
        let mut launch = bench.launch("true");
        launch.assignment.volumes = volume(&source);
        let StartFailure { reason, detail, .. } = bench.fails(&launch).await;
        assert_eq!(reason, EndReason::StartFailed);
        assert!(detail.contains(&root.path().display().to_string()), "{detail}");
    }
    let mut launch = bench.launch("cat /data/file; touch /data/new");
    launch.assignment.volumes = volume(root.path());
    bench.run(&launch).await;
    assert!(output(&launch).contains("from the host\n"));
    assert!(!root.path().join("new").exists(), "it was mounted read-only");
}

fn volume(source: &Path) -> Vec<agentaflow_api::job::Volume> {
    let volume: Value = json!({"source": source, "target": "/data", "read_only": true});
    vec![serde_json::from_value(volume).unwrap()]
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_restarted_agent_adopts_the_container_and_no_output_is_lost_or_doubled() {
    let mut bench = Bench::new().await;
    let script = "for i in $(seq 1 3000); do echo line $i; echo error $i >&2; done; sleep 0.5; \
                  for i in $(seq 3001 6000); do echo line $i; echo error $i >&2; done; exit 5";
    let launch = bench.launch(script);
    let key = launch.assignment.key;
    bench.start(&launch).await;
    // The agent comes and goes, as often as it likes, while the output comes.
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(60)).await;
        bench.docker = connect(settings(bench.state.path())).await;
        let found = bench.docker.list().await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].key, key);
        assert!(found[0].started_at.is_some());
        let _ = tokio::time::timeout(Duration::from_millis(40), bench.docker.wait(key)).await;
    }
    // Told to start it again, as after a crash, it takes over what runs.
    bench.docker = connect(settings(bench.state.path())).await;
    bench.start(&launch).await;
    assert_eq!(bench.docker.wait(key).await.unwrap().code, Some(5));
    assert!(bench.docker.list().await.unwrap()[0].ended);
    let text = output(&launch);
    for stream in ["line", "error"] {
        let lines = text.lines().filter(|line| line.starts_with(stream));
        let expected = (1..=6000).map(|i| format!("{stream} {i}"));
        assert!(lines.eq(expected), "{stream}: lost or doubled");
    }
    assert_eq!(text.lines().count(), 12_000);
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_pull_that_fails_names_the_image_and_hides_the_password() {
    let bench = Bench::new().await;
    let mut launch = bench.launch("true");
    launch.assignment.image = Some("localhost:1/nobody/nothing".to_owned());
    let auth = json!({"server": "localhost:1", "username": "ada", "password": "hunter-2222?>"});
    launch.assignment.registry_auth = serde_json::from_value(auth).unwrap();
    let told = Mutex::new(Vec::new());
    let note = |kind: EventKind, detail: String| told.lock().unwrap().push((kind, detail));
    let started = bench.docker.start(&launch, &note).await;
    let Err(StartError::Job(StartFailure { reason, detail, .. })) = started else {
        panic!("{started:?}")
    };
    assert_eq!(reason, EndReason::ImagePull);
    assert!(detail.contains("`localhost:1/nobody/nothing:latest` could not be pulled"), "{detail}");
    assert!(!detail.contains("hunter"), "{detail}");
    let expected = (EventKind::Pulling, "Pulling `localhost:1/nobody/nothing:latest`".to_owned());
    assert_eq!(told.into_inner().unwrap(), [expected]);
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_node_that_pulls_nothing_says_so() {
    let bench = Bench::with(|settings| settings.pull = Pull::Never).await;
    let mut launch = bench.launch("true");
    launch.assignment.image = Some("agentaflow-test/missing:1".to_owned());
    let StartFailure { reason, detail, .. } = bench.fails(&launch).await;
    assert_eq!(reason, EndReason::ImagePull);
    assert!(detail.contains("is not on this node"), "{detail}");
    assert_eq!(bench.run(&bench.launch("true")).await.code, Some(0));
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_use_and_processes_are_seen_while_it_runs_and_remembered_after() {
    let bench = Bench::new().await;
    let launch = bench.launch("sleep 60 & while true; do :; done");
    let key = launch.assignment.key;
    bench.start(&launch).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let used = bench.docker.used(key).await;
    assert!(used.cpu > Duration::from_millis(100) && used.memory > 0, "{used:?}");
    let pids = bench.docker.pids(key).await;
    assert!(pids.len() >= 2, "{pids:?}");
    assert!(pids.iter().all(|pid| Path::new(&format!("/proc/{pid}")).exists()), "{pids:?}");
    bench.docker.stop(key, StopCause::Cancelled, Duration::ZERO).await;
    bench.docker.wait(key).await.unwrap();
    assert!(bench.docker.used(key).await.cpu >= used.cpu);
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_removed_task_is_gone_and_may_be_removed_again() {
    let bench = Bench::new().await;
    let launch = bench.launch("true");
    let key = launch.assignment.key;
    bench.run(&launch).await;
    for _ in 0..2 {
        bench.docker.remove(key).await;
        assert!(bench.docker.list().await.unwrap().is_empty());
    }
    assert!(matches!(bench.docker.wait(key).await, Err(StartError::Node(_))));
    assert!(launch.dir.join("output.log").exists(), "the folder stays");
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_agents_of_two_servers_share_an_engine_without_mixing_up_their_tasks() {
    let (first, second) = (Bench::new().await, Bench::new().await);
    let launch = first.launch("exit 1");
    let key = launch.assignment.key;
    let mut same = second.launch("exit 2");
    same.assignment.key = key;
    same.dir = second.state.path().join(format!("tasks/{key}"));
    fs::create_dir_all(&same.dir).unwrap();
    assert_eq!(first.run(&launch).await.code, Some(1));
    assert_eq!(second.run(&same).await.code, Some(2));
    second.docker.remove(key).await;
    assert_eq!(first.docker.wait(key).await.unwrap().code, Some(1));
    assert_eq!(first.docker.list().await.unwrap().len(), 1);
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_when_the_lease_is_lost_leased_containers_end_and_others_stay() {
    let bench = Bench::new().await;
    let leased = bench.launch("echo up; exec sleep 60");
    let mut free = bench.launch("echo up; exec sleep 60");
    free.assignment.leased = false;
    for launch in [&leased, &free] {
        bench.start(launch).await;
        until(|| output(launch).contains("up")).await;
    }
    let keys = BTreeSet::from([leased.assignment.key, free.assignment.key]);
    let late = Duration::ZERO;
    stop_leased(&socket(), bench.state.path(), &BTreeSet::new(), late).await.unwrap();
    assert!(bench.docker.list().await.unwrap().iter().all(|found| !found.ended));
    stop_leased(&socket(), bench.state.path(), &keys, late).await.unwrap();
    let exit = bench.docker.wait(leased.assignment.key).await.unwrap();
    assert_eq!(exit.stopped, Some(StopCause::LeaseLost));
    let key = free.assignment.key;
    assert!(
        bench.docker.list().await.unwrap().iter().any(|found| found.key == key && !found.ended)
    );
    let names = [name(key), "agentaflow-no-such-container".to_owned()];
    stop_containers(&socket(), &names, Duration::from_secs(5)).await.unwrap();
    assert_eq!(bench.docker.wait(key).await.unwrap().signal, Some(15));
}
