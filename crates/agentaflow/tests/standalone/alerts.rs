//! Alerts of a server with real processes: rules, sinks, silences, restarts.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use jiff::ToSpan as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Cluster, SOON, eventually, free_port};
use crate::http::Connection;
use crate::receiver::{Received, Receiver};
use crate::skip::skip;

/// No delays; the tests must not depend on rules that the machine triggers, such as a full disk.
const FAST: &str = r#"
interval = "100ms"
group_wait = "0s"
group_interval = "0s"

[rules.disk]
enabled = false
[rules.node_silent]
for = "0s"
[rules.gpu_idle]
# Simulated GPUs of a job are busy.
warning = 1000
for = "0s"
keep = "0s"
[rules.utilization]
enabled = false
"#;

/// A configuration and the files of its secrets.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new(document: &str) -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(files.path("alerts.toml"), document).unwrap();
        files
    }

    /// One webhook with this URL.
    fn webhook(kind: &str, url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("url");
        fs::write(&file, url).unwrap();
        let sink = format!(
            "{FAST}\n[[sink]]\nname = \"ops\"\ntype = \"{kind}\"\nurl_file = \"{}\"\n",
            file.display()
        );
        fs::write(folder.path().join("alerts.toml"), sink).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn server(&self, more: &[&str]) -> Cluster {
        self.server_with(more, Vec::new())
    }

    fn server_with(&self, more: &[&str], environment: Vec<(String, String)>) -> Cluster {
        let config = self.path("alerts.toml").display().to_string();
        let mut extra = vec!["--alerts", config.as_str()];
        extra.extend(more);
        Cluster::server_with(&extra, environment)
    }
}

fn alerts(cluster: &Cluster) -> Vec<Value> {
    cluster.get("/alerts").ok()["alerts"].as_array().unwrap().clone()
}

fn find(cluster: &Cluster, kind: &str, state: &str) -> Option<Value> {
    alerts(cluster).into_iter().find(|alert| alert["kind"] == kind && alert["state"] == state)
}

#[track_caller]
fn wait_for(cluster: &Cluster, kind: &str, state: &str) -> Value {
    eventually(&format!("{kind} is {state}"), SOON, || find(cluster, kind, state))
}

fn is_about(kind: &'static str, status: &'static str) -> impl Fn(&Received) -> bool {
    move |received| received.body["kind"] == kind && received.body["status"] == status
}

fn password_login(cluster: &Cluster, user: &str) -> String {
    let body = json!({"username": user, "password": "correct horse battery"});
    let token = cluster.post("/auth/login", &body).ok();
    token["access_token"].as_str().unwrap().to_owned()
}

#[test]
fn a_silent_node_raises_an_alert_that_reaches_the_webhook_and_resolves() {
    let receiver = Receiver::start(Some(200));
    let files = Files::webhook("webhook", &receiver.url("/hook"));
    let mut cluster = files.server(&[]);
    cluster.agent("a", &[]);
    cluster.wait_for_nodes(1);
    cluster.lose_machine("a");
    let firing = receiver.wait_for("the alert", is_about("node_silent", "firing"));
    assert_eq!(firing.path, "/hook");
    let alert = &firing.body["alerts"][0];
    assert_eq!((&alert["node"], &alert["severity"]), (&json!("a"), &json!("critical")));
    let id = firing.body["id"].as_str().unwrap();
    assert!(firing.head.contains(&format!("idempotency-key: {id}\n")), "{}", firing.head);
    cluster.restart_agent("a");
    let resolved = receiver.wait_for("the end", is_about("node_silent", "resolved"));
    assert_eq!(resolved.body["alerts"][0]["id"], alert["id"]);
    let events = cluster.get("/events/past").ok();
    let kinds: Vec<&str> =
        events.as_array().unwrap().iter().filter_map(|e| e["kind"].as_str()).collect();
    for kind in ["AlertFiring", "AlertResolved"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    let count =
        |kind| receiver.received().iter().filter(|r| is_about("node_silent", kind)(r)).count();
    assert_eq!((count("firing"), count("resolved")), (1, 1), "each is sent once");
}

#[test]
fn a_server_killed_between_attempt_and_answer_sends_the_same_message_again() {
    let receiver = Receiver::start(None);
    let document = fs::read_to_string(
        Files::webhook("slack", &receiver.url("/services/T0")).path("alerts.toml"),
    )
    .unwrap();
    let files = Files::new(
        &document
            .replace("[rules.disk]\nenabled = false", "[rules.disk]\nwarning = 0\nfor = \"0s\""),
    );
    fs::write(files.path("url"), receiver.url("/services/T0")).unwrap();
    let config = fs::read_to_string(files.path("alerts.toml")).unwrap();
    let line = config.lines().find(|line| line.starts_with("url_file")).unwrap().to_owned();
    let url = format!("url_file = \"{}\"", files.path("url").display());
    fs::write(files.path("alerts.toml"), config.replace(&line, &url)).unwrap();
    let mut cluster = files.server(&[]);
    let first = receiver.wait_for_count(1).remove(0);
    cluster.server.kill();
    receiver.answer_with(200);
    cluster.restart_server();
    let all = receiver.wait_for_count(2);
    assert_eq!(all[1].body, first.body, "the whole payload is equal");
    assert!(
        first.body["attachments"][0]["blocks"][0]["text"]["text"]
            .as_str()
            .unwrap()
            .contains("Disk")
    );
    // The delivery is recorded: a further restart sends nothing.
    eventually("the success is stored", SOON, || {
        let sinks = cluster.get("/alerts").ok()["sinks"].clone();
        sinks[0]["last_success"].is_string().then_some(())
    });
    std::thread::sleep(Duration::from_secs(1));
    cluster.server.kill();
    cluster.restart_server();
    wait_for(&cluster, "disk", "firing");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(receiver.received().len(), 2);
}

#[test]
fn a_sink_that_fails_receives_the_message_after_the_backoff_also_over_a_restart() {
    let receiver = Receiver::start(Some(503));
    let files = Files::webhook("webhook", &receiver.url("/hook"));
    let mut cluster = files.server(&[]);
    cluster.agent("a", &[]);
    cluster.wait_for_nodes(1);
    cluster.lose_machine("a");
    let first = receiver.wait_for_count(1).remove(0);
    let sink = eventually("the failure is shown", SOON, || {
        let sink = cluster.get("/alerts").ok()["sinks"][0].clone();
        (sink["failures"] == 1).then_some(sink)
    });
    assert_eq!(sink["last_error"], "the sink answered 503");
    assert!(sink["next_attempt"].is_string(), "{sink}");
    std::thread::sleep(Duration::from_millis(500));
    cluster.server.kill();
    receiver.answer_with(204);
    cluster.restart_server();
    let again = receiver.wait_for_count(2).remove(1);
    assert_eq!(again.body, first.body);
    let sinks = cluster.run(&["alerts", "list", "--sinks", "-o", "csv"]);
    assert!(sinks.out.contains("ops,webhook,info,"), "{}", sinks.out);
}

#[test]
fn a_wrong_url_is_never_logged() {
    let closed = free_port();
    let url = format!("http://127.0.0.1:{closed}/services/topsecret?sig=topsecret");
    for kind in ["slack", "teams", "webhook", "alertmanager"] {
        let files = Files::webhook(kind, &url);
        let environment =
            vec![("LOG_LEVEL".to_owned(), "trace,hyper=trace,reqwest=trace".to_owned())];
        // An option wins over the variable that the harness sets.
        let mut cluster = files.server_with(&["--log-level", "trace"], environment);
        cluster.agent("a", &[]);
        cluster.wait_for_nodes(1);
        cluster.lose_machine("a");
        let failed = eventually("the failure is logged", SOON, || {
            let output = cluster.server.output();
            output.contains("Alert message not delivered").then_some(output)
        });
        assert!(failed.contains("cannot connect: connection refused"), "{failed}");
        let tested = cluster.run(&["alerts", "test"]);
        assert_ne!(tested.code, Some(0));
        let shown = cluster.get("/alerts").body;
        for text in [cluster.server.output(), tested.out, tested.err, shown] {
            assert!(!text.contains("topsecret"), "{kind}: {text}");
            assert!(!text.contains(&format!(":{closed}")), "{kind}: {text}");
        }
        cluster.server.kill();
    }
}

#[test]
fn the_webhook_url_comes_from_the_environment_or_a_file_that_may_change() {
    let receiver = Receiver::start(Some(200));
    let variable = ("AGENTAFLOW_ALERT_WEBHOOK".to_owned(), receiver.url("/from-variable"));
    let cluster = Cluster::server_with(&[], vec![variable]);
    assert_eq!(cluster.run(&["alerts", "test"]).code, Some(0));
    receiver.wait_for("a test", |received| received.path == "/from-variable");
    drop(cluster);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    fs::write(&file, receiver.url("/first")).unwrap();
    let path = file.display().to_string();
    let cluster = Cluster::server(&["--alert-webhook-file", &path]);
    for name in ["/first", "/second"] {
        fs::write(&file, receiver.url(name)).unwrap();
        let tested = cluster.run(&["alerts", "test"]);
        assert_eq!((tested.code, tested.out.as_str()), (Some(0), "sink webhook: delivered\n"));
        receiver.wait_for("a test", |received| received.path == name);
    }
}

#[test]
fn alerts_are_listed_silenced_and_tested_from_the_command_line() {
    let receiver = Receiver::start(Some(200));
    let files = Files::webhook("webhook", &receiver.url("/hook"));
    let mut cluster = files.server(&[]);
    cluster.agent("a", &[]);
    cluster.wait_for_nodes(1);
    let silenced = cluster.run(&[
        "alerts",
        "silence",
        "--kind",
        "node_silent",
        "--node",
        "a",
        "--for",
        "1h",
        "--comment",
        "moving it",
    ]);
    assert_eq!(silenced.code, Some(0), "{}", silenced.err);
    let id = silenced.out.split(' ').nth(1).unwrap().to_owned();
    cluster.lose_machine("a");
    wait_for(&cluster, "node_silent", "firing");
    let listed = cluster.run(&["alerts", "list", "-o", "csv"]);
    assert!(listed.out.contains(",silenced,critical,node_silent,"), "{}", listed.out);
    let listed = cluster.run(&["alerts", "list", "--silences", "-o", "csv"]);
    assert!(listed.out.contains("\"kind=node_silent,node=a\""), "{}", listed.out);
    assert!(listed.out.contains("moving it"), "{}", listed.out);
    let tested = cluster.run(&["alerts", "test", "ops"]);
    assert_eq!((tested.code, tested.out.as_str()), (Some(0), "sink ops: delivered\n"));
    receiver.wait_for("a test", is_about("test", "firing"));
    let unknown = cluster.run(&["alerts", "test", "nobody"]);
    assert_eq!(unknown.code, Some(3), "{}", unknown.err);
    let about_node = |received: &Received| received.body["kind"] == "node_silent";
    assert!(!receiver.received().iter().any(about_node), "the silence holds");
    let ended = cluster.run(&["alerts", "unsilence", &id]);
    assert_eq!((ended.code, ended.out), (Some(0), format!("silence {id} ended\n")));
    receiver.wait_for("the alert", about_node);
    assert_eq!(cluster.run(&["alerts", "unsilence", &id]).code, Some(3));
    let everything = cluster.run(&["alerts", "silence", "--for", "1h"]);
    assert!(everything.err.contains("name an alert, or use --kind"), "{}", everything.err);
}

#[test]
fn a_user_sees_alerts_about_own_jobs_only_and_may_not_silence() {
    let files = Files::new(FAST);
    let mut cluster = files.server(&[]);
    cluster.agent("a", &[]);
    cluster.wait_for_nodes(1);
    for user in ["ana", "ben"] {
        let body = json!({"username": user, "password": "correct horse battery", "role": "user",
            "grants": ["process"]});
        cluster.post("/users", &body).ok();
    }
    let ana = password_login(&cluster, "ana");
    let job = crate::harness::shell_job("sleep 100", json!({"gpu_count": 1}));
    let answer = cluster.try_call("POST", "/gpu-workers/jobs/", Some(&job), Some(&ana)).unwrap();
    let job = answer.ok()["id"].to_string();
    let firing = wait_for(&cluster, "gpu_idle", "firing");
    assert_eq!((&firing["job"], &firing["user"]), (&json!(job), &json!("ana")));
    let seen = |user: &str| {
        let token = password_login(&cluster, user);
        let report = cluster.try_call("GET", "/alerts", None, Some(&token)).unwrap().ok();
        let kinds: Vec<String> = report["alerts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|alert| alert["kind"].as_str().unwrap().to_owned())
            .collect();
        let events = cluster.try_call("GET", "/events/past", None, Some(&token)).unwrap().ok();
        let fired = events.as_array().unwrap().iter().any(|event| event["kind"] == "AlertFiring");
        (kinds, fired)
    };
    assert_eq!(seen("ana"), (vec!["gpu_idle".to_owned()], true));
    assert_eq!(seen("ben"), (Vec::new(), false));
    for (method, path) in
        [("POST", "/alerts/test"), ("POST", "/alerts/silences"), ("DELETE", "/alerts/silences/x")]
    {
        let answer = cluster.try_call(method, path, Some(&json!({})), Some(&ana)).unwrap();
        assert_eq!(answer.status, 403, "{method} {path}");
    }
}

#[test]
fn a_wrong_configuration_is_refused_at_the_start() {
    let files = Files::new("[rules.gpu_hot]\nwarning = 95\ncritical = 85\n");
    let config = files.path("alerts.toml").display().to_string();
    let mut command = crate::harness::program(files.folder.path());
    let ran = command.args(["server", "--alerts", &config]).output().unwrap();
    let text = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(2), "{text}");
    assert!(text.contains("rules.gpu_hot: a more urgent threshold must be higher"), "{text}");
}

#[test]
fn a_certificate_and_a_long_wait_and_a_full_disk_raise_alerts() {
    let document = FAST
        .replace("[rules.disk]\nenabled = false", "[rules.disk]\nwarning = 0\nfor = \"0s\"")
        + "[rules.certificate]\nwarning = \"60d\"\n[rules.queue_wait]\nwarning = \"1s\"\n";
    let files = Files::new(&document);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let end = jiff::Zoned::now().with_time_zone(jiff::tz::TimeZone::UTC).date() + 40.days();
    params.not_after = rcgen::date_time_ymd(end.year().into(), end.month() as u8, end.day() as u8);
    fs::write(files.path("cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(files.path("key.pem"), key.serialize_pem()).unwrap();
    let (cert, key) = (files.path("cert.pem"), files.path("key.pem"));
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let config = files.path("alerts.toml").display().to_string();
    let metrics = free_port();
    let listen = format!("127.0.0.1:{metrics}");
    let cluster = Cluster::server(&[
        "--alerts",
        &config,
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--metrics-listen",
        &listen,
    ]);
    eventually("the metrics", SOON, || {
        let mut connection = Connection::open(metrics, None).ok()?;
        let text = connection.call("GET", "/metrics", None).ok()?.body;
        let all = [
            "agentaflow_certificate_expiry_timestamp_seconds",
            "agentaflow_disk_free_bytes",
            "agentaflow_alerts_firing{kind=\"certificate\",severity=\"warning\"} 1",
        ];
        all.iter().all(|name| text.contains(name)).then_some(())
    });
    let cli = |arguments: &[&str]| {
        let mut command = cluster.cli(arguments);
        command.env("AGENTAFLOW_CA_CERT", &cert).output().unwrap()
    };
    let submitted = cli(&["submit", "--gpus", "100", "--", "true"]);
    assert!(submitted.status.success(), "{submitted:?}");
    eventually("the alerts", SOON, || {
        let alerts: Value =
            serde_json::from_slice(&cli(&["alerts", "list", "-o", "json"]).stdout).ok()?;
        let firing = |kind: &str| {
            let mut alerts = alerts.as_array().into_iter().flatten();
            alerts.any(|alert| alert["kind"] == kind && alert["state"] == "firing")
        };
        ["certificate", "disk", "queue_wait"].into_iter().all(firing).then_some(())
    });
}

/// A real Alertmanager; ends when dropped.
struct Alertmanager {
    child: Child,
    port: u16,
    _data: TempDir,
}

impl Alertmanager {
    /// None without the program.
    fn start(port: u16) -> Option<Self> {
        let data = tempfile::tempdir().unwrap();
        let config = data.path().join("alertmanager.yml");
        fs::write(&config, "route:\n  receiver: none\nreceivers:\n- name: none\n").unwrap();
        let log = fs::File::create(data.path().join("log")).unwrap();
        let child = Command::new("prometheus-alertmanager")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.path={}", data.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--cluster.listen-address=")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .ok()?;
        let server = Self { child, port, _data: data };
        eventually("Alertmanager is ready", SOON, || {
            let answer = Connection::open(port, None).ok()?.call("GET", "/-/ready", None).ok()?;
            (answer.status == 200).then_some(())
        });
        Some(server)
    }

    /// Alerts that are active.
    fn active(&self) -> Vec<Value> {
        let path = "/api/v2/alerts?active=true&silenced=true";
        let answer = Connection::open(self.port, None).and_then(|mut c| c.call("GET", path, None));
        answer.unwrap().ok().as_array().unwrap().clone()
    }
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_real_alertmanager_shows_an_alert_while_it_fires() {
    let Some(alertmanager) = Alertmanager::start(free_port()) else {
        skip!("needs Alertmanager; `sudo apt-get install prometheus-alertmanager` installs it");
    };
    let files = Files::webhook("alertmanager", &format!("http://127.0.0.1:{}", alertmanager.port));
    let mut cluster = files.server(&[]);
    cluster.agent("a", &[]);
    cluster.wait_for_nodes(1);
    cluster.lose_machine("a");
    let alert = eventually("the alert is active", SOON, || {
        let active = alertmanager.active();
        active.into_iter().find(|alert| alert["labels"]["alertname"] == "AgentaflowNodeSilent")
    });
    let labels = json!({"alertname": "AgentaflowNodeSilent", "severity": "critical", "node": "a"});
    assert_eq!(alert["labels"], labels);
    assert!(alert["annotations"]["summary"].as_str().unwrap().contains("Node a"), "{alert:#}");
    cluster.restart_agent("a");
    eventually("the alert is resolved", SOON, || alertmanager.active().is_empty().then_some(()));
    assert_eq!(cluster.run(&["alerts", "test"]).code, Some(0));
}
