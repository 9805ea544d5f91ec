//! The agent's standing with the server: absent until it is registered, and again when the server no longer knows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use agentaflow_api::client::{Client, ClientError};

/// A registration that holds.
#[derive(Debug)]
pub(crate) struct Session {
    /// Calls with the agent's own key.
    pub(crate) client: Client,
    /// The agent's name.
    pub(crate) agent_id: String,
    /// The node, as `gpu-…`.
    pub(crate) node_id: String,
}

/// The present session. Cheap to clone.
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
    /// To see how it changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<Session>>> {
        self.current.subscribe()
    }

    /// Registered.
    pub(crate) fn begin(&self, session: Session) {
        self.current.send_replace(Some(Arc::new(session)));
    }

    /// If the server no longer knows this session, it is over, and the agent registers again.
    pub(crate) fn doubt(&self, session: &Arc<Session>, error: &ClientError) {
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

    /// Ends the present session, or the next one if there is none: the server has to be told something new about us.
    pub(crate) async fn renew(&self) {
        // Fails only when nobody registers any more.
        let _ = self.subscribe().wait_for(Option::is_some).await;
        self.current.send_replace(None);
    }

    /// Whether messages of the server reach the agent now.
    pub(crate) fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    /// Registered, and messages reach the agent.
    pub(crate) fn is_ready(&self) -> bool {
        self.connected.load(Ordering::Relaxed) && self.current.borrow().is_some()
    }
}
