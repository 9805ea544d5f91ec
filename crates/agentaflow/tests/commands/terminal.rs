//! `agentaflow run` on a terminal, and signals without one.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::harness::{Cluster, PROGRAM};
use crate::pty::Terminal;

const INTERRUPT: &str = "\u{3}";

/// A server whose two simulated GPUs are used by job 1.
fn full() -> Cluster {
    let cluster = Cluster::up(&[]);
    let taken = cluster.submit("sleep 600", json!({"job_name": "taken", "gpu_count": 2}));
    cluster.wait_for_status(taken, "running");
    cluster
}

fn run_on(cluster: &Cluster, columns: u16, words: &[&str]) -> Terminal {
    let words: Vec<_> = ["run", "--gpus", "1"].iter().chain(words).copied().collect();
    Terminal::start(&cluster.cli(&words), columns, 24)
}

fn lines_with(terminal: &Terminal, part: &str) -> usize {
    terminal.contents().lines().filter(|line| line.contains(part)).count()
}

#[test]
fn a_pending_job_has_one_status_line_until_its_first_output() {
    let cluster = full();
    let mut terminal = run_on(&cluster, 100, &["--", "sh", "-c", "echo 'it is done'"]);
    terminal.wait_for("Job 2 pending, position 1 of 1");
    terminal.wait_for("Expected to stay pending, $2.00 per hour");
    // The line is updated in place.
    let other = cluster.submit("true", json!({"gpu_count": 1, "priority": 9}));
    terminal.wait_for("Job 2 pending, position 2 of 2");
    assert_eq!(lines_with(&terminal, "Job 2 pending"), 1, "{}", terminal.contents());
    assert_eq!(cluster.run(&["cancel", &other.to_string(), "1"]).code, Some(0));
    assert_eq!(terminal.end().code(), Some(0));
    terminal.wait_for("it is done");
    terminal.wait_until_gone("Job 2 pending");
    let shown = terminal.contents();
    assert!(shown.lines().any(|line| line.trim_end() == "it is done"), "{shown}");
}

#[test]
fn the_line_is_cut_to_the_terminal_and_never_wraps() {
    let cluster = full();
    let mut terminal = run_on(&cluster, 40, &["--", "true"]);
    terminal.wait_for("Job 2 pending, position 1 of 1");
    terminal.press(INTERRUPT);
    terminal.wait_for("Detached; job 2 keeps running");
    assert_eq!(terminal.end().code(), Some(130));
    assert_eq!(cluster.job(2)["status"], "pending");
    assert_eq!(lines_with(&terminal, "Job 2 pending"), 1, "{}", terminal.contents());
}

#[test]
fn a_second_interrupt_cancels_the_job_and_reports_its_end() {
    let cluster = full();
    let mut terminal = run_on(&cluster, 100, &["--", "true"]);
    terminal.wait_for("Job 2 pending, position 1 of 1");
    terminal.press(INTERRUPT);
    terminal.wait_for("Press Ctrl-C again within 3 seconds to cancel the job");
    terminal.press(INTERRUPT);
    terminal.wait_for("Cancelling job 2");
    assert_eq!(terminal.end().code(), Some(130));
    terminal.wait_for("Job 2 cancelled");
    assert_eq!(cluster.job(2)["status"], "cancelled");
}

#[test]
fn a_terminal_that_cannot_rewrite_a_line_gets_lines() {
    let cluster = full();
    let mut command = cluster.cli(&["run", "--gpus", "1", "--", "true"]);
    command.env("TERM", "dumb");
    let mut terminal = Terminal::start(&command, 100, 24);
    terminal.wait_for("Job 2 pending, position 1 of 1");
    terminal.press(INTERRUPT);
    assert_eq!(terminal.end().code(), Some(130));
}

#[test]
fn ctrl_c_works_while_the_server_does_not_respond() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let start = |words: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(words).env("AGENTAFLOW_SERVER", &address).env("AGENTAFLOW_TOKEN", "x");
        Terminal::start(&command, 100, 24)
    };
    // During the forecast nothing is submitted.
    let mut terminal = start(&["run", "--", "true"]);
    let asked = silent.accept().unwrap();
    terminal.press(INTERRUPT);
    assert_eq!(terminal.end().code(), Some(130));
    drop(asked);
    let mut terminal = start(&["run", "--quiet", "--", "true"]);
    let _handed_in = silent.accept().unwrap();
    terminal.press(INTERRUPT);
    terminal.wait_for("Waiting for the submission");
    terminal.press(INTERRUPT);
    assert_eq!(terminal.end().code(), Some(130));
    terminal.wait_for("The job may have been submitted");
}

/// Without a terminal, several signals at once cancel the job once, and `run` waits for its end.
#[test]
fn signals_without_a_terminal_stop_the_job_however_many_come() {
    let cluster = full();
    for (id, signal) in [(2, Signal::TERM), (3, Signal::INT)] {
        let mut command: Command = cluster.cli(&["run", "--gpus", "1", "--", "true"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        cluster.wait_for_status(id, "pending");
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(400) {
            // The process may have exited.
            let _ = kill_process(Pid::from_child(&child), signal);
            sleep(Duration::from_millis(5));
        }
        let ended = child.wait_with_output().unwrap();
        let output = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(130), "{output}");
        assert!(output.contains(&format!("Cancelling job {id}")), "{output}");
        assert!(output.ends_with("cancelled before it started\n"), "{output}");
        assert_eq!(cluster.job(id)["status"], "cancelled");
    }
}
