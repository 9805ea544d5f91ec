//! A filtering proxy to the API server: lists of nodes, pods and queues contain only its objects, and faults affect
//! only the test. All other requests pass through unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use http::{Method, Request};
use http_body_util::BodyExt as _;
use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::Share;

#[derive(Default)]
pub(crate) struct Amiss {
    /// Clock skew in seconds.
    pub(crate) ahead: AtomicI64,
    /// The CRDs are missing.
    pub(crate) kindless: AtomicBool,
}

struct View {
    client: Client,
    amiss: Arc<Amiss>,
    /// Label selector of nodes.
    selector: String,
    /// Prefix of queue names.
    queues: String,
}

/// Starts the proxy without TLS and with admin rights; returns its port.
pub(crate) async fn serve(share: &Share, amiss: &Arc<Amiss>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let view = View {
        client: client(share).await,
        amiss: Arc::clone(amiss),
        selector: share.node_selector(),
        queues: share.id.clone(),
    };
    let view = Arc::new(view);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let view = Arc::clone(&view);
            // The client may have disconnected.
            tokio::spawn(async move { view.answer(stream).await.unwrap_or_default() });
        }
    });
    port
}

/// The client under test decides about retries.
async fn client(share: &Share) -> Client {
    let read = Kubeconfig::read_from(&share.cluster.kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    let mut config = config.expect("a complete kubeconfig");
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}

impl View {
    async fn answer(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        let (request, path) = self.read(&mut stream).await?;
        if path.starts_with("/apis/agentaflow.io") && self.amiss.kindless.load(Ordering::Relaxed) {
            let head = "HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\nconnection: close";
            let answer = format!("{head}\r\n\r\n404 page not found\n");
            stream.write_all(answer.as_bytes()).await.ok()?;
            return stream.flush().await.ok();
        }
        let lists_queues = request.method() == Method::GET
            && path.split('?').next() == Some("/apis/agentaflow.io/v1/gpuqueues")
            && !path.contains("watch=");
        let answer = self.client.send(request).await.ok()?;
        let kind = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        let head = format!(
            "HTTP/1.1 {} \r\ncontent-type: {}\r\ndate: {}\r\nconnection: close\r\n\r\n",
            answer.status().as_u16(),
            kind.unwrap_or("application/json"),
            self.date()
        );
        stream.write_all(head.as_bytes()).await.ok()?;
        let mut body = answer.into_body();
        if lists_queues {
            let all = body.collect().await.ok()?.to_bytes();
            stream.write_all(self.own_queues(&all).as_bytes()).await.ok()?;
            return stream.flush().await.ok();
        }
        while let Some(frame) = body.frame().await {
            if let Ok(bytes) = frame.ok()?.into_data() {
                stream.write_all(&bytes).await.ok()?;
                stream.flush().await.ok()?;
            }
        }
        Some(())
    }

    fn date(&self) -> String {
        let ahead = SignedDuration::from_secs(self.amiss.ahead.load(Ordering::Relaxed));
        let printed =
            DateTimePrinter::new().timestamp_to_rfc9110_string(&(Timestamp::now() + ahead));
        printed.expect("a date of our time")
    }

    async fn read(&self, stream: &mut BufReader<TcpStream>) -> Option<(Request<Body>, String)> {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let mut words = line.split_whitespace();
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut request = Request::builder();
        let mut length = 0;
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).await.ok()?;
            let Some((name, value)) = header.trim_end().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().ok()?,
                "host" | "connection" => {}
                name => request = request.header(name, value),
            }
        }
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).await.ok()?;
        let asked = self.narrowed(&path);
        let request = request.method(method.as_str()).uri(asked).body(Body::from(bytes)).ok()?;
        Some((request, path))
    }

    /// Restricts lists of nodes and of all pods to objects of the test.
    fn narrowed(&self, path: &str) -> String {
        if let Some(query) = path.strip_prefix("/api/v1/pods?") {
            return format!("/api/v1/namespaces/test-{}/pods?{query}", self.queues);
        }
        if path.split('?').next() != Some("/api/v1/nodes") {
            return path.to_owned();
        }
        let join = if path.contains('?') { '&' } else { '?' };
        format!("{path}{join}labelSelector={}", self.selector.replace('=', "%3D"))
    }

    fn own_queues(&self, list: &[u8]) -> String {
        let mut list: Value = serde_json::from_slice(list).unwrap_or_default();
        let own = |queue: &Value| {
            let name = queue["metadata"]["name"].as_str();
            name.is_some_and(|name| name.starts_with(&self.queues))
        };
        let items = list["items"].as_array().cloned().unwrap_or_default();
        list["items"] = json!(items.into_iter().filter(own).collect::<Vec<_>>());
        list.to_string()
    }
}
