//! The agent's side of the guardian: finds it or starts it, and keeps in touch.

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

use super::book::Book;
use super::socket;
use super::wire::{Answer, Ask, ExitRecord, Order, PROTOCOL, Request, Say, TaskState};
use crate::clock::millis;

/// How long a guardian may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a new guardian may take to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_millis(500);

type Post = (Ask, Option<oneshot::Sender<Answer>>);

/// The way to the guardian. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Guardian {
    post: UnboundedSender<Post>,
    book: Arc<Book>,
    until: Arc<AtomicU64>,
}

impl Guardian {
    /// Keeps in touch with the guardian of a folder from now on, and starts one whenever there is none.
    pub(crate) fn new(dir: PathBuf, program: PathBuf, interval: Duration) -> Self {
        let (post, inbox) = mpsc::unbounded_channel();
        let book = Arc::new(Book::default());
        let until = Arc::new(AtomicU64::new(0));
        let link = Link {
            dir,
            program,
            interval_ms: millis(interval),
            book: Arc::clone(&book),
            until: Arc::clone(&until),
            next: 0,
        };
        tokio::spawn(link.run(inbox));
        Self { post, book, until }
    }

    /// Starts a process.
    pub(crate) async fn start(&self, order: Order) -> Result<Answer, GuardianAway> {
        let key = order.key;
        let answer = self.ask(Ask::Start(Box::new(order))).await?;
        if let Answer::Started { at } = &answer {
            self.book.begun(key, *at);
        }
        Ok(answer)
    }

    /// How a task ended, once it did; none if the guardian does not know it.
    pub(crate) async fn wait(&self, key: TaskKey) -> Option<ExitRecord> {
        self.book.wait(key).await
    }

    /// Everything it has.
    pub(crate) async fn list(&self) -> Result<Vec<TaskState>, GuardianAway> {
        match self.ask(Ask::List).await? {
            Answer::Tasks { tasks } => Ok(tasks),
            _ => Err(GuardianAway),
        }
    }

    /// CPU milliseconds and MiB that a task has used.
    pub(crate) async fn used(&self, key: TaskKey) -> (u64, u64) {
        if let Some(record) = self.book.ended(key) {
            return (record.cpu_ms, record.memory);
        }
        match self.ask(Ask::Used { key }).await {
            Ok(Answer::Used { cpu_ms, memory }) => (cpu_ms, memory),
            _ => (0, 0),
        }
    }

    /// The processes of a task.
    pub(crate) async fn pids(&self, key: TaskKey) -> Vec<u32> {
        match self.ask(Ask::Pids { key }).await {
            Ok(Answer::Pids { pids }) => pids,
            _ => Vec::new(),
        }
    }

    /// Stops a task.
    pub(crate) fn stop(&self, key: TaskKey, cause: StopCause, grace: Duration) {
        self.tell(Ask::Stop { key, cause, grace_ms: grace.as_millis() as u64 });
    }

    /// The end of a task is known, and its folder is about to go.
    pub(crate) fn forget(&self, key: TaskKey) {
        self.book.forget(key);
        self.tell(Ask::Forget { key });
    }

    /// The lease holds until this moment of the boot-time clock.
    pub(crate) fn renew(&self, until_ms: u64) {
        self.until.fetch_max(until_ms, Ordering::Relaxed);
        self.tell(Ask::Renew { until_ms });
    }

    /// The task is a container of the engine behind this socket; stop it when the lease runs out. Returns when the
    /// guardian has it; otherwise the next one will be told.
    pub(crate) fn protect(
        &self,
        key: TaskKey,
        engine: PathBuf,
    ) -> impl Future<Output = Result<(), GuardianAway>> + use<> {
        self.book.protect(key, engine.clone());
        let answer = self.ask(Ask::Protect { key, engine });
        async move {
            match answer.await? {
                Answer::Done => Ok(()),
                _ => Err(GuardianAway),
            }
        }
    }

    /// It is not needed any more: it may go as soon as nothing is left to guard.
    pub(crate) async fn leave(&self) {
        let _ = tokio::time::timeout(FAREWELL, self.ask(Ask::Leave)).await;
    }

    fn tell(&self, ask: Ask) {
        // The link lives as long as the process; at its end nobody listens, and that is fine.
        let _ = self.post.send((ask, None));
    }

    /// Asks at once; the answer may be waited for.
    fn ask(&self, ask: Ask) -> impl Future<Output = Result<Answer, GuardianAway>> + use<> {
        let (reply, answer) = oneshot::channel();
        // Where nobody takes it, there is no answer either.
        let _ = self.post.send((ask, Some(reply)));
        async move {
            let answer = tokio::time::timeout(PATIENCE, answer).await;
            answer.map_err(|_| GuardianAway)?.map_err(|_| GuardianAway)
        }
    }
}

/// The guardian did not answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuardianAway;

struct Link {
    dir: PathBuf,
    program: PathBuf,
    interval_ms: u64,
    book: Arc<Book>,
    until: Arc<AtomicU64>,
    next: u64,
}

/// A connection, with the answers it owes.
struct Wire {
    lines: Lines<BufReader<OwnedReadHalf>>,
    writing: OwnedWriteHalf,
    owed: std::collections::HashMap<u64, oneshot::Sender<Answer>>,
}

impl Link {
    async fn run(mut self, mut inbox: UnboundedReceiver<Post>) {
        loop {
            match self.connect().await {
                Ok(wire) => {
                    if self.talk(wire, &mut inbox).await {
                        return;
                    }
                    warn!("lost touch with the guardian; looking for it");
                }
                Err(error) => {
                    warn!(%error, "no guardian yet; trying again");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// Talks until the connection breaks (false) or nobody is left to talk for (true).
    async fn talk(&mut self, mut wire: Wire, inbox: &mut UnboundedReceiver<Post>) -> bool {
        loop {
            tokio::select! {
                post = inbox.recv() => {
                    let Some(post) = post else { return true };
                    if self.send(&mut wire, post, inbox).await.is_err() {
                        return false;
                    }
                }
                line = wire.lines.next_line() => match line {
                    Ok(Some(line)) => self.hear(&mut wire, &line),
                    Ok(None) | Err(_) => return false,
                },
            }
        }
    }

    /// Sends what is there, all in one go.
    async fn send(
        &mut self,
        wire: &mut Wire,
        first: Post,
        inbox: &mut UnboundedReceiver<Post>,
    ) -> io::Result<()> {
        let mut batch = Vec::new();
        let mut next = Some(first);
        while let Some((ask, reply)) = next {
            next = inbox.try_recv().ok();
            // Whoever wanted this started has given up, and does not look after it.
            let given_up = reply.as_ref().is_some_and(oneshot::Sender::is_closed);
            if given_up && matches!(ask, Ask::Start(_)) {
                continue;
            }
            self.next += 1;
            serde_json::to_writer(&mut batch, &Request { id: self.next, ask })?;
            batch.push(b'\n');
            if let Some(reply) = reply {
                wire.owed.insert(self.next, reply);
            }
        }
        wire.writing.write_all(&batch).await
    }

    fn hear(&self, wire: &mut Wire, line: &str) {
        match serde_json::from_str(line) {
            Ok(Say::Answer { id, answer }) => {
                if let Some(reply) = wire.owed.remove(&id) {
                    let _ = reply.send(answer);
                }
            }
            Ok(Say::Ended { task }) => self.book.over(task),
            // Something that a newer guardian says; what we need to know it says in our words.
            Err(error) => debug!(%error, "the guardian said something that we do not understand"),
        }
    }

    async fn connect(&mut self) -> io::Result<Wire> {
        let stream = match socket::connect(&self.dir).await {
            Ok(stream) => stream,
            Err(_) => self.start().await?,
        };
        let (reading, writing) = stream.into_split();
        let lines = BufReader::new(reading).lines();
        let mut wire = Wire { lines, writing, owed: std::collections::HashMap::new() };
        tokio::time::timeout(PATIENCE, self.greet(&mut wire)).await.map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, "the guardian does not answer")
        })??;
        Ok(wire)
    }

    async fn greet(&mut self, wire: &mut Wire) -> io::Result<()> {
        match self.exchange(wire, Ask::Hello { interval_ms: self.interval_ms }).await? {
            Answer::Hello { protocol: PROTOCOL, .. } => {}
            _ => {
                return Err(io::Error::other(
                    "the guardian that is there is of another version; stop its jobs and it goes by itself",
                ));
            }
        }
        let until_ms = self.until.load(Ordering::Relaxed);
        if until_ms > 0 {
            self.exchange(wire, Ask::Renew { until_ms }).await?;
        }
        for (key, engine) in self.book.protected() {
            self.exchange(wire, Ask::Protect { key, engine }).await?;
        }
        if let Answer::Tasks { tasks } = self.exchange(wire, Ask::Watch).await? {
            self.book.replace(tasks);
        }
        Ok(())
    }

    async fn exchange(&mut self, wire: &mut Wire, ask: Ask) -> io::Result<Answer> {
        self.next += 1;
        let mut line = serde_json::to_vec(&Request { id: self.next, ask })?;
        line.push(b'\n');
        wire.writing.write_all(&line).await?;
        while let Some(line) = wire.lines.next_line().await? {
            if let Ok(Say::Answer { id, answer }) = serde_json::from_str(&line)
                && id == self.next
            {
                return Ok(answer);
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    /// Starts a guardian and waits until it listens.
    async fn start(&self) -> io::Result<UnixStream> {
        let mut child = command(&self.program, &self.dir)?.spawn()?;
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

/// The guardian as a command: without the agent's environment, which holds its token.
fn command(program: &Path, dir: &Path) -> io::Result<tokio::process::Command> {
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
