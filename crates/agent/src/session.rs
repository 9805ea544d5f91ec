//! Current registration of the agent: absent before the first registration and after the server rejects it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use agentaflow_api::client::{Client, ClientError};

#[derive(Debug)]
pub(crate) struct Session {
    /// Authenticates with the agent's API key.
    pub(crate) client: Client,
    pub(crate) agent_id: String,
    /// `gpu-…`.
    pub(crate) node_id: String,
}

/// Current session. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    current: Arc<watch::Sender<Option<Arc<Session>>>>,
    connected: Arc<AtomicBool>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { current: Arc::new(watch::Sender::new(None)), connected: Arc::default() }
    }
}

impl Sessions {
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<Session>>> {
        self.current.subscribe()
    }

    pub(crate) fn begin(&self, session: Session) {
        self.current.send_replace(Some(Arc::new(session)));
    }

    /// Ends the session if the error means that the server does not know the agent; the agent then registers again.
    pub(crate) fn end_if_rejected(&self, session: &Arc<Session>, error: &ClientError) {
        if !matches!(error.status(), Some(401 | 403 | 404)) {
            return;
        }
        self.current.send_if_modified(|current| {
            let same = current.as_ref().is_some_and(|current| Arc::ptr_eq(current, session));
            if same {
                *current = None;
            }
            same
        });
    }

    /// Ends the current session, or the next one if there is none, so that the agent registers with new facts.
    pub(crate) async fn restart(&self) {
        // Fails only when the registrar has ended.
        let _ = self.subscribe().wait_for(Option::is_some).await;
        self.current.send_replace(None);
    }

    pub(crate) fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    /// True when the agent is registered and receives messages.
    pub(crate) fn is_ready(&self) -> bool {
        self.connected.load(Ordering::Relaxed) && self.current.borrow().is_some()
    }
}
