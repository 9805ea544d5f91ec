//! TLS of the server: self-signed certificates and their fingerprints, private authorities, replaced files.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use jiff::ToSpan as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

use crate::harness::{Cluster, Ran, SOON, eventually, free_port, program};
use crate::http::Connection;
use crate::pty::Terminal;

/// The fingerprint in the log of a server.
fn fingerprint(cluster: &Cluster) -> String {
    eventually("the server logs its fingerprint", SOON, || {
        let log = cluster.server.output();
        let start = log.rfind("fingerprint for clients: ")? + "fingerprint for clients: ".len();
        let text = log[start..].split_whitespace().next()?;
        (text.len() == "sha256:".len() + 64).then(|| text.to_owned())
    })
}

/// A connection that trusts the authorities in a PEM file, as any HTTPS client.
fn https(port: u16, authorities: &Path, token: Option<&str>) -> io::Result<Connection> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(authorities).map_err(io::Error::other)? {
        roots.add(authority.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").map_err(io::Error::other)?;
    let client = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(Connection::over(Box::new(StreamOwned::new(client, stream)), token))
}

/// An authority that signs certificates for 127.0.0.1.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(file: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let made = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(file, made.pem()).unwrap();
        Self(made)
    }

    /// Writes a new certificate and its key.
    fn issue(&self, certificate: &Path, key: &Path) {
        self.issue_for(300, certificate, key);
    }

    /// [`Self::issue`] with the days until the expiry.
    fn issue_for(&self, days: i64, certificate: &Path, key: &Path) {
        let pair = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let end = jiff::Zoned::now().with_time_zone(jiff::tz::TimeZone::UTC).date() + days.days();
        params.not_after =
            rcgen::date_time_ymd(end.year().into(), end.month() as u8, end.day() as u8);
        fs::write(certificate, params.signed_by(&pair, &self.0).unwrap().pem()).unwrap();
        fs::write(key, pair.serialize_pem()).unwrap();
    }
}

/// A command with the contexts of this cluster and without variables of the environment.
fn with_contexts(cluster: &Cluster, words: &[&str]) -> std::process::Command {
    let mut command = program(&cluster.path(""));
    command.args(words);
    command
}

fn run(cluster: &Cluster, words: &[&str]) -> Ran {
    Ran::from(with_contexts(cluster, words).stdin(Stdio::null()).output().unwrap())
}

fn token_login(cluster: &Cluster, more: &[&str]) -> Ran {
    let url = cluster.url();
    let mut words = vec!["login", &url, "--token-stdin"];
    words.extend(more);
    let token = fs::File::open(cluster.path("data/admin-token")).unwrap();
    Ran::from(with_contexts(cluster, &words).stdin(token).output().unwrap())
}

#[test]
fn plain_http_beyond_loopback_is_refused_unless_it_is_accepted() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data").display().to_string();
    let listen = format!("0.0.0.0:{}", free_port());
    let start = |command: &str| {
        let mut started = program(home.path());
        started.args([command, "--listen", &listen, "--data-dir", &data]);
        Ran::from(started.stdin(Stdio::null()).output().unwrap())
    };
    let refused = start("server");
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    for way in ["--tls-cert", "--tls-self-signed", "--insecure"] {
        assert!(refused.err.contains(way), "{}", refused.err);
    }
    let up = start("up");
    assert_eq!(up.code, Some(2), "{}", up.err);
    assert!(up.err.contains("agentaflow server"), "{}", up.err);
    let accepted = Cluster::server_at("0.0.0.0", &["--insecure"]);
    assert_eq!(accepted.get("/auth/me").status, 200);
    let warned = || accepted.server.output().contains("--insecure:").then_some(());
    eventually("the server warns", SOON, warned);
}

/// Strangers exhaust the tries of the user at this address; the context has a key of the first login.
#[test]
fn a_login_sends_the_key_of_an_earlier_one_and_is_not_locked_out() {
    let cluster = Cluster::server(&[]);
    let (name, password) = ("ada", "correct horse");
    cluster.post("/users", &json!({"username": name, "password": password})).ok();
    fs::write(cluster.path("password"), password).unwrap();
    let url = cluster.url();
    let login = || {
        let words = ["login", &url, "--user", name];
        let stdin = fs::File::open(cluster.path("password")).unwrap();
        Ran::from(with_contexts(&cluster, &words).stdin(stdin).output().unwrap())
    };
    let first = login();
    assert_eq!(first.code, Some(0), "{}", first.err);
    let wrong = json!({"username": name, "password": "not the password"});
    let guess = || cluster.try_call("POST", "/auth/login", Some(&wrong), None).unwrap().status;
    let guessed: Vec<u16> = (0..25).map(|_| guess()).collect();
    assert_eq!(guessed.last(), Some(&429), "{guessed:?}");
    let again = login();
    assert_eq!(again.code, Some(0), "{}", again.err);
    fs::remove_file(cluster.path("config/agentaflow/config.toml")).unwrap();
    let without = login();
    assert_ne!(without.code, Some(0), "{}", without.out);
}

#[test]
fn an_agent_pins_the_server_that_knows_its_token_and_no_other_key_later() {
    let mut cluster = Cluster::server(&["--tls-self-signed"]);
    let first = fingerprint(&cluster);
    let url = cluster.url();
    cluster.agent_at("pinned", &url, &[]);
    let pin = cluster.path("agent-pinned/server-fingerprint.json");
    let pinned = eventually("the agent pins the key", SOON, || fs::read_to_string(&pin).ok());
    assert!(pinned.contains(&first), "{pinned}");
    let ready = |cluster: &Cluster, pin: &str| {
        let mut list = cluster.cli(&["get", "nodes", "-o", "json"]);
        list.env("AGENTAFLOW_SERVER_FINGERPRINT", pin);
        let listed = Ran::from(list.stdin(Stdio::null()).output().unwrap());
        listed.out.contains("\"reachable\": true")
    };
    eventually("the node is ready", SOON, || ready(&cluster, &first).then_some(()));
    // The renewed certificate has the same key.
    cluster.server.kill();
    fs::remove_file(cluster.path("data/tls-cert.pem")).unwrap();
    cluster.restart_server();
    assert_eq!(fingerprint(&cluster), first);
    eventually("the node is back", SOON, || ready(&cluster, &first).then_some(()));
    // Another key: the same address, and nothing is sent to it.
    cluster.server.kill();
    fs::remove_file(cluster.path("data/tls-key.pem")).unwrap();
    fs::remove_file(cluster.path("data/tls-cert.pem")).unwrap();
    cluster.restart_server();
    let second = eventually("a new key", SOON, || {
        Some(fingerprint(&cluster)).filter(|found| *found != first)
    });
    cluster.agents.get_mut("pinned").unwrap().kill();
    cluster.restart_agent("pinned");
    eventually("the agent refuses the key", SOON, || {
        let log = cluster.agents["pinned"].output();
        (log.contains("--server-fingerprint") && log.contains(&second)).then_some(())
    });
    assert!(!ready(&cluster, &second));
}

#[test]
fn an_agent_with_an_unknown_token_trusts_no_self_signed_server() {
    let mut cluster = Cluster::server(&["--tls-self-signed"]);
    let found = fingerprint(&cluster);
    let url = cluster.url();
    let wrong = cluster.path("wrong-token");
    fs::write(&wrong, "afr_of-another-server").unwrap();
    let wrong = wrong.display().to_string();
    cluster.agent_at("other", &url, &["--token-file", &wrong]);
    eventually("the agent refuses the server", SOON, || {
        let log = cluster.agents["other"].output();
        (log.contains("--server-fingerprint") && log.contains(&found)).then_some(())
    });
    assert!(!cluster.path("agent-other/server-fingerprint.json").exists());
    // The operator's fingerprint replaces the proof; the server then refuses the token.
    cluster.agent_at("named", &url, &["--token-file", &wrong, "--server-fingerprint", &found]);
    eventually("the server refuses the token", SOON, || {
        cluster.agents["named"].output().contains("REGISTRATION_TOKEN").then_some(())
    });
}

#[test]
fn login_asks_on_a_terminal_and_needs_the_fingerprint_without_one() {
    let cluster = Cluster::server(&["--tls-self-signed"]);
    let found = fingerprint(&cluster);
    let silent = token_login(&cluster, &[]);
    assert_eq!(silent.code, Some(2), "{}", silent.err);
    assert!(silent.err.contains(&format!("--server-fingerprint {found}")), "{}", silent.err);
    let other = format!("sha256:{}", "0".repeat(64));
    let wrong = token_login(&cluster, &["--server-fingerprint", &other]);
    assert_eq!(wrong.code, Some(5), "{}", wrong.err);
    assert!(!cluster.path("config/agentaflow/config.toml").exists());
    let right = token_login(&cluster, &["--server-fingerprint", &found]);
    assert_eq!(right.code, Some(0), "{}", right.err);
    assert_eq!(run(&cluster, &["get", "nodes"]).code, Some(0));

    let url = cluster.url();
    let ask = |answer: &str| {
        let words = ["login", &url, "--user", "ada", "--name", "asked"];
        let mut terminal = Terminal::start(&with_contexts(&cluster, &words), 120, 24);
        terminal.wait_for(&found);
        terminal.press(answer);
        terminal
    };
    let mut refused = ask("\r");
    assert_eq!(refused.end().code(), Some(2));
    // A trusted server is asked for the password next.
    ask("y\r").wait_for("Password of ada");
}

#[test]
fn replaced_files_serve_new_connections_and_close_no_old_one() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let (ca, certificate, key) = (path("ca.pem"), path("tls.crt"), path("tls.key"));
    let authority = Authority::new(&ca);
    authority.issue(&certificate, &key);
    let text = |path: &Path| path.display().to_string();
    let (certificate_text, key_text) = (text(&certificate), text(&key));
    let mut cluster = Cluster::server(&["--tls-cert", &certificate_text, "--tls-key", &key_text]);
    assert_eq!(token_login(&cluster, &[]).code, Some(2), "a private authority is not trusted");
    let login = token_login(&cluster, &["--ca-cert", &text(&ca)]);
    assert_eq!(login.code, Some(0), "{}", login.err);
    let url = cluster.url();
    cluster.agent_at("private", &url, &["--ca-cert", &text(&ca)]);
    eventually("the agent trusts the authority", SOON, || {
        let listed = run(&cluster, &["get", "nodes", "-o", "json"]);
        listed.out.contains("\"reachable\": true").then_some(())
    });
    assert!(!cluster.path("agent-private/server-fingerprint.json").exists());

    let mut old = https(cluster.port, &ca, Some(&cluster.token())).unwrap();
    assert_eq!(old.call("GET", "/auth/me", None).unwrap().status, 200);
    let other_ca = path("other-ca.pem");
    Authority::new(&other_ca).issue(&certificate, &key);
    eventually("the new certificate is served", SOON, || {
        let mut new = https(cluster.port, &other_ca, None).ok()?;
        new.call("GET", "/readyz", None).ok().filter(|answer| answer.status == 200)
    });
    assert_eq!(old.call("GET", "/auth/me", None).unwrap().status, 200);
    let changed = run(&cluster, &["get", "nodes"]);
    assert_eq!(changed.code, Some(5), "{}", changed.err);
}

#[test]
fn doctor_warns_of_an_early_expiry_and_fails_after_the_expiry() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let (ca, certificate, key) = (path("ca.pem"), path("tls.crt"), path("tls.key"));
    let authority = Authority::new(&ca);
    authority.issue_for(10, &certificate, &key);
    let text = |path: &Path| path.display().to_string();
    let cluster = Cluster::server(&["--tls-cert", &text(&certificate), "--tls-key", &text(&key)]);
    let doctor = |trust: (&str, &str)| {
        let mut command = cluster.cli(&["doctor", "--remote-only", "-o", "json"]);
        let output = command.env(trust.0, trust.1).stdin(Stdio::null()).output().unwrap();
        let checks: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = checks.as_array().unwrap().iter().find(|check| check["name"] == "certificate");
        (output.status.code(), found.cloned().unwrap_or(checks))
    };
    let ca_text = text(&ca);
    let by_authority = ("AGENTAFLOW_CA_CERT", ca_text.as_str());
    let (_, check) = doctor(by_authority);
    assert_eq!(check["status"], "warn", "{check:#}");
    assert!(check["found"].as_str().unwrap().contains("in 9 days"), "{check:#}");
    authority.issue_for(-1, &certificate, &key);
    let expired = || Some(doctor(by_authority)).filter(|(_, check)| check["status"] == "fail");
    let (code, check) = eventually("the expired certificate is served", SOON, expired);
    assert_eq!(code, Some(1));
    assert!(check["fix"].as_str().unwrap().contains("--tls-cert"), "{check:#}");
    // A pinned key is accepted after the expiry.
    let pin = fingerprint_of(&certificate);
    let (code, check) = doctor(("AGENTAFLOW_SERVER_FINGERPRINT", &pin));
    assert_eq!((code, &check["status"]), (Some(1), &Value::from("fail")), "{check:#}");
    assert!(check["found"].as_str().unwrap().starts_with("expired on 20"), "{check:#}");
}

fn fingerprint_of(certificate: &Path) -> String {
    let certificate = CertificateDer::from_pem_file(certificate).unwrap();
    agentaflow_api::client::Fingerprint::of_certificate(&certificate).unwrap().to_string()
}

#[test]
fn plain_http_on_a_port_with_tls_gets_an_explanation() {
    let cluster = Cluster::server(&["--tls-self-signed"]);
    fingerprint(&cluster);
    let answer = cluster.try_call("GET", "/readyz", None, None).unwrap();
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("https://"), "{}", answer.body);
}
