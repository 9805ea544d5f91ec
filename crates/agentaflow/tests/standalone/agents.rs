//! `agentaflow agent` on the command line.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::harness::{Cluster, Ran, SOON, eventually, free_port, program};
use crate::http::Connection;

#[test]
fn documented_environment_variables_configure_the_agent() {
    let cluster = Cluster::server(&[]);
    let port = free_port();
    let token = std::fs::read_to_string(cluster.path("data/registration-token")).unwrap();
    let mut agent = program(&cluster.path("agent-home"))
        .args(["agent", "--allow-process", "--sim-gpus", "1", "--docker-socket", "/no/such/socket"])
        .args(["--health-listen", &format!("127.0.0.1:{port}")])
        .env("API_ENDPOINT", format!("http://127.0.0.1:{}/gpu-workers", cluster.port))
        .env("REGISTRATION_TOKEN", token.trim())
        .env("NODE_NAME", "from-environment")
        .env("POD_NAME", "pod-7")
        .env("LOG_LEVEL", "INFO")
        .env("HEARTBEAT_INTERVAL", "1")
        .env("MAX_CONCURRENT_JOBS", "3")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    cluster.wait_for_nodes(1);
    let node = cluster.get("/gpu-workers/nodes/").ok()[0].clone();
    assert_eq!(
        (&node["node_name"], &node["max_concurrent_jobs"]),
        (&json!("from-environment"), &json!(3))
    );
    for path in ["/health", "/ready"] {
        eventually(path, SOON, || {
            let answer = Connection::open(port, None).ok()?.call("GET", path, None).ok()?;
            (answer.status == 200).then_some(())
        });
    }
    kill_process(Pid::from_child(&agent), Signal::TERM).unwrap();
    assert!(agent.wait().unwrap().success());
}

#[test]
fn missing_or_unsafe_options_are_rejected_at_start() {
    let home = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], words: &str| {
        let ran = Ran::from(program(home.path()).arg("agent").args(arguments).output().unwrap());
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(words), "{arguments:?}: {}", ran.err);
    };
    let server = ["--server", "http://127.0.0.1:1"];
    refused(&[], "missing server");
    refused(&[&server[..], &["--docker-socket", "/no/such"]].concat(), "no runtime");
    refused(&[&server[..], &["--runtime", "process"]].concat(), "requires --allow-process");
    refused(&[&server[..], &["--runtime", "podman"]].concat(), "docker, process or kubernetes");
    let of_cluster: [(&[&str], &str); 3] = [
        (&["kubernetes"], "requires a node"),
        (&["kubernetes,docker"], "cannot be combined with other runtimes"),
        (&["kubernetes", "--sim-gpus", "2"], "cannot be combined with --sim-gpus"),
    ];
    for (extra, words) in of_cluster {
        refused(&[&server[..], &["--runtime"], extra].concat(), words);
    }
    refused(&[&server[..], &["--allow-process", "--sim-gpus", "9999"]].concat(), "GPU");
    refused(&[&server[..], &["--sim-model", "H100"]].concat(), "--sim-gpus");
}

#[test]
fn an_agent_retries_until_its_server_starts() {
    let mut cluster = Cluster::server(&[]);
    cluster.server.kill();
    cluster.agent("early", &[]);
    std::thread::sleep(Duration::from_millis(700));
    cluster.restart_server();
    cluster.wait_for_nodes(1);
}

#[test]
fn run_comes_back_to_its_job_after_the_server_was_restarted() {
    let mut cluster = Cluster::server(&["--lease", "30s"]);
    cluster.agent("one", &[]);
    cluster.wait_for_nodes(1);
    let end = cluster.shared("end");
    let script = format!("echo begun; until [ -e {end} ]; do sleep 0.05; done; echo done; exit 4");
    let child = cluster
        .cli(&["run", "--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("it runs", SOON, || {
        let answer = cluster.get("/gpu-workers/jobs/1/logs");
        answer.body.contains("begun").then_some(())
    });
    cluster.server.kill();
    std::thread::sleep(Duration::from_millis(300));
    cluster.restart_server();
    std::fs::write(end, "").unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.out.as_str()), (Some(4), "begun\ndone\n"), "{}", ran.err);
}
