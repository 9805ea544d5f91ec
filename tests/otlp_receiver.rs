//! A receiver of OTLP over HTTP for tests: it keeps each body, and answers with a status that the test sets.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

/// A request that the receiver accepted.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

/// Listens until the test program ends.
#[derive(Clone)]
pub(crate) struct OtlpReceiver {
    pub(crate) port: u16,
    status: Arc<AtomicU16>,
    exports: Arc<Mutex<Vec<Export>>>,
}

impl OtlpReceiver {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let receiver =
            Self { port, status: Arc::new(AtomicU16::new(200)), exports: Arc::default() };
        let own = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                std::thread::spawn(move || own.serve(&stream));
            }
        });
        receiver
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Answers with this status from now on; only requests answered with 200 are kept.
    pub(crate) fn answer_with(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    pub(crate) fn exports(&self) -> Vec<Export> {
        self.exports.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Spans of all exports, each span id once.
    pub(crate) fn spans(&self) -> Vec<Value> {
        let mut spans: Vec<Value> = Vec::new();
        for export in self.exports().iter().filter(|export| export.path == "/v1/traces") {
            let list = &export.body["resourceSpans"][0]["scopeSpans"][0]["spans"];
            for span in list.as_array().expect("spans") {
                if spans.iter().all(|known| known["spanId"] != span["spanId"]) {
                    spans.push(span.clone());
                }
            }
        }
        spans
    }

    /// Answers the requests of one connection.
    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let path = line.split(' ').nth(1)?.to_owned();
            let mut headers = Vec::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).ok()?;
                let Some((name, value)) = line.trim_end().split_once(": ") else { break };
                headers.push((name.to_ascii_lowercase(), value.to_owned()));
            }
            let length = headers.iter().find(|(name, _)| name == "content-length")?;
            let mut body = vec![0; length.1.parse().ok()?];
            reader.read_exact(&mut body).ok()?;
            let status = self.status.load(Ordering::SeqCst);
            if status == 200 {
                let body = serde_json::from_slice(&body).expect("JSON");
                let export = Export { path, headers, body };
                self.exports.lock().unwrap_or_else(PoisonError::into_inner).push(export);
            }
            let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\n{{}}");
            (&mut &*stream).write_all(answer.as_bytes()).ok()?;
        }
    }
}
