//! Connections of agents to the guardian. An invalid message does not affect other messages.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{self, Sender, UnboundedReceiver, UnboundedSender};

use agentaflow_api::link::TaskKey;

use super::supervisor::Supervisor;
use super::wire::{Command, Message, PROTOCOL, Request, Response, StartFault};

/// Maximum length of a message in bytes.
const LINE_LIMIT: u64 = 32 << 20;

/// Connection id with a message; `None` when the connection is closed.
pub(super) type Incoming = (u64, Option<Result<Request, String>>);

#[derive(Debug)]
struct Connection {
    outbox: UnboundedSender<Message>,
    /// The agent has subscribed to ended tasks.
    watches: bool,
}

#[derive(Debug, Default)]
pub(super) struct Connections {
    open: BTreeMap<u64, Connection>,
    /// Connections and requests that wait for the start of a task.
    starts: BTreeMap<TaskKey, Vec<(u64, u64)>>,
    next_id: u64,
}

impl Connections {
    pub(super) fn open(&mut self, stream: UnixStream, requests: Sender<Incoming>) {
        self.next_id += 1;
        let (outbox, messages) = mpsc::unbounded_channel();
        let (reading, writing) = stream.into_split();
        tokio::spawn(read(self.next_id, reading, requests));
        tokio::spawn(write(writing, messages));
        self.open.insert(self.next_id, Connection { outbox, watches: false });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Sends a message to all agents that watch.
    pub(super) fn broadcast(&self, message: &Message) {
        for connection in self.open.values().filter(|connection| connection.watches) {
            // A closed connection is removed by its reader.
            let _ = connection.outbox.send(message.clone());
        }
    }

    /// Executes a request and sends the response.
    pub(super) fn handle(
        &mut self,
        id: u64,
        message: Option<Result<Request, String>>,
        supervisor: &mut Supervisor,
    ) {
        let Some(message) = message else {
            self.open.remove(&id);
            return;
        };
        let Some(connection) = self.open.get_mut(&id) else { return };
        let response = match message {
            Ok(request) => {
                connection.watches |= matches!(request.command, Command::Watch);
                let start = match &request.command {
                    Command::Start(spec) => Some(spec.key),
                    _ => None,
                };
                let Some(response) = execute(request.command, supervisor) else {
                    if let Some(key) = start {
                        self.starts.entry(key).or_default().push((id, request.id));
                    }
                    return;
                };
                Message::Response { id: request.id, response }
            }
            Err(detail) => {
                let fault = StartFault::Node { detail };
                Message::Response { id: 0, response: Response::Failed { fault } }
            }
        };
        let _ = connection.outbox.send(response);
    }

    /// Answers all requests that wait for the start of a task. Returns false if no connection waits.
    pub(super) fn answer_start(&mut self, key: TaskKey, response: &Response) -> bool {
        let waiting = self.starts.remove(&key).unwrap_or_default();
        let mut answered = false;
        for (id, request) in waiting {
            if let Some(connection) = self.open.get(&id) {
                let response = Message::Response { id: request, response: response.clone() };
                answered |= connection.outbox.send(response).is_ok();
            }
        }
        answered
    }
}

/// `None` if the response follows later.
fn execute(command: Command, supervisor: &mut Supervisor) -> Option<Response> {
    match command {
        Command::Hello { interval_ms } => {
            supervisor.set_interval(interval_ms);
            return Some(Response::Hello {
                protocol: PROTOCOL,
                pid: std::process::id(),
                device_control: Some(supervisor.device_control()),
                private_tmp: supervisor.has_private_tmp(),
            });
        }
        Command::Start(spec) => return supervisor.start(&spec),
        Command::List | Command::Watch => {
            return Some(Response::Tasks { tasks: supervisor.list() });
        }
        Command::Usage { key } => {
            return Some(Response::Usage(supervisor.usage(key)));
        }
        Command::Pids { key } => return Some(Response::Pids { pids: supervisor.pids(key) }),
        Command::Stop { key, cause, grace_ms } => {
            supervisor.stop(key, cause, Duration::from_millis(grace_ms));
        }
        Command::Renew { until_ms } => supervisor.renew(until_ms),
        Command::Forget { key } => supervisor.forget(key),
        Command::Leave => supervisor.leave(),
        Command::Protect { key, docker_socket } => {
            if let Err(error) = supervisor.protect(key, docker_socket) {
                let detail = format!("cannot save the lease of a container: {error}");
                return Some(Response::Failed { fault: StartFault::Node { detail } });
            }
        }
    }
    Some(Response::Done)
}

async fn read(id: u64, reading: OwnedReadHalf, requests: Sender<Incoming>) {
    let mut reading = BufReader::new(reading);
    let mut line = Vec::new();
    loop {
        line.clear();
        let got = (&mut reading).take(LINE_LIMIT).read_until(b'\n', &mut line).await;
        if !matches!(got, Ok(count) if count > 0) || line.last() != Some(&b'\n') {
            break;
        }
        // The message may contain secrets, so the error gives only the column.
        let message = serde_json::from_slice(&line)
            .map_err(|error| format!("invalid message at column {}", error.column()));
        if requests.send((id, Some(message))).await.is_err() {
            break;
        }
    }
    let _ = requests.send((id, None)).await;
}

async fn write(mut writing: OwnedWriteHalf, mut outbox: UnboundedReceiver<Message>) {
    let mut batch = Vec::new();
    while let Some(message) = outbox.recv().await {
        batch.clear();
        let mut next = Some(message);
        // One write for all queued messages.
        while let Some(message) = next {
            if serde_json::to_writer(&mut batch, &message).is_ok() {
                batch.push(b'\n');
            }
            next = outbox.try_recv().ok();
        }
        if writing.write_all(&batch).await.is_err() {
            return;
        }
    }
}
