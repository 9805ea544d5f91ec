//! Receives messages from the server over a long-lived stream, or by long polling where the network cuts streams.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use agentaflow_api::client::ClientError;
use agentaflow_api::client::agent::Position;
use agentaflow_api::link::Framed;

use crate::backoff::RECONNECT;
use crate::clock::{boot_ms, millis};
use crate::session::{Session, Sessions};
use crate::tasks::Tasks;

/// A stream that ends sooner counts as cut by the network.
const CUT_BEFORE: Duration = Duration::from_secs(5);

/// Consecutive cut streams after which the agent polls.
const CUTS_BEFORE_POLLING: u32 = 3;

/// Duration of polling before the agent opens a stream again.
const POLLING_PERIOD: Duration = Duration::from_mins(5);

/// Time for which the server holds one poll open.
const POLL_WAIT: Duration = Duration::from_secs(25);

/// Age at which a received message is too old. A message waits in the connection while this process or the machine is
/// paused, and the server may have assigned its task elsewhere. A network that stops for as long ends the stream.
const OLDEST: Duration = Duration::from_secs(20);

/// Interval of proofs that this process runs.
const PROOF_INTERVAL: Duration = Duration::from_secs(1);

/// Receives messages while a session exists; never ends.
pub(crate) async fn listen(sessions: Sessions, tasks: Tasks) {
    let mut current = sessions.subscribe();
    let position = Position::default();
    let mut listener =
        Listener { sessions, tasks, position, cuts: 0, wakefulness: Wakefulness::new() };
    let mut backoff = RECONNECT.start();
    loop {
        let Ok(session) = current.wait_for(Option::is_some).await.map(|session| session.clone())
        else {
            return;
        };
        let Some(session) = session else { continue };
        let begun = Instant::now();
        let result = tokio::select! {
            result = listener.receive(&session) => result,
            _ = current.wait_for(|now| now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &session))) => Ok(()),
        };
        listener.sessions.set_connected(false);
        if begun.elapsed() > CUT_BEFORE {
            backoff.reset();
        }
        if let Err(error) = result {
            if matches!(error, ClientError::Untrusted { .. }) {
                warn!(%error, "the server has another key than before; nothing is sent to it");
            }
            debug!(%error, "connection lost; reconnecting");
            listener.sessions.end_if_rejected(&session, &error);
        }
        backoff.sleep().await;
    }
}

struct Listener {
    sessions: Sessions,
    tasks: Tasks,
    position: Position,
    cuts: u32,
    wakefulness: Wakefulness,
}

/// Time at which this process last ran.
#[derive(Debug)]
struct Wakefulness {
    /// Boot-time clock, in milliseconds.
    awake_ms: u64,
}

impl Wakefulness {
    fn new() -> Self {
        Self { awake_ms: boot_ms() }
    }

    /// Awaits work; none if this process was paused for longer than `limit` since the work before.
    async fn unless_paused<T>(
        &mut self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(work);
        let done = loop {
            tokio::select! {
                biased;
                done = &mut work => break done,
                () = tokio::time::sleep(PROOF_INTERVAL.min(limit / 2)) => {
                    if self.was_paused(limit) {
                        return None;
                    }
                }
            }
        };
        (!self.was_paused(limit)).then_some(done)
    }

    fn was_paused(&mut self, limit: Duration) -> bool {
        let now = boot_ms();
        let before = std::mem::replace(&mut self.awake_ms, now);
        now.saturating_sub(before) > millis(limit)
    }
}

impl Listener {
    async fn receive(&mut self, session: &Session) -> Result<(), ClientError> {
        if self.cuts >= CUTS_BEFORE_POLLING {
            info!("the network cuts streams to the server; polling for 5 minutes");
            self.cuts = 0;
            return self.poll(session).await;
        }
        self.wakefulness = Wakefulness::new();
        let mut messages = match session.client.stream(&session.agent_id, &self.position).await {
            Ok(messages) => messages,
            Err(error) => return Err(self.count_refused_stream(session, error).await),
        };
        let begun = Instant::now();
        self.sessions.set_connected(true);
        let mut any = false;
        let result = loop {
            let next = self.wakefulness.unless_paused(OLDEST, messages.next()).await;
            let Some(next) = next else {
                self.request_full_sync("this process was paused; its messages are too old");
                break Ok(());
            };
            match next {
                Ok(Some(framed)) => {
                    any = true;
                    if !self.handle(framed) {
                        break Ok(());
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let cut = result.is_err() && (begun.elapsed() < CUT_BEFORE || !any);
        self.cuts = if cut { self.cuts + 1 } else { 0 };
        result
    }

    /// Counts a stream that could not be opened as cut if a poll succeeds.
    async fn count_refused_stream(&mut self, session: &Session, error: ClientError) -> ClientError {
        let unreachable = matches!(error, ClientError::Unreachable { .. });
        if unreachable && self.poll_once(session, Duration::ZERO).await.is_ok() {
            self.cuts += 1;
        }
        error
    }

    async fn poll(&mut self, session: &Session) -> Result<(), ClientError> {
        let begun = Instant::now();
        while begun.elapsed() < POLLING_PERIOD && self.poll_once(session, POLL_WAIT).await? {}
        Ok(())
    }

    /// Returns false if messages were lost.
    async fn poll_once(&mut self, session: &Session, wait: Duration) -> Result<bool, ClientError> {
        self.wakefulness = Wakefulness::new();
        let poll = session.client.poll(&session.agent_id, &self.position, wait);
        let Some(messages) = self.wakefulness.unless_paused(OLDEST, poll).await else {
            self.request_full_sync("this process was paused; its messages are too old");
            return Ok(false);
        };
        let messages = messages?;
        self.sessions.set_connected(true);
        Ok(messages.into_iter().all(|framed| self.handle(framed)))
    }

    /// Handles one message. Returns false if messages were lost; the next request then asks for a full sync.
    fn handle(&mut self, framed: Framed) -> bool {
        let same = self.position.session.as_ref() == Some(&framed.session);
        if same && framed.seq <= self.position.after {
            return true;
        }
        if same && framed.seq != self.position.after + 1 {
            self.request_full_sync("messages of the server were lost");
            return false;
        }
        self.position = Position { session: Some(framed.session), after: framed.seq };
        self.tasks.handle(framed.message);
        true
    }

    /// The next request asks for a full sync.
    fn request_full_sync(&mut self, reason: &str) {
        warn!("{reason}; requesting a full sync");
        self.position = Position::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    /// Pauses the only thread, and with it the whole process of the test.
    fn pause() {
        std::thread::sleep(LIMIT * 2);
    }

    #[tokio::test]
    async fn a_message_that_waited_while_the_process_was_paused_is_dropped() {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(4);
        let mut wakefulness = Wakefulness::new();
        sender.send("first").await.unwrap();
        assert_eq!(wakefulness.unless_paused(LIMIT, receiver.recv()).await, Some(Some("first")));
        sender.send("late").await.unwrap();
        pause();
        assert_eq!(wakefulness.unless_paused(LIMIT, receiver.recv()).await, None);

        let mut wakefulness = Wakefulness::new();
        tokio::spawn(async move {
            tokio::time::sleep(LIMIT / 4).await;
            pause();
            sender.send("after the pause").await.unwrap();
        });
        assert_eq!(wakefulness.unless_paused(LIMIT, receiver.recv()).await, None);
    }

    #[tokio::test]
    async fn a_long_wait_for_a_message_is_no_pause() {
        let mut wakefulness = Wakefulness::new();
        let wait = tokio::time::sleep(LIMIT * 3);
        assert_eq!(wakefulness.unless_paused(LIMIT, wait).await, Some(()));
    }
}
