//! A Prometheus server of a test, and its query API.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Timeout of a start or of a first scrape on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Scrapes its targets every second; ends when dropped.
pub(crate) struct Prometheus {
    child: Child,
    port: u16,
    _data: TempDir,
}

impl Prometheus {
    /// Starts a server with a scrape configuration and a file of rules; none without the program.
    pub(crate) fn start(port: u16, targets: &[(&str, u16)], rules: &Path) -> Option<Self> {
        let data = tempfile::tempdir().expect("a folder");
        let mut jobs = String::new();
        for (job, port) in targets {
            let target = format!("  static_configs:\n  - targets: [\"127.0.0.1:{port}\"]\n");
            jobs = format!("{jobs}- job_name: {job}\n{target}");
        }
        let rules = rules.display();
        let text = format!(
            "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files: [\"{rules}\"]\nscrape_configs:\n{jobs}"
        );
        let config = data.path().join("prometheus.yml");
        fs::write(&config, text).expect("it is written");
        let log = fs::File::create(data.path().join("log")).expect("it is created");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", data.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .ok()?;
        let server = Self { child, port, _data: data };
        let since = Instant::now();
        while server.get("/-/ready").is_none() {
            assert!(since.elapsed() < SOON, "Prometheus is not ready");
            sleep(Duration::from_millis(100));
        }
        Some(server)
    }

    /// Result vector of an expression, once it has a sample.
    pub(crate) fn eventually(&self, expression: &str) -> Vec<Value> {
        let since = Instant::now();
        loop {
            let found = self.query(expression);
            if !found.is_empty() {
                return found;
            }
            assert!(since.elapsed() < SOON, "no sample for `{expression}`");
            sleep(Duration::from_millis(300));
        }
    }

    /// Result vector of an expression, which must be valid.
    pub(crate) fn query(&self, expression: &str) -> Vec<Value> {
        let encoded = expression.bytes().map(|byte| format!("%{byte:02X}"));
        let encoded = encoded.collect::<Vec<_>>().concat();
        let body = self.get(&format!("/api/v1/query?query={encoded}")).expect("a response");
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(answer["status"], "success", "`{expression}`: {answer}");
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    /// Body of a response with status 200.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        // HTTP/1.0: the body ends with the connection, and has no chunks.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        (head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"))
            .then(|| body.to_owned())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
