//! Containers on a real Docker daemon. `AGENTAFLOW_TEST_DOCKER` is the path of its socket; the image contains a static
//! busybox, so no registry is needed.

mod bench;
mod hung_daemon;
mod image;
mod images;
mod network;
#[path = "../../../../tests/skip.rs"]
mod skip;
mod volumes;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bollard::models::HostConfig;
use serde_json::json;

use agentaflow_agent::runtime::docker::{
    DATA_FILE, OUT_FOLDER, PullPolicy, stop_containers, stop_leased,
};
use agentaflow_agent::runtime::{Runtime, StartError};
use agentaflow_api::end::{EndReason, StartFailure};
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::JobId;
use agentaflow_api::link::{StopCause, TaskKey};

use bench::{Bench, connect, name, output, settings, until};
use image::socket;

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_exit_code_and_run_time_are_returned() {
    let bench = Bench::new().await;
    let launch = bench.launch("sleep 1; exit 7");
    let exit = bench.run(&launch).await;
    assert_eq!((exit.code, exit.signal, exit.stopped), (Some(7), None, None));
    assert!(!exit.out_of_memory && exit.started_at.is_some());
    // Docker records the start a little late.
    let ran = exit.ran.unwrap();
    assert!(ran >= Duration::from_millis(300) && ran < Duration::from_secs(10));
    // A second wait, also from another instance, returns the same.
    let again = connect(settings(bench.state.path())).await;
    assert_eq!(again.wait(launch.assignment.key).await.unwrap(), exit);
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_output_of_both_streams_is_appended_in_order() {
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
async fn docker_fast_output_is_complete() {
    let bench = Bench::new().await;
    // Docker splits long lines.
    let launch = bench.launch("seq 1 300000; head -c 100000 /dev/zero | tr '\\0' x");
    bench.run(&launch).await;
    let mut expected = String::new();
    for number in 1..=300_000 {
        writeln!(expected, "{number}").unwrap();
    }
    expected.push_str(&"x".repeat(100_000));
    // Docker reads output for two seconds after the end of a container and drops the rest. On a busy host that
    // happens, and the agent cannot have more than Docker.
    let kept = bench.kept(launch.assignment.key).await;
    assert!(expected.starts_with(&kept), "Docker has other output");
    let text = output(&launch);
    assert!(text == kept, "{} bytes instead of {}", text.len(), kept.len());
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_endless_output_does_not_fill_the_disk() {
    let bench = Bench::with(|settings| settings.log_limit = 100_000).await;
    let launch = bench.launch("seq 1 300000");
    assert_eq!(bench.run(&launch).await.code, Some(0));
    let text = output(&launch);
    assert_eq!(text.len(), 100_001);
    assert!(text.starts_with("1\n2\n3\n") && text.contains("\n10000\n"));
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_environment_data_results_and_working_directory_reach_the_container() {
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
async fn docker_a_container_over_its_memory_limit_ends_out_of_memory() {
    let bench = Bench::new().await;
    let mut launch = bench.launch("exec tail -c 200000000 /dev/zero");
    launch.assignment.memory = 64;
    let exit = bench.run(&launch).await;
    assert!(exit.out_of_memory, "{exit:?}");
    assert_eq!((exit.code, exit.signal), (Some(137), Some(9)));
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_limits_and_dropped_capabilities_are_applied() {
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
async fn docker_gpus_are_requested_by_uuid_and_a_missing_gpu_driver_is_a_fault_of_the_node() {
    let bench = Bench::new().await;
    let mut launch = bench.launch("true");
    launch.devices = vec!["GPU-5a1e".to_owned()];
    match bench.docker.start(&launch, &|_, _| {}).await {
        Err(StartError::Node(_)) => {}
        // Docker with a GPU driver: check the request.
        started => {
            started.unwrap();
            let host = bench.inspect(launch.assignment.key).await.host_config.unwrap();
            let request = &host.device_requests.unwrap()[0];
            assert_eq!(request.device_ids.as_deref(), Some(&["GPU-5a1e".to_owned()][..]));
        }
    }
    let left = bench.client.inspect_container(&name(launch.assignment.key), None).await;
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
async fn docker_a_container_ends_on_term_and_the_reason_outlives_the_agent() {
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
    // Stopping ended and unknown tasks is allowed.
    next.stop(key, StopCause::Cancelled, Duration::ZERO).await;
    next.stop(
        TaskKey { job: JobId(1), epoch: 1, incarnation: 0, task: 1 },
        StopCause::Cancelled,
        Duration::ZERO,
    )
    .await;
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_restarted_agent_adopts_the_container_and_copies_all_output_once() {
    let mut bench = Bench::new().await;
    let script = "for i in $(seq 1 3000); do echo line $i; echo error $i >&2; done; sleep 0.5; \
                  for i in $(seq 3001 6000); do echo line $i; echo error $i >&2; done; exit 5";
    let launch = bench.launch(script);
    let key = launch.assignment.key;
    bench.start(&launch).await;
    // The agent restarts several times during the output.
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(60)).await;
        bench.docker = connect(settings(bench.state.path())).await;
        let found = bench.docker.list().await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].key, key);
        assert!(found[0].started_at.is_some());
        let _ = tokio::time::timeout(Duration::from_millis(40), bench.docker.wait(key)).await;
    }
    // A second start, as after a crash, adopts the running container.
    bench.docker = connect(settings(bench.state.path())).await;
    bench.start(&launch).await;
    assert_eq!(bench.docker.wait(key).await.unwrap().code, Some(5));
    assert!(bench.docker.list().await.unwrap()[0].ended);
    let text = output(&launch);
    for stream in ["line", "error"] {
        let lines = text.lines().filter(|line| line.starts_with(stream));
        let expected = (1..=6000).map(|i| format!("{stream} {i}"));
        assert!(lines.eq(expected), "{stream}: lines lost or repeated");
    }
    assert_eq!(text.lines().count(), 12_000);
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_pull_error_names_the_image_and_hides_the_password() {
    let bench = Bench::with(|settings| settings.allow_local_registry = true).await;
    let mut launch = bench.launch("true");
    launch.assignment.image = Some("localhost:1/nobody/nothing".to_owned());
    let auth = json!({"server": "localhost:1", "username": "ada", "password": "hunter-2222?>"});
    launch.assignment.registry_auth = serde_json::from_value(auth).unwrap();
    let events = Mutex::new(Vec::new());
    let progress = |kind: EventKind, detail: String| events.lock().unwrap().push((kind, detail));
    let started = bench.docker.start(&launch, &progress).await;
    let Err(StartError::Job(StartFailure { reason, detail, .. })) = started else {
        panic!("{started:?}")
    };
    assert_eq!(reason, EndReason::ImagePull);
    assert!(detail.contains("`localhost:1/nobody/nothing:latest`"), "{detail}");
    assert!(!detail.contains("hunter"), "{detail}");
    let kinds: Vec<EventKind> =
        events.into_inner().unwrap().into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [EventKind::Pulling]);
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_missing_image_is_an_error_with_pull_policy_never() {
    let bench = Bench::with(|settings| settings.pull = PullPolicy::Never).await;
    let mut launch = bench.launch("true");
    launch.assignment.image = Some("agentaflow-test/missing:1".to_owned());
    let failure = bench.fails(&launch).await;
    assert_eq!(failure.reason, EndReason::ImagePull);
    assert_eq!(bench.run(&bench.launch("true")).await.code, Some(0));
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_usage_and_processes_are_measured_and_usage_is_kept_after_the_end() {
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
async fn docker_a_task_can_be_removed_twice() {
    let bench = Bench::new().await;
    let launch = bench.launch("true");
    let key = launch.assignment.key;
    bench.run(&launch).await;
    for _ in 0..2 {
        bench.docker.remove(key).await;
        assert!(bench.docker.list().await.unwrap().is_empty());
    }
    assert!(matches!(bench.docker.wait(key).await, Err(StartError::Node(_))));
    assert!(launch.dir.join("output.log").exists(), "the task folder is removed");
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_agents_of_two_servers_with_equal_keys_share_one_docker() {
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
async fn docker_only_leased_containers_end_with_the_lease() {
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
