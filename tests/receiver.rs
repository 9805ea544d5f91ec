//! A receiver of HTTP requests on this machine, such as a webhook of alerts. It keeps the requests.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Timeout of an expected request on a busy machine.
const SOON: Duration = Duration::from_mins(1);

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) path: String,
    /// Headers in lower case.
    pub(crate) head: String,
    pub(crate) body: Value,
    /// Status of the answer.
    pub(crate) status: Option<u16>,
}

#[derive(Debug)]
struct State {
    received: Vec<Received>,
    /// Status of the answers; none holds a request without an answer.
    status: Option<u16>,
}

/// Serves until the test ends.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Receiver {
    /// Answers every request with this status; none holds requests without an answer.
    pub(crate) fn start(status: Option<u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let state = Arc::new(Mutex::new(State { received: Vec::new(), status }));
        let receiver = Self { port, state };
        let serving = receiver.clone();
        // The thread ends with the test program.
        spawn(move || {
            for stream in listener.incoming().flatten() {
                let receiver = serving.clone();
                spawn(move || receiver.serve(stream));
            }
        });
        receiver
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn answer_with(&self, status: u16) {
        self.state.lock().expect("the state").status = Some(status);
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.state.lock().expect("the state").received.clone()
    }

    /// Waits for the first request that passes the test.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, test: impl Fn(&Received) -> bool) -> Received {
        let since = Instant::now();
        loop {
            if let Some(found) = self.received().into_iter().find(&test) {
                return found;
            }
            assert!(since.elapsed() < SOON, "{what} did not arrive: {:#?}", self.received());
            sleep(Duration::from_millis(20));
        }
    }

    /// Waits until this many requests arrived.
    #[track_caller]
    pub(crate) fn wait_for_count(&self, count: usize) -> Vec<Received> {
        let since = Instant::now();
        while self.received().len() < count {
            assert!(since.elapsed() < SOON, "{count} requests: {:#?}", self.received());
            sleep(Duration::from_millis(20));
        }
        self.received()
    }

    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        let mut first = String::new();
        stream.read_line(&mut first).ok().filter(|read| *read > 0)?;
        let mut head = String::new();
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            head.push_str(&line);
            head.push('\n');
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        let path = first.split(' ').nth(1)?.to_owned();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let status = {
            let mut state = self.state.lock().ok()?;
            let status = state.status;
            state.received.push(Received { path, head, body, status });
            status
        };
        let Some(status) = status else {
            // Held until the peer closes the connection.
            let _ = stream.read(&mut [0]);
            return None;
        };
        let answer =
            format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.get_mut().write_all(answer.as_bytes()).ok()
    }
}
