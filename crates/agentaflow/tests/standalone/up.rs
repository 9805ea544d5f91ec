//! `agentaflow up` and the first commands after it.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::harness::{Cluster, PROGRAM, Ran, SOON, eventually, free_port, program};

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn within_two_seconds_a_command_prints_its_output_and_ends_with_its_code() {
    let measured = || {
        let since = Instant::now();
        let cluster = Cluster::up(&[]);
        let ran = cluster.run(&["run", "--", "sh", "-c", "echo hi; exit 3"]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(3), "hi\n"), "{}", ran.err);
        since.elapsed()
    };
    // Other tests run at the same time: one success of three suffices.
    let times: Vec<Duration> = (0..3).map(|_| measured()).collect();
    assert!(times.iter().any(|took| *took < Duration::from_secs(2)), "took {times:?}");
}

#[test]
fn secrets_are_files_of_their_owner_only_and_the_context_is_written() {
    let cluster = Cluster::up(&[]);
    let data = cluster.path("data");
    assert_eq!(mode(&data), 0o700);
    for secret in ["admin-token", "registration-token", "secret-key", "jwt-key"] {
        assert_eq!(mode(&data.join(secret)), 0o600, "{secret}");
    }
    let context = cluster.path("config/agentaflow/config.toml");
    assert_eq!(mode(&context), 0o600);
    let text = fs::read_to_string(context).unwrap();
    assert!(text.contains(&format!("http://127.0.0.1:{}", cluster.port)), "no URL");
    assert!(text.contains(&cluster.token()), "no token");
    let shown = cluster.run(&["context", "list"]);
    assert!(shown.out.starts_with("* local"), "{}", shown.out);
    assert!(!shown.out.contains(&cluster.token()), "a token is shown");
}

#[test]
fn the_summary_has_address_simulation_and_first_command() {
    let cluster = Cluster::up(&[]);
    for part in ["http://127.0.0.1:", "SIMULATED", "admin-token", "agentaflow run -- echo hello"] {
        eventually(part, SOON, || cluster.server.output().contains(part).then_some(()));
    }
    let said = cluster.server.output();
    assert!(!said.contains(&cluster.token()), "the token is on the screen");
    let nodes = cluster.get("/gpu-workers/nodes/").ok();
    assert_eq!((&nodes[0]["simulated"], &nodes[0]["gpu_count"]), (&json!(true), &json!(2)));
}

#[test]
fn a_job_on_simulated_gpus_gets_no_device_and_a_notice() {
    let cluster = Cluster::up(&[]);
    let ran =
        cluster.run(&["run", "--gpus", "1", "--", "sh", "-c", "echo \"[$CUDA_VISIBLE_DEVICES]\""]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.to_lowercase().contains("simulated"), "{}", ran.out);
    assert!(ran.out.ends_with("[]\n"), "{}", ran.out);
}

/// The program without root privileges: as `nobody` if the tests run as root.
fn unprivileged(home: &Path, copy: &Path) -> Command {
    let plain = program(home);
    if !rustix::process::geteuid().is_root() {
        return plain;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(copy);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

#[test]
fn without_root_jobs_run_as_the_user() {
    let home = tempfile::Builder::new().prefix("agentaflow-").tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // Other users may lack access to the build directory.
    let copy = home.path().join("agentaflow");
    fs::hard_link(PROGRAM, &copy).or_else(|_| fs::copy(PROGRAM, &copy).map(drop)).unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let data = home.path().join("data").display().to_string();
    let start = ["up", "--sim-gpus", "2", "--heartbeat", "300ms", "--listen", &listen];
    let log = fs::File::create(home.path().join("log")).unwrap();
    let mut up = unprivileged(home.path(), &copy)
        .args(start)
        .args(["--data-dir", &data])
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let run = |arguments: &[&str]| {
        let mut command = unprivileged(home.path(), &copy);
        Ran::from(command.args(arguments).stdin(Stdio::null()).output().unwrap())
    };
    let since = Instant::now();
    let mut ran = run(&["run", "--", "id", "-u"]);
    while ran.code != Some(0) && since.elapsed() < SOON && up.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(50));
        ran = run(&["run", "--", "id", "-u"]);
    }
    // Only an agent that runs as root separates the temporary files of jobs.
    let shared = run(&["run", "--", "cat", &home.path().join("log").display().to_string()]);
    let refused = run(&["up", "--process-user", "daemon", "--data-dir", &format!("{data}-2")]);
    // The process may have exited, which is checked below.
    let _ = kill_process(Pid::from_child(&up), Signal::TERM);
    let status = up.wait().unwrap();
    let message = fs::read_to_string(home.path().join("log")).unwrap();
    let user = rustix::process::geteuid();
    let user = if user.is_root() { 65534 } else { user.as_raw() };
    assert_eq!(ran.out, format!("{user}\n"), "{}\n{message}", ran.err);
    assert_eq!(shared.code, Some(0), "{}", shared.err);
    assert!(status.success(), "{status}: {message}");
    assert!(message.contains("processes as your user"), "{message}");
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("only root can run jobs as another user"), "{}", refused.err);
}

#[test]
fn a_clean_stop_takes_less_than_five_seconds_and_costs_a_job_no_retry() {
    let mut cluster = Cluster::up(&[]);
    let started = cluster.shared("started");
    // The job ignores SIGTERM, so that `up` must kill it within the limit.
    let script = format!("trap '' TERM; echo x >> {started}; while :; do sleep 0.1; done");
    let id = cluster.submit(&script, json!({}));
    cluster.wait_for_status(id, "running");
    eventually("it began", Duration::from_secs(5), || Path::new(&started).exists().then_some(()));
    let (status, took) = cluster.server.terminate();
    assert!(status.success(), "{status}: {}", cluster.server.output());
    // Extra time for a busy machine.
    assert!(took < Duration::from_secs(8), "took {took:?}");
    cluster.restart_server();
    cluster.wait_for_status(id, "running");
    eventually("it began again", Duration::from_secs(5), || {
        (fs::read_to_string(&started).unwrap() == "x\nx\n").then_some(())
    });
    assert_eq!(cluster.job(id)["retries_used"], 0);
}

#[test]
fn a_busy_port_is_named_with_the_fix() {
    let cluster = Cluster::up(&[]);
    let other = tempfile::tempdir().unwrap();
    let listen = format!("127.0.0.1:{}", cluster.port);
    let data = other.path().join("data").display().to_string();
    let ran = Ran::from(
        program(other.path())
            .args(["up", "--listen", &listen, "--data-dir", &data])
            .output()
            .unwrap(),
    );
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    let port = cluster.port.to_string();
    for part in [port.as_str(), "127.0.0.1", "in use by `agentaflow`", "--listen"] {
        assert!(ran.err.contains(part), "{}", ran.err);
    }
}

#[test]
fn a_second_server_on_the_same_directory_is_rejected() {
    let cluster = Cluster::up(&[]);
    let listen = format!("127.0.0.1:{}", free_port());
    let data = cluster.path("data").display().to_string();
    let ran = Ran::from(
        program(&cluster.path(""))
            .args(["server", "--listen", &listen, "--data-dir", &data])
            .output()
            .unwrap(),
    );
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(
        ran.err.contains("another agentaflow server") && ran.err.contains(&data),
        "{}",
        ran.err
    );
}

#[test]
fn the_job_is_stopped_by_a_signal_to_run_without_a_terminal() {
    let cluster = Cluster::up(&[]);
    let mut child = cluster
        .cli(&["run", "--", "sh", "-c", "echo on; sleep 60"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 3];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(128 + 15), "{}", ran.err);
    assert_eq!(cluster.job(1)["status"], "cancelled");
}

#[test]
fn commands_print_text_and_json() {
    let cluster = Cluster::up(&[]);
    let submitted = cluster.run(&["submit", "--name", "greeting", "--", "echo", "hello"]);
    let id = submitted.out.trim().to_owned();
    cluster.wait_for_status(id.parse().unwrap(), "completed");
    let out = |arguments: &[&str]| {
        let ran = cluster.run(arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.err);
        ran.out
    };
    assert_eq!(out(&["logs", &id]), "hello\n");
    assert_eq!(out(&["logs", &id, "-f", "--tail", "1"]), "hello\n");
    assert!(out(&["jobs"]).contains("greeting"));
    assert!(out(&["status"]).contains("SIMULATED"));
    assert!(out(&["status", &id]).contains("completed"));
    assert!(out(&["events", &id]).contains("Submitted"));
    assert!(out(&["explain", &id, "-o", "json"]).contains("\"status\": \"completed\""));
    assert!(out(&["what-if", "--gpus", "64", "--", "true"]).contains("64"));
    for list in
        [&["jobs", "-o", "json"][..], &["nodes", "-o", "json"], &["events", &id, "-o", "json"]]
    {
        assert!(serde_json::from_str::<Vec<serde_json::Value>>(&out(list)).is_ok(), "{list:?}");
    }
}

#[test]
fn failures_have_codes_of_their_own() {
    let cluster = Cluster::up(&[]);
    let missing = cluster.run(&["status", "999"]);
    assert_eq!(missing.code, Some(3), "{}", missing.err);
    let here = format!("http://127.0.0.1:{}", cluster.port);
    let wrong = |command: &mut Command| {
        Ran::from(command.env("AGENTAFLOW_TOKEN", "wrong").output().unwrap())
    };
    // The token of the environment must not reach a context with its own token.
    assert_eq!(wrong(&mut cluster.cli(&["jobs"])).code, Some(0));
    let refused = wrong(cluster.cli(&["jobs"]).env("AGENTAFLOW_SERVER", &here));
    assert_eq!(refused.code, Some(4), "{}", refused.err);
    assert_eq!(cluster.run(&["run"]).code, Some(2));
    let no_server = format!("http://127.0.0.1:{}", free_port());
    let away =
        Ran::from(cluster.cli(&["jobs"]).env("AGENTAFLOW_SERVER", &no_server).output().unwrap());
    assert_eq!(away.code, Some(5), "{}", away.err);
    assert!(away.err.contains("start a server with `agentaflow up`"), "{}", away.err);
    let run = Ran::from(
        cluster.cli(&["run", "--", "true"]).env("AGENTAFLOW_SERVER", &no_server).output().unwrap(),
    );
    assert_eq!(run.code, Some(125), "{}", run.err);
    let cannot = cluster.run(&["run", "--", "/no/such/program"]);
    assert_eq!(cannot.code, Some(125), "{}", cannot.err);
}
