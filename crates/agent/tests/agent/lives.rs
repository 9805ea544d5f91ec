//! What happens to tasks when all goes well, or goes wrong in the ordinary ways.

use std::time::{Duration, Instant};

use serde_json::json;

use agentaflow_api::end::{EndReason, StartFailure};
use agentaflow_api::event::EventKind;
use agentaflow_api::link::{GpuGrant, Message, Report, Stop, StopCause, TaskKey, TaskUpdate};

use crate::{World, data_of, shell};

#[tokio::test(flavor = "multi_thread")]
async fn output_result_and_exit_code_of_a_task_reach_the_server() {
    let world = World::new().await;
    let agent = world.agent();
    let script = "echo \"data $JOB_DATA secret $SECRET\"; echo '{\"loss\": 0.25}' > $AGENTAFLOW_OUTPUT; exit 5";
    let key = world.assign(shell(1, script));
    let ended = world.server.ended(key).await;
    assert_eq!((ended.exit_code, ended.signal, ended.stopped), (Some(5), None, None));
    assert_eq!(ended.output_data, Some(json!({"loss": 0.25})));
    let log = world.server.log(key);
    assert_eq!(log, "data {\"input_data\":{\"lr\":0.1}} secret hidden\n");
    assert_eq!(ended.log_bytes, log.len() as u64);
    world.server.until("a clean folder", |_| world.folder_is_gone(key).then_some(())).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_says_what_it_is_when_it_registers() {
    let world = World::new().await;
    let agent = world.agent();
    world.server.until("a sign of life", |memory| memory.beats.first().cloned()).await;
    {
        let memory = world.server.memory();
        let node = memory.node.as_ref().unwrap();
        assert_eq!(
            (node.node_name.as_str(), node.gpu_count, node.max_concurrent_jobs),
            ("worker", Some(0), Some(0))
        );
        assert_eq!(node.runtimes, ["process"]);
        assert!(node.cpu_cores.unwrap().0 >= 1000 && node.memory_total.unwrap() > 100);
        let about = memory.agent.as_ref().unwrap();
        assert_eq!(about.config["heartbeat_interval_ms"], 300);
        assert_eq!((about.node_id, &about.capabilities["stream"]), (Some(7), &json!(true)));
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_too_large_for_a_variable_come_in_a_file() {
    let world = World::new().await;
    let agent = world.agent();
    let mut assignment = shell(1, "echo \"[$JOB_DATA]\"; wc -c < $JOB_DATA_FILE");
    assignment.job_data = data_of(200_000);
    let key = world.assign(assignment);
    assert_eq!(world.server.ended(key).await.exit_code, Some(0));
    assert_eq!(world.server.log(key), "[]\n200017\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_with_simulated_gpus_gets_no_device_and_a_notice() {
    let world = World::new().await;
    let agent = world.agent();
    let mut assignment = shell(1, "echo \"[$CUDA_VISIBLE_DEVICES] $NVIDIA_VISIBLE_DEVICES\"");
    assignment.simulated = true;
    assignment.gpus =
        vec![GpuGrant { index: 0, uuid: "SIM-1".into(), milli: 1000, memory: 1000, shared: false }];
    let key = world.assign(assignment);
    world.server.ended(key).await;
    let log = world.server.log(key);
    assert!(log.starts_with("[agentaflow] notice") && log.contains("simulated"), "{log}");
    assert!(log.ends_with("\n[] void\n"), "{log}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_not_json_is_a_warning_and_not_a_failure() {
    let world = World::new().await;
    let agent = world.agent();
    let key = world.assign(shell(1, "echo oops > $AGENTAFLOW_OUTPUT"));
    let ended = world.server.ended(key).await;
    assert_eq!((ended.exit_code, ended.output_data), (Some(0), None));
    let warned = world.server.memory().reports.iter().any(|report| {
        matches!(&report.update, TaskUpdate::Progress { kind, detail } if *kind == EventKind::Warning && detail.contains("not JSON"))
    });
    assert!(warned);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_comes_again_does_not_run_a_task_again() {
    let world = World::new().await;
    let agent = world.agent();
    let key = world.assign(shell(1, "echo ran"));
    world.server.ended(key).await;
    world.assign(shell(1, "echo ran"));
    let other = world.assign(shell(2, "echo other"));
    world.server.ended(other).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.server.log(key), "ran\n");
    let ends =
        |report: &&Report| report.key == key && matches!(report.update, TaskUpdate::Ended(_));
    assert_eq!(world.server.memory().reports.iter().filter(ends).count(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_takes_too_long_is_stopped() {
    let world = World::new().await;
    let agent = world.agent();
    let mut assignment = shell(1, "trap 'echo bye; exit 9' TERM; sleep 300 & wait");
    assignment.timeout_ms = Some(400);
    let key = world.assign(assignment);
    let ended = world.server.ended(key).await;
    assert_eq!((ended.exit_code, ended.stopped), (Some(9), Some(StopCause::TimedOut)));
    assert!((400..5000).contains(&ended.ran_ms), "{}", ended.ran_ms);
    assert_eq!(world.server.log(key), "bye\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_reaches_a_running_task_and_one_that_never_came() {
    let world = World::new().await;
    let agent = world.agent();
    let key = world.assign(shell(1, "sleep 300"));
    world.server.running(key).await;
    let never = TaskKey { job: 99, epoch: 4, task: 0 };
    for key in [key, never] {
        world.server.say(Message::Stop(Stop { key, cause: StopCause::Cancelled, grace_ms: 1000 }));
    }
    let ended = world.server.ended(key).await;
    assert_eq!((ended.signal, ended.stopped), (Some(15), Some(StopCause::Cancelled)));
    let ended = world.server.ended(never).await;
    assert_eq!((ended.exit_code, ended.stopped), (None, Some(StopCause::Cancelled)));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_there_is_told_as_a_failed_start() {
    let world = World::new().await;
    let agent = world.agent();
    let mut assignment = shell(1, "");
    assignment.command = Some(vec!["no-such-program".to_owned()]);
    let key = world.assign(assignment);
    let StartFailure { reason, detail, .. } =
        world.server.ended(key).await.failed_to_start.unwrap();
    assert_eq!(reason, EndReason::StartFailed);
    assert!(detail.contains("no-such-program"), "{detail}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_the_node_lacks_is_refused_in_words() {
    let world = World::new().await;
    let agent = world.agent();
    let mut assignment = shell(1, "true");
    assignment.runtime = agentaflow_api::job::Runtime::Docker;
    world.assign(assignment);
    let detail = world
        .server
        .until("a refusal", |memory| match memory.reports.first().map(|report| &report.update) {
            Some(TaskUpdate::Refused { detail }) => Some(detail.clone()),
            _ => None,
        })
        .await;
    assert!(detail.contains("no Docker engine"), "{detail}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_over_the_limit_is_cut_and_a_line_says_so() {
    let world = World::new().await;
    let mut settings = world.open_settings();
    settings.log_limit = 1 << 20;
    let agent = World::agent_with(settings);
    let key = world.assign(shell(1, "head -c 3000000 /dev/zero | tr '\\0' x; exit 0"));
    let ended = world.server.ended(key).await;
    let log = world.server.log(key);
    assert_eq!(log.len() as u64, ended.log_bytes);
    assert!(
        log.starts_with("xxx") && log.ends_with("cut here: more than 1 MiB\n"),
        "{}",
        log.len()
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_short_tasks_go_through_in_few_reports() {
    let world = World::new().await;
    let agent = world.agent();
    let first = world.assign(shell(1000, "true"));
    world.server.ended(first).await;
    let begun = Instant::now();
    for job in 0..300 {
        let mut assignment = shell(job, "");
        assignment.command = Some(vec!["true".to_owned()]);
        world.assign(assignment);
    }
    let count = |memory: &crate::server::Memory| {
        memory.reports.iter().filter(|report| matches!(report.update, TaskUpdate::Ended(_))).count()
    };
    world.server.until("all ends", |memory| (count(memory) == 301).then_some(())).await;
    let rate = 300.0 / begun.elapsed().as_secs_f64();
    let requests = world.server.memory().requests;
    println!("{rate:.0} tasks a second in {requests} reports");
    assert!(requests < 200, "{requests} reports");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_an_agent_that_is_root_is_not_root_and_cannot_touch_its_own_records() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can give up its rights");
        return;
    }
    let world = World::new().await;
    let agent = world.agent();
    let script = "id -u; id -G; cat ../assignment.json 2>/dev/null; rm -f ../output.log 2>/dev/null; \
                  touch here && echo said > /dev/stdout; ls";
    let key = world.assign(shell(1, script));
    assert_eq!(world.server.ended(key).await.exit_code, Some(0));
    let log = world.server.log(key);
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0] != "0" && lines[1] == "65534", "{log}");
    assert_eq!(lines[2..], ["said", "here"], "{log}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_run_elsewhere_when_their_user_cannot_get_to_the_agents_folder() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root runs tasks as another user");
        return;
    }
    let world = World::new().await;
    let agent = World::agent_with(world.settings());
    let key = world.assign(shell(1, "touch here && echo fine"));
    let ended = world.server.ended(key).await;
    let tasks = std::fs::canonicalize(world.dir.path().join("agent/tasks")).unwrap();
    assert_eq!((ended.exit_code, world.server.log(key).as_str()), (Some(0), "fine\n"));
    assert!(!tasks.starts_with(world.dir.path()), "{}", tasks.display());
    world.server.until("a clean folder", |_| world.folder_is_gone(key).then_some(())).await;
    agent.stop().await;
    assert!(!tasks.exists(), "{} was left behind", tasks.display());
}
