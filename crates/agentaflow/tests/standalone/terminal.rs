//! Job output on a terminal, which `script` of util-linux provides.

use std::process::{Command, Stdio};

use serde_json::json;

use crate::harness::Cluster;
use crate::skip::skip;

const ATTACK: &str = r"printf '\033]0;owned\007\033[31mred\033[0m\033[2J\n'";

#[test]
fn escape_sequences_of_a_job_are_harmless_on_a_terminal_and_unchanged_in_a_pipe() {
    if !has_terminal() {
        skip!("needs `script` of util-linux");
    }
    let mut cluster = Cluster::server(&[]);
    cluster.agent("box", &[]);
    cluster.wait_for_nodes(1);
    let id = cluster.submit(ATTACK, json!({}));
    cluster.wait_for_status(id, "completed");
    let id = id.to_string();
    for arguments in
        [vec!["logs", &id], vec!["logs", "-f", &id], vec!["run", "--", "sh", "-c", ATTACK]]
    {
        let piped = cluster.run(&arguments);
        let raw = "\u{1b}]0;owned\u{7}\u{1b}[31mred\u{1b}[0m\u{1b}[2J\n";
        assert!(piped.out.contains(raw), "{:?}", piped.out);
        let shown = on_terminal(&cluster, &arguments);
        assert!(shown.contains("␛]0;owned␇\u{1b}[31mred\u{1b}[0m␛[2J"), "{shown:?}");
        assert!(!shown.contains("\u{1b}]0;owned"), "{shown:?}");
    }
}

/// The agent sends the output in two pieces.
#[test]
fn an_escape_sequence_with_a_pause_is_harmless_on_a_terminal() {
    if !has_terminal() {
        skip!("needs `script` of util-linux");
    }
    let mut cluster = Cluster::server(&[]);
    cluster.agent("box", &[]);
    cluster.wait_for_nodes(1);
    let command = r"printf 'a\302'; sleep 3; printf '\2332Jb\033[08mc\342\200\256d\n'";
    let id = cluster.submit(command, json!({}));
    cluster.wait_for_status(id, "running");
    let shown = on_terminal(&cluster, &["logs", "-f", &id.to_string()]);
    assert!(shown.contains("a\u{fffd}2Jb␛[08mc\u{fffd}d"), "{shown:?}");
}

/// The server rejects control characters in names, but not in commands, and an error names the program.
#[test]
fn names_and_errors_of_a_job_are_harmless_on_a_terminal() {
    if !has_terminal() {
        skip!("needs `script` of util-linux");
    }
    let mut cluster = Cluster::server(&[]);
    cluster.agent("box", &[]);
    cluster.wait_for_nodes(1);
    let program = "no-tool\u{1b}]0;owned\u{7}\u{9b}2J";
    let job = json!({"job_name": "evil\u{202e}gnp", "runtime": "process", "command": [program]});
    let id = cluster.post("/gpu-workers/jobs/", &job).ok()["id"].as_i64().unwrap();
    cluster.wait_for_status(id, "failed");
    let id = id.to_string();
    let shown = |arguments: &[&str]| on_terminal(&cluster, arguments);
    for (arguments, has_name, has_program) in [
        (vec!["get", "jobs"], true, false),
        (vec!["describe", "job", &id], true, true),
        (vec!["events", &id], false, true),
        (vec!["events"], false, true),
        (vec!["events", "--follow", &id], false, true),
        (vec!["logs", &id], false, false),
        (vec!["explain", &id], false, false),
    ] {
        let text = shown(&arguments);
        for raw in ["\u{1b}]", "\u{7}", "\u{9b}", "\u{202e}"] {
            assert!(!text.contains(raw), "{arguments:?}: {text:?}");
        }
        assert!(!has_name || text.contains("evil"), "{arguments:?}: {text:?}");
        assert!(!has_program || text.contains("no-tool"), "{arguments:?}: {text:?}");
    }
}

fn has_terminal() -> bool {
    Command::new("script").arg("--version").stdout(Stdio::null()).status().is_ok()
}

/// Output of a command whose stdout and stderr are a terminal.
fn on_terminal(cluster: &Cluster, arguments: &[&str]) -> String {
    let plain = cluster.cli(arguments);
    let quoted =
        |text: &std::ffi::OsStr| format!("'{}'", text.to_str().unwrap().replace('\'', r"'\''"));
    let line: Vec<String> =
        std::iter::once(plain.get_program()).chain(plain.get_args()).map(quoted).collect();
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line.join(" "), "/dev/null"]);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    let shown = script.stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&shown.stdout).into_owned()
}
