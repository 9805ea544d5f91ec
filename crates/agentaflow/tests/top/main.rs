//! `agentaflow top` with a real server, a pseudo-terminal, keys and signals.

#[path = "../standalone/harness.rs"]
#[allow(dead_code, reason = "a part of it is for other tests")]
mod harness;
#[path = "../standalone/http.rs"]
#[allow(dead_code, reason = "a part of it is for other tests")]
mod http;
#[path = "../../../../tests/ports.rs"]
mod ports;
#[path = "../standalone/procs.rs"]
#[allow(dead_code, reason = "a part of it is for other tests")]
mod procs;
#[path = "../../../console/tests/support/pty.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pty;

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::Cluster;
use crate::pty::Terminal;

const ESC: &str = "\u{1b}";
const TAB: &str = "\t";

/// A server with two simulated GPUs, the running job `alpha` and the pending job `beta`.
fn busy() -> (Cluster, i64, i64) {
    let cluster = Cluster::up(&[]);
    // The job also tries to clear the screen.
    let script = "while :; do printf 'step \\033[2J\\033[31mred\\n'; sleep 0.2; done";
    let alpha = cluster.submit(script, json!({"job_name": "alpha", "gpu_count": 1}));
    cluster.wait_for_status(alpha, "running");
    let beta = cluster.submit("sleep 60", json!({"job_name": "beta", "gpu_count": 2}));
    (cluster, alpha, beta)
}

fn top(cluster: &Cluster, columns: u16, rows: u16) -> Terminal {
    let terminal = Terminal::start(&cluster.cli(&["top", "--interval", "200ms"]), columns, rows);
    terminal.wait_for("quit");
    assert!(terminal.is_taken(), "it did not take the screen");
    terminal
}

#[test]
fn keys_show_logs_reasons_help_and_filters_and_q_gives_the_terminal_back() {
    let (cluster, _, _) = busy();
    let mut terminal = top(&cluster, 80, 24);
    for part in ["SIMULATED", "alpha", "beta", "1 running", "1 pending", "live", "Queue"] {
        terminal.wait_for(part);
    }
    terminal.press(TAB);
    terminal.wait_for("Logs of 1 alpha");
    terminal.wait_for("step red");
    terminal.press("l");
    terminal.wait_for("follow");
    terminal.press(ESC);
    terminal.wait_for("Queue");
    terminal.press(TAB);
    terminal.wait_for("Pending reason of 2 beta");
    terminal.press("e");
    terminal.wait_for("Position 1 of 1");
    terminal.press(ESC);
    terminal.press("?");
    terminal.wait_for("Shift-Tab");
    terminal.press(ESC);
    terminal.wait_until_gone("Shift-Tab");
    terminal.press("/bet");
    terminal.wait_until_gone("alpha");
    terminal.wait_for("beta");
    terminal.press("\r");
    terminal.press(ESC);
    terminal.wait_for("alpha");
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
    assert!(!terminal.contents().contains("alpha"), "{}", terminal.contents());
}

#[test]
fn a_job_is_cancelled_after_yes_and_stays_after_no() {
    let (cluster, _, beta) = busy();
    let mut terminal = top(&cluster, 80, 24);
    terminal.wait_for("beta");
    terminal.press("\t\t");
    terminal.wait_for("Pending reason of 2 beta");
    terminal.press("c");
    terminal.wait_for("Cancel job 2 beta");
    terminal.press("n");
    terminal.wait_until_gone("Cancel job");
    assert_eq!(cluster.job(beta)["status"], "pending");
    terminal.press("c");
    terminal.wait_for("Cancel job 2 beta");
    terminal.press("y");
    cluster.wait_for_status(beta, "cancelled");
    terminal.wait_for("0 pending");
    terminal.wait_for("cancelled");
    // Ctrl-C.
    terminal.press("\u{3}");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn an_unschedulable_job_is_a_warning_on_a_terminal() {
    let cluster = Cluster::up(&[]);
    let handed_in = |line: &[&str], number: &str| {
        let mut terminal = Terminal::start(&cluster.cli(line), 120, 24);
        terminal.wait_for(number);
        assert_eq!(terminal.end().code(), Some(0), "{}", terminal.contents());
        terminal
    };
    let warning = "warning: the job cannot start on the current nodes";
    handed_in(&["submit", "--gpus", "16", "--", "true"], "1").wait_for(warning);
    handed_in(&["run", "-d", "--gpus", "16", "--", "true"], "2").wait_for(warning);
    let calm = handed_in(&["submit", "--gpus", "1", "--", "true"], "3");
    assert!(!calm.contents().contains("warning"), "{}", calm.contents());
    let quiet = handed_in(&["run", "-d", "--quiet", "--gpus", "16", "--", "true"], "4");
    assert!(!quiet.contents().contains("warning"), "{}", quiet.contents());
}

#[test]
fn the_view_follows_the_terminal_size() {
    let (cluster, _, _) = busy();
    let mut terminal = top(&cluster, 80, 24);
    for (columns, rows) in [(120, 40), (40, 10), (200, 60), (80, 24)] {
        terminal.resize(columns, rows);
        terminal.wait(&format!("the keys in row {rows} of {columns}×{rows}"), |shown| {
            let lines: Vec<_> = shown.lines().collect();
            lines.len() == usize::from(rows) && lines[usize::from(rows) - 1].contains("quit")
        });
    }
    terminal.resize(20, 5);
    terminal.wait_for("too small");
    terminal.resize(80, 24);
    terminal.wait_for("alpha");
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn signals_restore_the_terminal() {
    let (cluster, _, _) = busy();
    for (signal, code) in
        [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130), (Signal::QUIT, 131)]
    {
        let mut terminal = top(&cluster, 80, 24);
        terminal.signal(signal);
        assert_eq!(terminal.end().code(), Some(code), "{signal:?}");
        terminal.assert_restored();
    }
}

#[test]
fn a_lost_server_shows_a_banner_over_the_last_data() {
    let (mut cluster, _, _) = busy();
    let mut terminal = top(&cluster, 80, 24);
    terminal.wait_for("alpha");
    cluster.server.kill();
    terminal.wait_for("cannot reach");
    terminal.wait_for(" old");
    terminal.wait_for("alpha");
    cluster.restart_server();
    terminal.wait_until_gone("cannot reach");
    terminal.wait_for("live");
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn suspending_returns_the_terminal_to_the_shell() {
    let (cluster, _, _) = busy();
    let top = cluster.cli(&["top", "--interval", "200ms"]);
    let mut shell = std::process::Command::new("bash");
    let program = top.get_program().to_str().unwrap();
    shell.args([
        "--norc",
        "-ic",
        &format!("{program} top --interval 200ms; echo aside; read; fg; echo over"),
    ]);
    for (name, value) in top.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let mut terminal = Terminal::start(&shell, 80, 24);
    terminal.wait_for("alpha");
    terminal.press("\u{1a}");
    // The shell continues its script, which resumes `top` after a key.
    terminal.wait_for("aside");
    assert!(!terminal.contents().contains("alpha"), "{}", terminal.contents());
    terminal.press("\r");
    terminal.wait_for("alpha");
    // Redraw after the resume.
    terminal.press("\u{c}");
    terminal.press("?");
    terminal.wait_for("Shift-Tab");
    terminal.press(ESC);
    terminal.wait_until_gone("Shift-Tab");
    terminal.press("q");
    terminal.wait_for("over");
    assert!(!terminal.contents().contains("error"), "{}", terminal.contents());
    terminal.assert_restored();
}

#[test]
fn once_and_pipes_print_one_snapshot() {
    let (cluster, _, _) = busy();
    let piped = cluster.run(&["top"]);
    assert_eq!(piped.code, Some(0), "{}", piped.err);
    for part in ["SIMULATED", "alpha", "beta", "1 job running, 1 pending", "POWER"] {
        assert!(piped.out.contains(part), "`{part}` is not in:\n{}", piped.out);
    }
    assert!(!piped.out.contains('\u{1b}'), "{:?}", piped.out);
    let mut once = Terminal::start(&cluster.cli(&["top", "--once"]), 80, 24);
    assert_eq!(once.end().code(), Some(0));
    once.wait_for("alpha");
    once.assert_restored();
}

#[test]
fn an_unreachable_server_is_an_error_without_a_screen() {
    let cluster = Cluster::up(&[]);
    let no_server = format!("http://127.0.0.1:{}", harness::free_port());
    let mut command = cluster.cli(&["top"]);
    command.env("AGENTAFLOW_SERVER", no_server);
    let mut terminal = Terminal::start(&command, 80, 24);
    assert_eq!(terminal.end().code(), Some(5));
    terminal.wait_for("start a server with");
    terminal.assert_restored();
    let piped = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(piped.status.code(), Some(5));
}

#[test]
fn colours_and_wide_glyphs_can_be_turned_off() {
    let (cluster, _, _) = busy();
    let mut command = cluster.cli(&["top", "--ascii"]);
    command.env("NO_COLOR", "1");
    let mut terminal = Terminal::start(&command, 120, 40);
    terminal.wait_for("alpha");
    assert!(terminal.contents().is_ascii(), "{}", terminal.contents());
    terminal.press("q");
    terminal.end();
    let mut command = cluster.cli(&["top"]);
    command.env("LC_ALL", "C");
    let mut terminal = Terminal::start(&command, 80, 24);
    terminal.wait_for("alpha");
    assert!(terminal.contents().is_ascii(), "{}", terminal.contents());
    terminal.press("q");
    terminal.end();
}
