//! Deliveries to receivers on this machine.

use std::time::Duration;

use agentaflow_api::alert::Severity;
use agentaflow_api::units::Secret;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::messages::{alert, message};
use crate::deliver::{DeliveryError, deliver};
use crate::sink::{Origin, alertmanager, slack, teams, webhook};
use crate::{Config, HttpConfig, SecretRef, Secrets, SinkConfig, SinkKind};

/// Request that a receiver read.
struct Request {
    head: String,
    body: Value,
}

/// Receives one request, and answers with this head.
async fn receive(listener: TcpListener, answer: &'static str) -> Request {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).await.unwrap();
        bytes.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let Ok(body) = serde_json::from_str(body) else { continue };
        let head = head.to_owned();
        stream.write_all(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes()).await.unwrap();
        return Request { head, body };
    }
}

fn sink(kind: fn(HttpConfig) -> SinkKind, token: bool) -> SinkConfig {
    let place = |key: &str| SecretRef::Key(key.to_owned());
    let target =
        HttpConfig { url: place("url"), token: token.then(|| place("token")), ca_file: None };
    SinkConfig { name: "ops".into(), kind: kind(target), min_severity: Severity::Info }
}

fn secrets(url: &str) -> Secrets {
    let values = [("url", url), ("token", "bearer-secret")];
    Secrets(values.map(|(key, value)| (key.to_owned(), Secret(value.to_owned()))).into())
}

async fn send(sink: &SinkConfig, url: &str) -> Result<(), DeliveryError> {
    let message = message(vec![alert("0")], Vec::new());
    deliver(&Config::default(), sink, &message, &secrets(url)).await
}

#[tokio::test]
async fn each_sink_receives_one_post_with_its_whole_payload() {
    type Case<'a> = (fn(HttpConfig) -> SinkKind, &'a str, Value);
    let message = message(vec![alert("0")], Vec::new());
    let origin = Origin::default();
    let cases: [Case<'_>; 5] = [
        (SinkKind::Slack, "/services/T0/B0/x", slack::payload(&message, origin)),
        (SinkKind::Teams, "/workflows/1?sig=x", teams::payload(&message, origin)),
        (SinkKind::Webhook, "/hook", webhook::payload(&message, origin)),
        (SinkKind::Auto, "/hook", webhook::payload(&message, origin)),
        (SinkKind::Alertmanager, "/", alertmanager::payload(&message, origin)),
    ];
    for (kind, path, payload) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}{path}", listener.local_addr().unwrap());
        let received = tokio::spawn(receive(listener, "200 OK\r\ncontent-length: 0"));
        send(&sink(kind, true), &url).await.unwrap();
        let Request { head, body } = received.await.unwrap();
        assert_eq!(body, payload, "{path}");
        let is_alertmanager = path == "/";
        let path = if is_alertmanager { "/api/v2/alerts" } else { path };
        assert!(head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{head}");
        let head = head.to_ascii_lowercase();
        assert!(head.contains("authorization: bearer bearer-secret"), "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        let has_key = head.contains("idempotency-key: 0123456789abcdef");
        assert_eq!(has_key, path == "/hook", "{head}");
    }
}

#[tokio::test]
async fn an_error_of_the_sink_has_its_status_and_pause() {
    for (answer, expected) in [
        ("404 Not Found\r\ncontent-length: 0", (404, None)),
        ("429 Too Many\r\nretry-after: 30\r\ncontent-length: 0", (429, Some(30))),
        ("302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0", (302, None)),
        ("503 Busy\r\nretry-after: 999999999\r\ncontent-length: 0", (503, Some(3600))),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let received = tokio::spawn(receive(listener, answer));
        let error = send(&sink(SinkKind::Webhook, false), &url).await.unwrap_err();
        received.await.unwrap();
        let (status, pause) = expected;
        let retry_after = pause.map(Duration::from_secs);
        assert_eq!(error, DeliveryError::Status { status, retry_after });
    }
}

#[tokio::test]
async fn an_error_never_contains_the_address() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for url in [
        format!("http://{closed}/services/topsecret"),
        format!("https://{closed}/services/topsecret"),
        "http://topsecret.invalid/services/topsecret".to_owned(),
        "http://topsecret:port/".to_owned(),
        "ftp://topsecret/".to_owned(),
        "topsecret".to_owned(),
    ] {
        let error = send(&sink(SinkKind::Slack, false), &url).await.unwrap_err();
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(!text.contains("topsecret"), "{text}");
            assert!(!text.contains(&closed.port().to_string()), "{text}");
        }
    }
}

#[tokio::test]
async fn a_refused_connection_and_a_missing_secret_are_named() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let slack = sink(SinkKind::Slack, false);
    let error = send(&slack, &format!("http://{closed}/")).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot connect: connection refused");
    let message = message(vec![alert("0")], Vec::new());
    let missing = deliver(&Config::default(), &slack, &message, &Secrets::default()).await;
    assert_eq!(missing.unwrap_err().to_string(), "the Secret `alert-webhook` has no key `url`");
}
