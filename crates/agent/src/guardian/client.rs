//! The agent's connection to the guardian: finds or starts the guardian, and reconnects.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tracing::{debug, warn};

use agentaflow_api::link::{StopCause, TaskKey};

use super::device_rule::DeviceControl;
use super::socket;
use super::task_cache::TaskCache;
use super::wire::{
    Command, ExitRecord, Message, PROTOCOL, ProcessSpec, Request, Response, TaskState, UsageRecord,
};
use crate::clock::millis;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest wait for the socket of a new guardian.
const START_LIMIT: Duration = Duration::from_secs(10);

const LEAVE_TIMEOUT: Duration = Duration::from_millis(500);

type QueuedCommand = (Command, Option<oneshot::Sender<Response>>);

/// Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Guardian {
    queue: UnboundedSender<QueuedCommand>,
    cache: Arc<TaskCache>,
    until: Arc<AtomicU64>,
}

impl Guardian {
    /// Connects to the guardian of a state directory in the background, and starts a guardian whenever none runs.
    pub(crate) fn new(dir: PathBuf, program: PathBuf, interval: Duration) -> Self {
        let (queue, inbox) = mpsc::unbounded_channel();
        let cache = Arc::new(TaskCache::default());
        let until = Arc::new(AtomicU64::new(0));
        let link = GuardianLink {
            dir,
            program,
            interval_ms: millis(interval),
            cache: Arc::clone(&cache),
            until: Arc::clone(&until),
            next_id: 0,
        };
        tokio::spawn(link.run(inbox));
        Self { queue, cache, until }
    }

    pub(crate) async fn start(&self, spec: ProcessSpec) -> Result<Response, GuardianUnreachable> {
        let key = spec.key;
        let response = self.call(Command::Start(Box::new(spec))).await?;
        if let Response::Started { at } = &response {
            self.cache.record_start(key, *at);
        }
        Ok(response)
    }

    /// Waits for the end of a task; `None` if the guardian does not know the task.
    pub(crate) async fn wait(&self, key: TaskKey) -> Option<ExitRecord> {
        self.cache.wait(key).await
    }

    pub(crate) async fn list(&self) -> Result<Vec<TaskState>, GuardianUnreachable> {
        match self.call(Command::List).await? {
            Response::Tasks { tasks } => Ok(tasks),
            _ => Err(GuardianUnreachable),
        }
    }

    /// Zeros for an unknown task.
    pub(crate) async fn usage(&self, key: TaskKey) -> UsageRecord {
        if let Some(record) = self.cache.ended(key) {
            return record.usage();
        }
        match self.call(Command::Usage { key }).await {
            Ok(Response::Usage(usage)) => usage,
            _ => UsageRecord::default(),
        }
    }

    pub(crate) async fn pids(&self, key: TaskKey) -> Vec<u32> {
        match self.call(Command::Pids { key }).await {
            Ok(Response::Pids { pids }) => pids,
            _ => Vec::new(),
        }
    }

    /// Enforcement of denied device files; `None` before the first connection.
    pub(crate) fn device_control(&self) -> Option<DeviceControl> {
        self.cache.device_control()
    }

    /// True if process jobs have their own temporary files.
    pub(crate) fn has_private_tmp(&self) -> bool {
        self.cache.has_private_tmp()
    }

    pub(crate) fn stop(&self, key: TaskKey, cause: StopCause, grace: Duration) {
        self.send(Command::Stop { key, cause, grace_ms: grace.as_millis() as u64 });
    }

    /// Drops a task whose end is reported; its folder is removed next.
    pub(crate) fn forget(&self, key: TaskKey) {
        self.cache.forget(key);
        self.send(Command::Forget { key });
    }

    /// `until_ms` is a moment of the boot-time clock.
    pub(crate) fn renew(&self, until_ms: u64) {
        self.until.fetch_max(until_ms, Ordering::Relaxed);
        self.send(Command::Renew { until_ms });
    }

    /// Registers a leased container, which the guardian stops when the lease expires. The command is sent at once; the
    /// future returns the guardian's confirmation. A new guardian gets the registration again.
    pub(crate) fn protect(
        &self,
        key: TaskKey,
        docker_socket: PathBuf,
    ) -> impl Future<Output = Result<(), GuardianUnreachable>> + use<> {
        self.cache.protect(key, docker_socket.clone());
        let response = self.call(Command::Protect { key, docker_socket });
        async move {
            match response.await? {
                Response::Done => Ok(()),
                _ => Err(GuardianUnreachable),
            }
        }
    }

    /// Lets the guardian exit as soon as it has no tasks.
    pub(crate) async fn leave(&self) {
        let _ = tokio::time::timeout(LEAVE_TIMEOUT, self.call(Command::Leave)).await;
    }

    fn send(&self, command: Command) {
        // Fails only at the end of the process.
        let _ = self.queue.send((command, None));
    }

    /// Sends a command at once; the future returns the response.
    fn call(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<Response, GuardianUnreachable>> + use<> {
        let (reply, response) = oneshot::channel();
        // Fails only at the end of the process; then there is no response either.
        let _ = self.queue.send((command, Some(reply)));
        async move {
            let response = tokio::time::timeout(RESPONSE_TIMEOUT, response).await;
            response.map_err(|_| GuardianUnreachable)?.map_err(|_| GuardianUnreachable)
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct GuardianUnreachable;

struct GuardianLink {
    dir: PathBuf,
    program: PathBuf,
    interval_ms: u64,
    cache: Arc<TaskCache>,
    until: Arc<AtomicU64>,
    next_id: u64,
}

/// Connection with the pending responses by request id.
struct Connection {
    lines: Lines<BufReader<OwnedReadHalf>>,
    writing: OwnedWriteHalf,
    pending: HashMap<u64, oneshot::Sender<Response>>,
}

impl GuardianLink {
    async fn run(mut self, mut inbox: UnboundedReceiver<QueuedCommand>) {
        loop {
            match self.connect().await {
                Ok(connection) => {
                    if self.serve(connection, &mut inbox).await {
                        return;
                    }
                    warn!("connection to the guardian lost; reconnecting");
                }
                Err(error) => {
                    warn!(%error, "cannot connect to the guardian; retrying");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// Exchanges messages until the connection breaks (false) or the agent drops its last handle (true).
    async fn serve(
        &mut self,
        mut connection: Connection,
        inbox: &mut UnboundedReceiver<QueuedCommand>,
    ) -> bool {
        loop {
            tokio::select! {
                command = inbox.recv() => {
                    let Some(command) = command else { return true };
                    if self.send(&mut connection, command, inbox).await.is_err() {
                        return false;
                    }
                }
                line = connection.lines.next_line() => match line {
                    Ok(Some(line)) => self.handle(&mut connection, &line),
                    Ok(None) | Err(_) => return false,
                },
            }
        }
    }

    /// Sends all queued commands in one write.
    async fn send(
        &mut self,
        connection: &mut Connection,
        first: QueuedCommand,
        inbox: &mut UnboundedReceiver<QueuedCommand>,
    ) -> io::Result<()> {
        let mut batch = Vec::new();
        let mut next = Some(first);
        while let Some((command, reply)) = next {
            next = inbox.try_recv().ok();
            // The caller no longer waits for this start and would not manage the task.
            let abandoned = reply.as_ref().is_some_and(oneshot::Sender::is_closed);
            if abandoned && matches!(command, Command::Start(_)) {
                continue;
            }
            self.next_id += 1;
            serde_json::to_writer(&mut batch, &Request { id: self.next_id, command })?;
            batch.push(b'\n');
            if let Some(reply) = reply {
                connection.pending.insert(self.next_id, reply);
            }
        }
        connection.writing.write_all(&batch).await
    }

    fn handle(&self, connection: &mut Connection, line: &str) {
        match serde_json::from_str(line) {
            Ok(Message::Response { id, response }) => {
                if let Some(reply) = connection.pending.remove(&id) {
                    let _ = reply.send(response);
                }
            }
            Ok(Message::Ended { task }) => self.cache.record_end(task),
            // A newer guardian may send additional messages.
            Err(error) => debug!(%error, "unknown message of the guardian"),
        }
    }

    async fn connect(&mut self) -> io::Result<Connection> {
        let stream = match socket::connect(&self.dir).await {
            Ok(stream) => stream,
            Err(_) => self.start().await?,
        };
        let (reading, writing) = stream.into_split();
        let lines = BufReader::new(reading).lines();
        let mut connection = Connection { lines, writing, pending: HashMap::new() };
        tokio::time::timeout(RESPONSE_TIMEOUT, self.handshake(&mut connection)).await.map_err(
            |_| io::Error::new(io::ErrorKind::TimedOut, "the guardian does not answer"),
        )??;
        Ok(connection)
    }

    async fn handshake(&mut self, connection: &mut Connection) -> io::Result<()> {
        match self.exchange(connection, Command::Hello { interval_ms: self.interval_ms }).await? {
            Response::Hello { protocol: PROTOCOL, device_control, private_tmp, .. } => {
                self.cache.set_host_controls(device_control, private_tmp);
            }
            _ => {
                return Err(io::Error::other(
                    "the running guardian has an incompatible version; it exits when its jobs end",
                ));
            }
        }
        let until_ms = self.until.load(Ordering::Relaxed);
        if until_ms > 0 {
            self.exchange(connection, Command::Renew { until_ms }).await?;
        }
        for (key, docker_socket) in self.cache.protected() {
            self.exchange(connection, Command::Protect { key, docker_socket }).await?;
        }
        if let Response::Tasks { tasks } = self.exchange(connection, Command::Watch).await? {
            self.cache.replace(tasks);
        }
        Ok(())
    }

    async fn exchange(
        &mut self,
        connection: &mut Connection,
        command: Command,
    ) -> io::Result<Response> {
        self.next_id += 1;
        let mut line = serde_json::to_vec(&Request { id: self.next_id, command })?;
        line.push(b'\n');
        connection.writing.write_all(&line).await?;
        while let Some(line) = connection.lines.next_line().await? {
            if let Ok(Message::Response { id, response }) = serde_json::from_str(&line)
                && id == self.next_id
            {
                return Ok(response);
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    /// Starts a guardian and waits for its socket.
    async fn start(&self) -> io::Result<UnixStream> {
        let mut child = guardian_command(&self.program, &self.dir)?.spawn()?;
        tokio::spawn(async move { child.wait().await });
        let began = tokio::time::Instant::now();
        loop {
            match socket::connect(&self.dir).await {
                Ok(stream) => return Ok(stream),
                Err(error) if began.elapsed() > START_LIMIT => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }
}

/// Command line of the guardian, without the agent's environment, which contains the registration token.
fn guardian_command(program: &Path, dir: &Path) -> io::Result<tokio::process::Command> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(dir.join("guardian.log"))?;
    let mut command = tokio::process::Command::new(program);
    command
        .args(["guardian", "--dir"])
        .arg(dir)
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| {
            ["PATH", "LANG", "LD_LIBRARY_PATH", "LOG_LEVEL", "RUST_LOG"]
                .iter()
                .any(|kept| name == kept)
        }))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    Ok(command)
}
