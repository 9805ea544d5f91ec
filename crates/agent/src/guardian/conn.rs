//! Connections of agents. A bad message spoils nothing but itself.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{self, Sender, UnboundedReceiver, UnboundedSender};

use super::keeper::Keeper;
use super::wire::{Answer, Ask, PROTOCOL, Request, Say};

/// The longest message that is read.
const LINE_LIMIT: u64 = 32 << 20;

/// A message of a connection; none when it is closed.
pub(super) type Incoming = (u64, Option<Result<Request, String>>);

#[derive(Debug)]
struct Conn {
    say: UnboundedSender<Say>,
    watches: bool,
}

/// The open connections.
#[derive(Debug, Default)]
pub(super) struct Conns {
    open: BTreeMap<u64, Conn>,
    next: u64,
}

impl Conns {
    /// An agent has connected.
    pub(super) fn open(&mut self, stream: UnixStream, requests: Sender<Incoming>) {
        self.next += 1;
        let (say, outbox) = mpsc::unbounded_channel();
        let (reading, writing) = stream.into_split();
        tokio::spawn(read(self.next, reading, requests));
        tokio::spawn(write(writing, outbox));
        self.open.insert(self.next, Conn { say, watches: false });
    }

    /// Any agent is there.
    pub(super) fn any(&self) -> bool {
        !self.open.is_empty()
    }

    /// Tells those who watch.
    pub(super) fn tell(&self, say: &Say) {
        for conn in self.open.values().filter(|conn| conn.watches) {
            // One that has gone is removed when its reader says so.
            let _ = conn.say.send(say.clone());
        }
    }

    /// Does what was asked, and answers.
    pub(super) fn answer(
        &mut self,
        id: u64,
        message: Option<Result<Request, String>>,
        keeper: &mut Keeper,
    ) {
        let Some(message) = message else {
            self.open.remove(&id);
            return;
        };
        let Some(conn) = self.open.get_mut(&id) else { return };
        let say = match message {
            Ok(request) => {
                conn.watches |= matches!(request.ask, Ask::Watch);
                Say::Answer { id: request.id, answer: carry_out(request.ask, keeper) }
            }
            Err(detail) => Say::Answer { id: 0, answer: Answer::Failed { job: false, detail } },
        };
        let _ = conn.say.send(say);
    }
}

fn carry_out(ask: Ask, keeper: &mut Keeper) -> Answer {
    match ask {
        Ask::Hello { interval_ms } => {
            keeper.set_interval(interval_ms);
            return Answer::Hello { protocol: PROTOCOL, pid: std::process::id() };
        }
        Ask::Start(order) => return keeper.start(&order),
        Ask::List | Ask::Watch => return Answer::Tasks { tasks: keeper.list() },
        Ask::Used { key } => {
            let (cpu_ms, memory) = keeper.used(key);
            return Answer::Used { cpu_ms, memory };
        }
        Ask::Pids { key } => return Answer::Pids { pids: keeper.pids(key) },
        Ask::Stop { key, cause, grace_ms } => {
            keeper.stop(key, cause, Duration::from_millis(grace_ms));
        }
        Ask::Renew { until_ms } => keeper.renew(until_ms),
        Ask::Forget { key } => keeper.forget(key),
        Ask::Leave => keeper.leave(),
        Ask::Protect { key, engine } => keeper.protect(key, engine),
    }
    Answer::Done
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
        // The message may hold secrets, so only the place of the fault is told.
        let message = serde_json::from_slice(&line)
            .map_err(|error| format!("the message cannot be read at column {}", error.column()));
        if requests.send((id, Some(message))).await.is_err() {
            break;
        }
    }
    let _ = requests.send((id, None)).await;
}

async fn write(mut writing: OwnedWriteHalf, mut outbox: UnboundedReceiver<Say>) {
    let mut batch = Vec::new();
    while let Some(say) = outbox.recv().await {
        batch.clear();
        let mut next = Some(say);
        // What is waiting goes in one write.
        while let Some(say) = next {
            if serde_json::to_writer(&mut batch, &say).is_ok() {
                batch.push(b'\n');
            }
            next = outbox.try_recv().ok();
        }
        if writing.write_all(&batch).await.is_err() {
            return;
        }
    }
}
