//! Takes messages from the server: over a stream that is held open, or by long polling where streams do not last.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use agentaflow_api::client::ClientError;
use agentaflow_api::client::agent::Position;
use agentaflow_api::link::Framed;

use crate::backoff::RECONNECT;
use crate::session::{Session, Sessions};
use crate::tasks::Tasks;

/// A stream that ends sooner was cut.
const SHORT: Duration = Duration::from_secs(5);

/// After so many cut streams in a row, polling does better.
const CUTS: u32 = 3;

/// How long to poll before a stream is tried again.
const POLLING: Duration = Duration::from_mins(5);

/// How long one poll waits.
const POLL_WAIT: Duration = Duration::from_secs(25);

/// Takes messages for ever.
pub(crate) async fn listen(sessions: Sessions, tasks: Tasks) {
    let mut current = sessions.subscribe();
    let mut listener = Listener { sessions, tasks, seen: Position::default(), cuts: 0 };
    let mut backoff = RECONNECT.start();
    loop {
        let Ok(session) = current.wait_for(Option::is_some).await.map(|session| session.clone())
        else {
            return;
        };
        let Some(session) = session else { continue };
        let begun = Instant::now();
        let result = tokio::select! {
            result = listener.take(&session) => result,
            _ = current.wait_for(|now| now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &session))) => Ok(()),
        };
        listener.sessions.set_connected(false);
        if begun.elapsed() > SHORT {
            backoff.reset();
        }
        if let Err(error) = result {
            debug!(%error, "the connection broke; connecting again");
            listener.sessions.doubt(&session, &error);
        }
        backoff.sleep().await;
    }
}

struct Listener {
    sessions: Sessions,
    tasks: Tasks,
    seen: Position,
    cuts: u32,
}

impl Listener {
    async fn take(&mut self, session: &Session) -> Result<(), ClientError> {
        if self.cuts >= CUTS {
            info!("streams are cut on the way to the server; polling for a while");
            self.cuts = 0;
            return self.poll(session).await;
        }
        let mut messages = match session.client.stream(&session.agent_id, &self.seen).await {
            Ok(messages) => messages,
            Err(error) => return Err(self.closed(session, error).await),
        };
        let begun = Instant::now();
        self.sessions.set_connected(true);
        let mut any = false;
        let result = loop {
            match messages.next().await {
                Ok(Some(framed)) => {
                    any = true;
                    if !self.hear(framed) {
                        break Ok(());
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let cut = result.is_err() && (begun.elapsed() < SHORT || !any);
        self.cuts = if cut { self.cuts + 1 } else { 0 };
        result
    }

    /// The stream could not be opened. If polling works all the same, something on the way cuts streams.
    async fn closed(&mut self, session: &Session, error: ClientError) -> ClientError {
        let lost = matches!(error, ClientError::Unreachable { .. });
        if lost && self.poll_once(session, Duration::ZERO).await.is_ok() {
            self.cuts += 1;
        }
        error
    }

    async fn poll(&mut self, session: &Session) -> Result<(), ClientError> {
        let begun = Instant::now();
        while begun.elapsed() < POLLING && self.poll_once(session, POLL_WAIT).await? {}
        Ok(())
    }

    /// False if messages were missed.
    async fn poll_once(&mut self, session: &Session, wait: Duration) -> Result<bool, ClientError> {
        let messages = session.client.poll(&session.agent_id, &self.seen, wait).await?;
        self.sessions.set_connected(true);
        Ok(messages.into_iter().all(|framed| self.hear(framed)))
    }

    /// Takes one message. False if some were missed: then everything is asked for anew.
    fn hear(&mut self, framed: Framed) -> bool {
        let same = self.seen.session.as_ref() == Some(&framed.session);
        if same && framed.seq <= self.seen.after {
            return true;
        }
        if same && framed.seq != self.seen.after + 1 {
            warn!("messages of the server were lost; asking for everything");
            self.seen = Position::default();
            return false;
        }
        self.seen = Position { session: Some(framed.session), after: framed.seq };
        self.tasks.obey(framed.message);
        true
    }
}
