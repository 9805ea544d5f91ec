//! The command line with jobs that run on a kubelet.

use agentaflow_kube_core::names::SCHEDULER_NAME;
use serde_json::json;

use super::real::{IMAGE, LISTENS, RealNode, UNTIL_TOLD, go_on, lent};
use crate::PROGRAM;
use crate::command_line::CommandLine;
use crate::plans::{alone, in_phase, workload};
use crate::support::{Proxy, Scheduler, Share, wait_for};

/// A scheduler with the default schedulerName.
async fn our_scheduler(share: &Share) -> Scheduler {
    Scheduler::start(PROGRAM, share, &["--scheduler-name", SCHEDULER_NAME]).await
}

fn line<'a>(before: &[&'a str], script: &'a str) -> Vec<&'a str> {
    [before, &[IMAGE, "--", "sh", "-c", script]].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn run_prints_container_logs_and_exits_with_its_code() {
    let (_lent, _alone) = (lent().await, alone().await);
    let share = Share::new().await;
    let _node = RealNode::join(&share, 2).await;
    let scheduler = our_scheduler(&share).await;
    let me = CommandLine::new(&share, &scheduler);
    let script = "echo on $NVIDIA_VISIBLE_DEVICES; seq 1 2000; exit 7";
    let output = me.run(&line(&["run", "--gpus", "1"], script));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    let numbers: Vec<String> = (1..=2000).map(|number| number.to_string()).collect();
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("on GPU-"), "{}", lines[0]);
    assert_eq!(lines[1..], numbers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn logs_follow_a_container_as_it_writes_and_cancel_ends_it() {
    let (_lent, _alone) = (lent().await, alone().await);
    let share = Share::new().await;
    let _node = RealNode::join(&share, 1).await;
    let scheduler = our_scheduler(&share).await;
    let me = CommandLine::new(&share, &scheduler);
    let script = "trap exit TERM; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.1; done";
    let detached = line(&["run", "-d", "--gpus", "1", "--name", "talks"], script);
    assert_eq!(me.says(&detached), "talks\n");
    let mut follows = me.starts(&share, &["logs", "-f", "talks"]);
    follows.says("line 1\n").await;
    follows.says("line 5\n").await;
    assert!(follows.runs());
    let last = me.says(&["logs", "--tail", "1", "talks"]);
    assert_eq!(last.lines().count(), 1, "{last}");
    me.says(&["cancel", "talks"]);
    follows.ended().await;
    share.wait_deleted("talks-0").await;
    wait_for("the workload is gone", async || {
        workload(&share, "talks").await.map_or(Ok(()), |object| Err(object["status"].to_string()))
    })
    .await;
    scheduler.counts("agentaflow_gpu_available", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn a_broken_connection_loses_and_repeats_no_log_line() {
    let (_lent, _alone) = (lent().await, alone().await);
    let share = Share::new().await;
    let _node = RealNode::join(&share, 1).await;
    let scheduler = our_scheduler(&share).await;
    let me = CommandLine::new(&share, &scheduler);
    // Several lines have the same second, and one has no newline.
    let script = "trap exit TERM; i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo line $i; \
                  [ $((i % 3)) = 0 ] && sleep 0.1; done; echo -n end";
    let proxy = Proxy::start(&share.cluster.kubeconfig).await;
    let kubeconfig = proxy.write_kubeconfig(share.file("proxied")).display().to_string();
    let cluster = ["--kubeconfig", &kubeconfig, "--namespace", &share.namespace];
    let begin = ["run", "--quiet", "--gpus", "1", "--name", "talks"];
    let mut run = me.starts(&share, &line(&[&begin[..], &cluster].concat(), script));
    for seen in ["line 6\n", "line 30\n"] {
        run.says(seen).await;
        proxy.unplug();
        proxy.plug();
    }
    let status = run.ended().await;
    let mut wanted: Vec<String> = (1..=60).map(|number| format!("line {number}")).collect();
    wanted.push("end".to_owned());
    assert_eq!(run.log(), wanted.join("\n"));
    assert_eq!(status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn a_recreated_pod_of_a_gang_repeats_no_log_line() {
    let (_lent, _alone) = (lent().await, alone().await);
    let share = Share::new().await;
    let _node = RealNode::join(&share, 2).await;
    let scheduler = our_scheduler(&share).await;
    let me = CommandLine::new(&share, &scheduler);
    let script = format!("{LISTENS}; echo begun; {UNTIL_TOLD}; echo done");
    let begin = ["run", "--quiet", "--gpus", "1", "--replicas", "2", "--name", "gang"];
    let mut run = me.starts(&share, &line(&begin, &script));
    let count = |log: &str, line| log.lines().filter(|shown| *shown == line).count();
    run.says("[0] begun\n").await;
    run.says("[1] begun\n").await;
    share.delete_pod("gang-1").await;
    wait_for("the pod made anew is shown, too", async || {
        let log = run.log();
        if count(&log, "[1] begun") == 2 { Ok(()) } else { Err(log) }
    })
    .await;
    for (pod, _) in share.pods_of("gang").await {
        go_on(&share, &pod).await;
    }
    assert_eq!(run.ended().await.code(), Some(0), "{}", run.log());
    let log = run.log();
    assert_eq!((count(&log, "[0] begun"), count(&log, "[0] done")), (1, 1), "{log}");
    assert_eq!((count(&log, "[1] begun"), count(&log, "[1] done")), (2, 1), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn a_signal_to_run_stops_the_container() {
    let (_lent, _alone) = (lent().await, alone().await);
    let share = Share::new().await;
    let _node = RealNode::join(&share, 1).await;
    let scheduler = our_scheduler(&share).await;
    let me = CommandLine::new(&share, &scheduler);
    let script = "trap exit TERM; echo begun; sleep 300 & wait";
    let words = line(&["run", "--gpus", "1", "--name", "long"], script);
    let mut run = me.starts(&share, &words);
    run.says("begun").await;
    run.signal("INT");
    let status = run.ended().await;
    assert_eq!(status.code(), Some(130), "{}", run.log());
    share.wait_deleted("long-0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn an_oom_kill_is_explained() {
    let (_lent, _alone) = (lent().await, alone().await);
    let share = Share::new().await;
    let _node = RealNode::join(&share, 1).await;
    let scheduler = our_scheduler(&share).await;
    let me = CommandLine::new(&share, &scheduler);
    let words = ["submit", "--gpus", "1", "--name", "greedy", "--memory", "32M"];
    // `tail` buffers endless input.
    assert_eq!(me.says(&line(&words, "tail -c 1000000000 /dev/zero")), "greedy\n");
    in_phase(&share, "greedy", "Failed").await;
    let job = me.json(&["status", "greedy", "-o", "json"]);
    assert_eq!((&job["end_reason"], &job["exit_code"]), (&json!("OutOfMemory"), &json!(137)));
    let explanation = me.json(&["explain", "greedy", "-o", "json"]);
    assert_eq!(explanation["end_reason"], json!("OutOfMemory"), "{explanation}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn an_image_pull_failure_is_reported_while_pending() {
    let (_lent, _alone) = (lent().await, alone().await);
    let share = Share::new().await;
    let _node = RealNode::join(&share, 1).await;
    let scheduler = our_scheduler(&share).await;
    let me = CommandLine::new(&share, &scheduler);
    // A registry that refuses every connection.
    let image = "127.0.0.1:9/missing/image:1";
    me.says(&["submit", "--gpus", "1", "--name", "stuck", image, "--", "true"]);
    wait_for("the end reason of the image", async || {
        let explanation = me.json(&["explain", "stuck", "-o", "json"]);
        let is_found = explanation["end_reason"] == "ImagePull";
        if is_found { Ok(()) } else { Err(explanation.to_string()) }
    })
    .await;
}
