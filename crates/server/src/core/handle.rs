//! How the rest of the server talks to the core.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, broadcast, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use agentaflow_api::error::ErrorCode;
use agentaflow_api::event::Event;
use agentaflow_api::link::{Framed, Message};
use agentaflow_api::queue::{Queue, QueueSpec};
use agentaflow_api::units::{Dollars, Stamp};

use super::committer::Inner;
use super::hub::Hub;
use super::state::State;
use crate::api_error::ApiError;
use crate::directory::Directory;
use crate::secrets::{Keyring, SecretError};
use crate::settings::Settings;
use crate::store::{Change, Store, StoreError, UserRow};

/// A user who is known to be who they say.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The user, as of the request.
    pub user: Arc<UserRow>,
    /// Authenticated by a browser's cookie.
    pub by_cookie: bool,
}

/// A machine that is known to be what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Worker {
    /// With the key of this node.
    Node(i64),
    /// With the key of this agent, which works for that node.
    Agent {
        /// The agent's number.
        agent: i64,
        /// The node's number.
        node: i64,
    },
    /// With a registration token only.
    Token,
}

/// A node as callers name it: `gpu-…` or a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRef {
    /// By its `gpu-…` name.
    Name(String),
    /// By its number.
    Number(i64),
}

/// A key that makes a repeated submission safe, with the hash of the body it came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// The key.
    pub key: String,
    /// blake3 of the body, in hexadecimal.
    pub body: String,
}

/// Hands out numbers inside the core.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ids(pub crate::store::LastIds);

/// A change of people or keys: runs inside the core, alone, on the directory as it is. What it returns is
/// written, then put into the directory, then answered. If it refuses, nothing happens.
pub type DirectoryWrite<T> = Box<
    dyn FnOnce(&Directory, &mut Ids, Stamp) -> Result<(Vec<Change>, T), ApiError> + Send + 'static,
>;

/// What a held-open agent stream yields.
#[derive(Clone, Debug)]
pub enum StreamItem {
    /// A message.
    Message(Arc<Framed>),
    /// A sign of life.
    Ping,
}

/// The way to the core. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Core {
    pub(super) inner: Arc<Inner>,
}

impl Core {
    /// Loads the state from the store and starts the committer. The receiver yields what is to be pushed to
    /// nodes whose agents are called instead of calling.
    pub async fn start(
        settings: Arc<Settings>,
        store: Arc<dyn Store>,
        secrets: Arc<Keyring>,
    ) -> Result<(Self, mpsc::UnboundedReceiver<(i64, Message)>), StoreError> {
        let loaded = store.load(&Stamp::now().month()).await?;
        let state = State::load(settings.clone(), secrets.clone(), loaded, None);
        let (pushes, to_push) = mpsc::unbounded_channel();
        let inner = Arc::new(Inner {
            state: std::sync::Mutex::new(state),
            store,
            hub: Hub::new(format!("{:x}", Stamp::now().0)),
            events: broadcast::channel(4096).0,
            pushes,
            wake: Notify::new(),
            stop: CancellationToken::new(),
            done: CancellationToken::new(),
            fatal: CancellationToken::new(),
            settings,
            secrets,
            reasons: std::sync::Mutex::default(),
        });
        tokio::spawn(inner.clone().commit_for_ever());
        Ok((Self { inner }, to_push))
    }

    /// Changes something: runs alone, and returns when it is durable.
    pub(super) async fn act<T>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let (answer, ticket) = {
            let mut state = self.inner.lock();
            if let Some(why) = state.closed {
                return Err(ApiError::unavailable(why));
            }
            let answer = change(&mut state)?;
            // What was changed before may still be on its way to the disk: nobody is told of it earlier.
            let ticket = (state.batch.has_changes() || state.writing.is_some()).then(|| {
                let (sender, receiver) = oneshot::channel();
                state.batch.tickets.push(sender);
                receiver
            });
            (answer, ticket)
        };
        self.inner.wake.notify_one();
        if let Some(ticket) = ticket {
            let stopped = || ApiError::unavailable("the server is stopping; try again in a moment");
            ticket.await.map_err(|_| stopped())??;
        }
        Ok(answer)
    }

    /// Cancelled when the server must not go on: another one took over the database.
    pub fn fatal(&self) -> CancellationToken {
        self.inner.fatal.clone()
    }

    /// Stops taking anything, writes what is left, and lets go of the store. Returns when that is done.
    pub async fn stop(&self) {
        self.inner.stop.cancel();
        self.inner.wake.notify_one();
        let _ = tokio::time::timeout(Duration::from_secs(3), self.inner.done.cancelled()).await;
    }

    /// The store, for reading.
    pub fn store(&self) -> Arc<dyn Store> {
        self.inner.store.clone()
    }

    /// The settings.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.inner.settings
    }

    /// A look at people and keys. Keep it short: the core waits for it.
    pub fn directory<T>(&self, look: impl FnOnce(&Directory) -> T) -> T {
        look(&self.inner.lock().directory)
    }

    /// Changes people or keys.
    pub async fn write<T: Send + 'static>(&self, write: DirectoryWrite<T>) -> Result<T, ApiError> {
        self.act(|state| {
            let mut ids = state.ids;
            let (changes, answer) = write(&state.directory, &mut ids, Stamp::now())?;
            state.ids = ids;
            for change in &changes {
                match change {
                    Change::User(user) => {
                        state.directory.put_user((**user).clone());
                        state.money_moved = true;
                    }
                    Change::Credential(row) => state.directory.put_credential((**row).clone()),
                    Change::CredentialGone(id) => state.directory.drop_credential(*id),
                    _ => {}
                }
            }
            state.batch.changes.extend(changes);
            Ok(answer)
        })
        .await
    }

    /// Pays money in, or takes it back.
    pub async fn credit(
        &self,
        user: i64,
        amount: Dollars,
        note: Option<String>,
    ) -> Result<(), ApiError> {
        self.act(|state| state.credit(user, amount, note)).await
    }

    /// A user's balance and this month's spending, running jobs included.
    pub fn account(&self, user: i64) -> (Dollars, Dollars) {
        let mut state = self.inner.lock();
        let running = state.accrued(user);
        let account = state.account(user);
        (Dollars(account.balance - running), Dollars(account.spent + running))
    }

    /// Queues, by name.
    #[allow(clippy::unused_async, reason = "asking is a call like the others")]
    pub async fn queues(&self) -> Result<Vec<Queue>, ApiError> {
        Ok(self.inner.lock().show_queues())
    }

    /// Makes or changes a queue. The flag says whether it is new.
    pub async fn put_queue(
        &self,
        queue: QueueSpec,
        must_be_new: bool,
    ) -> Result<(Queue, bool), ApiError> {
        let name = queue.name.clone();
        self.act(|state| {
            let is_new = state.put_queue(queue, must_be_new)?;
            let shown = state.show_queues().into_iter().find(|queue| queue.spec.name == name);
            Ok((shown.unwrap_or_default(), is_new))
        })
        .await
    }

    /// Removes a queue; refused while it has jobs or children.
    pub async fn delete_queue(&self, name: &str) -> Result<(), ApiError> {
        self.act(|state| state.delete_queue(name)).await
    }

    /// Events as they are committed, from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Event>> {
        self.inner.events.subscribe()
    }

    /// Makes a new key for secrets and seals all that are kept with it. Returns how many were sealed anew.
    pub async fn rotate_secret_key(&self) -> Result<usize, ApiError> {
        self.inner.secrets.rotate().map_err(|error| {
            if let SecretError::Full { .. } = error {
                return ApiError::conflict(ErrorCode::KeyFileFull, error.to_string());
            }
            tracing::error!(%error, "the secret key could not be changed");
            ApiError::unavailable("the new key could not be written; the old one stays in force")
        })?;
        let renewed = self.act(|state| Ok(state.reseal())).await?;
        // That is durable now: older keys that nothing is sealed with can go.
        let sealed: Vec<String> = {
            let state = self.inner.lock();
            state.jobs.values().filter_map(|job| job.state.sealed.clone()).collect()
        };
        if let Err(error) = self.inner.secrets.forget_unused(sealed.iter().map(String::as_str)) {
            tracing::warn!(%error, "old secret keys could not be forgotten; they do no harm");
        }
        Ok(renewed)
    }

    /// Changes the cluster's strategy.
    pub async fn set_strategy(&self, name: &str) -> Result<(), ApiError> {
        self.act(|state| state.set_strategy(name)).await
    }

    /// The cluster's strategy.
    pub fn strategy(&self) -> &'static str {
        self.inner.lock().strategy().name()
    }

    /// Whether the server can keep its promises: the database answers and the core is alive.
    pub async fn ready(&self) -> Result<(), ApiError> {
        if let Some(why) = self.inner.lock().closed {
            return Err(ApiError::unavailable(why));
        }
        self.inner.store.ping().await.map_err(|error| unreadable(&error))
    }
}

pub(super) fn unreadable(error: &StoreError) -> ApiError {
    tracing::error!(%error, "the store cannot be read");
    ApiError::unavailable("the server cannot read its database now; try again in a moment")
}
