//! Raw requests to the API server and to programs under test.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use kube::Client;
use kube::api::ListParams;
use kube::client::Body;
use serde_json::Value;

#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl HttpResponse {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

pub(super) async fn request(
    client: &Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> HttpResponse {
    let mut request =
        kube::core::Request::new("/").list(&ListParams::default()).expect("a request");
    *request.method_mut() = method.parse().expect("a method");
    *request.uri_mut() = path.parse().expect("a path");
    if let Some(body) = body {
        // A patch needs its content type; JSON merge patch is the simplest.
        let kind =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        request.headers_mut().insert("content-type", kind.parse().expect("a type"));
        *request.body_mut() = body.to_string().into_bytes();
    }
    let answer = client.send(request.map(Body::from)).await.expect("the API server answers");
    let status = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await.expect("a whole answer");
    HttpResponse { status, body: String::from_utf8_lossy(&body).into_owned() }
}

/// Requests a path of a plain HTTP server on the loopback, such as the health port of a program under test; none without a
/// response.
pub(crate) fn get(port: u16, path: &str) -> Option<HttpResponse> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(HttpResponse { status, body: body.to_owned() })
}
