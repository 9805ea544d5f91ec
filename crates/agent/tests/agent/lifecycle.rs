//! Tasks from assignment to end, with ordinary failures.

use std::time::{Duration, Instant};

use serde_json::json;

use agentaflow_api::end::{EndCause, EndReason};
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{JobId, NodeId};
use agentaflow_api::link::{GpuGrant, Message, Report, Stop, StopCause, TaskKey, TaskUpdate};

use crate::skip::skip;
use crate::{TestBed, data_of, shell};

#[tokio::test(flavor = "multi_thread")]
async fn output_result_and_exit_code_of_a_task_reach_the_server() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let script = "echo \"data $JOB_DATA secret $SECRET\"; echo '{\"loss\": 0.25}' > $AGENTAFLOW_OUTPUT; exit 5";
    let key = bed.assign(shell(1, script));
    let ended = bed.server.ended(key).await;
    assert_eq!((ended.exit_code, ended.signal, ended.stopped), (Some(5), None, None));
    assert_eq!(ended.output_data, Some(json!({"loss": 0.25})));
    let log = bed.server.log(key);
    assert_eq!(log, "data {\"input_data\":{\"lr\":0.1}} secret hidden\n");
    assert_eq!(ended.log_bytes, log.len() as u64);
    bed.server.until("a clean folder", |_| bed.folder_is_gone(key).then_some(())).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_registration_describes_the_node() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    bed.server.until("a heartbeat", |memory| memory.heartbeats.first().cloned()).await;
    {
        let memory = bed.server.memory();
        let node = memory.node.as_ref().unwrap();
        assert_eq!(
            (node.node_name.as_str(), node.gpu_count, node.max_concurrent_jobs),
            ("worker", Some(0), Some(0))
        );
        assert_eq!(node.runtimes, ["process"]);
        assert!(node.cpu_cores.unwrap().0 >= 1000 && node.memory_total.unwrap() > 100);
        let agent = memory.agent.as_ref().unwrap();
        assert_eq!(agent.config["heartbeat_interval_ms"], 300);
        assert_eq!((agent.node_id, &agent.capabilities["stream"]), (Some(NodeId(7)), &json!(true)));
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_data_too_large_for_a_variable_are_in_a_file() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let mut assignment = shell(1, "echo \"[$JOB_DATA]\"; wc -c < $JOB_DATA_FILE");
    assignment.job_data = data_of(200_000);
    let key = bed.assign(assignment);
    assert_eq!(bed.server.ended(key).await.exit_code, Some(0));
    assert_eq!(bed.server.log(key), "[]\n200017\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_cannot_make_gpus_visible_by_a_variable() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let mut assignment = shell(1, "echo \"$NVIDIA_VISIBLE_DEVICES [$CUDA_VISIBLE_DEVICES]\"");
    for (name, value) in [("NVIDIA_VISIBLE_DEVICES", "all"), ("CUDA_VISIBLE_DEVICES", "0")] {
        assignment.env.insert(name.to_owned(), value.into());
    }
    let key = bed.assign(assignment);
    bed.server.ended(key).await;
    assert_eq!(bed.server.log(key), "void []\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_with_simulated_gpus_gets_no_device_and_a_notice() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let mut assignment = shell(1, "echo \"[$CUDA_VISIBLE_DEVICES] $NVIDIA_VISIBLE_DEVICES\"");
    assignment.simulated = true;
    assignment.gpus =
        vec![GpuGrant { index: 0, uuid: "SIM-1".into(), milli: 1000, memory: 1000, shared: false }];
    let key = bed.assign(assignment);
    bed.server.ended(key).await;
    let log = bed.server.log(key);
    assert!(log.starts_with("[agentaflow] Notice:"), "{log}");
    assert!(log.ends_with("\n[] void\n"), "{log}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_result_is_a_warning_and_not_a_failure() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let key = bed.assign(shell(1, "echo oops > $AGENTAFLOW_OUTPUT"));
    let ended = bed.server.ended(key).await;
    assert_eq!((ended.exit_code, ended.output_data), (Some(0), None));
    let warned = bed.server.memory().reports.iter().any(|report| {
        matches!(report.update, TaskUpdate::Progress { kind: EventKind::Warning, .. })
    });
    assert!(warned);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_assignment_does_not_run_a_task_again() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let key = bed.assign(shell(1, "echo ran"));
    bed.server.ended(key).await;
    bed.assign(shell(1, "echo ran"));
    let other = bed.assign(shell(2, "echo other"));
    bed.server.ended(other).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(bed.server.log(key), "ran\n");
    let ends =
        |report: &&Report| report.key == key && matches!(report.update, TaskUpdate::Ended(_));
    assert_eq!(bed.server.memory().reports.iter().filter(ends).count(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_stopped_after_its_timeout() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let mut assignment = shell(1, "trap 'echo bye; exit 9' TERM; sleep 300 & wait");
    assignment.timeout_ms = Some(400);
    let key = bed.assign(assignment);
    let ended = bed.server.ended(key).await;
    assert_eq!((ended.exit_code, ended.stopped), (Some(9), Some(StopCause::TimedOut)));
    assert!((400..5000).contains(&ended.ran_ms), "{}", ended.ran_ms);
    assert_eq!(bed.server.log(key), "bye\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_a_running_task_and_a_task_that_never_arrived() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let key = bed.assign(shell(1, "sleep 300"));
    bed.server.running(key).await;
    let never = TaskKey { job: JobId(99), epoch: 4, incarnation: 0, task: 0 };
    for key in [key, never] {
        bed.server.send(Message::Stop(Stop { key, cause: StopCause::Cancelled, grace_ms: 1000 }));
    }
    let ended = bed.server.ended(key).await;
    assert_eq!((ended.signal, ended.stopped), (Some(15), Some(StopCause::Cancelled)));
    let ended = bed.server.ended(never).await;
    assert_eq!((ended.exit_code, ended.stopped), (None, Some(StopCause::Cancelled)));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_program_is_reported_as_a_failed_start() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let mut assignment = shell(1, "");
    assignment.command = Some(vec!["no-such-program".to_owned()]);
    let key = bed.assign(assignment);
    let failure = bed.server.ended(key).await.failed_to_start.unwrap();
    assert_eq!(failure.reason, EndReason::StartFailed);
    assert_eq!(failure.cause, Some(EndCause::ProgramNotFound));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_assignment_for_a_missing_runtime_is_refused() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let mut assignment = shell(1, "true");
    assignment.runtime = agentaflow_api::job::Runtime::Docker;
    bed.assign(assignment);
    let refused = |report: &Report| matches!(report.update, TaskUpdate::Refused { .. });
    bed.server
        .until("a refusal", |memory| memory.reports.first().filter(|first| refused(first)).cloned())
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_over_the_limit_is_truncated_with_a_notice() {
    let bed = TestBed::new().await;
    let mut settings = bed.open_settings();
    settings.log_limit = 1 << 20;
    let agent = TestBed::agent_with(settings);
    let key = bed.assign(shell(1, "head -c 3000000 /dev/zero | tr '\\0' x; exit 0"));
    let ended = bed.server.ended(key).await;
    let log = bed.server.log(key);
    assert_eq!(log.len() as u64, ended.log_bytes);
    assert!(log.starts_with("xxx") && log.ends_with("more than 1 MiB\n"), "{}", log.len());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_short_tasks_need_few_reports() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let first = bed.assign(shell(1000, "true"));
    bed.server.ended(first).await;
    let begun = Instant::now();
    for job in 0..300 {
        let mut assignment = shell(job, "");
        assignment.command = Some(vec!["true".to_owned()]);
        bed.assign(assignment);
    }
    let count = |memory: &crate::server::Memory| {
        memory.reports.iter().filter(|report| matches!(report.update, TaskUpdate::Ended(_))).count()
    };
    bed.server.until("all ends", |memory| (count(memory) == 301).then_some(())).await;
    let rate = 300.0 / begun.elapsed().as_secs_f64();
    let requests = bed.server.memory().requests;
    println!("{rate:.0} tasks per second in {requests} reports");
    assert!(requests < 200, "{requests} reports");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_a_root_agent_is_not_root_and_cannot_change_its_task_folder() {
    if !rustix::process::getuid().is_root() {
        skip!("needs root");
    }
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let script = "id -u; id -G; cat ../assignment.json 2>/dev/null; rm -f ../output.log 2>/dev/null; \
                  touch here && echo message > /dev/stdout; ls";
    let key = bed.assign(shell(1, script));
    assert_eq!(bed.server.ended(key).await.exit_code, Some(0));
    let log = bed.server.log(key);
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0] != "0" && lines[1] == lines[0], "{log}");
    assert_eq!(lines[2..], ["message", "here"], "{log}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_use_the_shared_root_if_the_state_directory_is_private() {
    if !rustix::process::getuid().is_root() {
        skip!("needs root");
    }
    let bed = TestBed::new().await;
    let agent = TestBed::agent_with(bed.settings());
    let key = bed.assign(shell(1, "touch here && echo fine"));
    let ended = bed.server.ended(key).await;
    let tasks = std::fs::canonicalize(bed.dir.path().join("agent/tasks")).unwrap();
    assert_eq!((ended.exit_code, bed.server.log(key).as_str()), (Some(0), "fine\n"));
    assert!(!tasks.starts_with(bed.dir.path()), "{}", tasks.display());
    bed.server.until("a clean folder", |_| bed.folder_is_gone(key).then_some(())).await;
    agent.stop().await;
    assert!(!tasks.exists(), "{} was left behind", tasks.display());
}
