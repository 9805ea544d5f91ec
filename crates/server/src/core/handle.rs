//! Interface of the core to the rest of the server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use agentaflow_api::error::{ErrorCode, ResourceKind};
use agentaflow_api::event::Event;
use agentaflow_api::ids::{AgentId, CredentialId, EventSeq, JobId, MicroUsd, NodeId, UserId};
use agentaflow_api::link::Framed;
use agentaflow_api::queue::{Queue, QueueSpec};
use agentaflow_api::units::Stamp;

use super::activity::Activity;
use super::clock::Clock;
use super::committer::Inner;
use super::journal::AgentMessage;
use super::ledger::AccountSummary;
use super::outbox::Outboxes;
use super::planner::Planner;
use super::published::Published;
use super::restore::{LEASE, TRACED_UNTIL, clock_anchor};
use super::state::State;
use crate::api_error::ApiError;
use crate::directory::{Directory, SharedDirectory};
use crate::secrets::{Keyring, SecretError};
use crate::settings::Settings;
use crate::storage::{AccountStorage, Storage};
use crate::store::{Change, LastIds, Loaded, Store, StoreError, UserRow};

/// An authenticated user.
#[derive(Clone, Debug)]
pub struct Caller {
    /// User record as of the request.
    pub user: Arc<UserRow>,
    /// Authenticated by the cookie of a browser.
    pub by_cookie: bool,
}

/// An authenticated machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Worker {
    /// With the key of this node.
    Node(NodeId),
    /// With the key of this agent, which works for that node.
    Agent { agent: AgentId, node: NodeId },
    /// With a registration token.
    Token,
}

/// Credential of a caller that registers a node or agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registrant {
    /// A registration token; with its number if its uses are limited.
    Token { limited: Option<CredentialId> },
    /// The current key of this node or of its agent.
    Key(NodeId),
}

/// A node as callers name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRef {
    /// `gpu-…`
    Name(String),
    Number(NodeId),
}

impl NodeRef {
    pub(crate) fn not_found(&self) -> ApiError {
        match self {
            Self::Name(name) => ApiError::not_found(ResourceKind::Node, name),
            Self::Number(id) => ApiError::not_found(ResourceKind::Node, id),
        }
    }
}

/// A key that makes a repeated submission safe, with the hash of its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    pub key: String,
    /// SHA-256 of the body, in hexadecimal.
    pub body: String,
}

/// Last ids of users and credentials.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ids(pub LastIds);

/// A change of users or credentials. The core runs it alone, with the directory as it is, and applies the changes that
/// it returns; an error changes nothing.
pub type DirectoryWrite<T> = Box<
    dyn FnOnce(&Directory, &mut Ids, Stamp) -> Result<(Vec<Change>, T), ApiError> + Send + 'static,
>;

/// Item of an agent's stream.
#[derive(Clone, Debug)]
pub enum StreamItem {
    Message(Arc<Framed>),
    Ping,
}

/// Handle of the core. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Core {
    pub(super) inner: Arc<Inner>,
}

impl Core {
    /// Loads the state from the store and starts the committer. The receiver yields the messages for agents that the
    /// server calls.
    pub async fn start(
        settings: Arc<Settings>,
        store: Arc<dyn Store>,
        secrets: Arc<Keyring>,
    ) -> Result<(Self, mpsc::UnboundedReceiver<AgentMessage>), StoreError> {
        let (clock, loaded) = load_at_start(&*store, &settings).await?;
        save_longer_lease(&*store, &settings, &loaded.meta).await?;
        let directory = SharedDirectory::default();
        let mut state =
            State::load(settings.clone(), secrets.clone(), directory.clone(), loaded, clock, None);
        let lease = state.nodes.lease();
        let lease_to_save = AtomicBool::new(lease.earlier_leases_valid(Instant::now()));
        let published = Published::default();
        state.publish(&published);
        let activity = state.activity.clone();
        let storage = state.storage.clone();
        let planner = Planner::new(state.engine.changes().clone());
        let (pushes, to_push) = mpsc::unbounded_channel();
        let inner = Arc::new(Inner {
            state: std::sync::Mutex::new(state),
            published,
            directory,
            store,
            outboxes: Outboxes::new(format!("{:x}", Stamp::now().0)),
            events: broadcast::channel(4096).0,
            pushes,
            wake: Notify::new(),
            stop: CancellationToken::new(),
            done: CancellationToken::new(),
            fatal: CancellationToken::new(),
            settings,
            secrets,
            clock,
            activity,
            storage,
            lease_to_save,
            planner,
        });
        tokio::spawn(inner.clone().run_committer());
        let core = Self { inner };
        tokio::spawn(core.clone().meter_gpu_time());
        // Readers of the store must not see records that were changed while they were loaded.
        if let Err(error) = core.change(|_| Ok(())).await {
            tracing::warn!(%error, "Cannot write the records that were changed at the start");
        }
        Ok((core, to_push))
    }

    /// Last event whose job has been exported as a trace.
    pub(crate) fn traced_until(&self) -> EventSeq {
        self.inner.lock().traced_until
    }

    pub(crate) async fn set_traced_until(&self, seq: EventSeq) -> Result<(), ApiError> {
        self.change(|state| {
            state.traced_until = seq;
            state.journal.write(Change::Meta(TRACED_UNTIL, seq.to_string()));
            Ok(())
        })
        .await
    }

    /// Runs a change under the lock and returns once it is durable and published.
    pub(super) async fn change<T>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let (answer, ticket) = {
            let mut state = self.inner.lock();
            state.journal.check_open()?;
            let answer = change(&mut state)?;
            // A caller learns nothing of an earlier change that is still being written.
            let pending = state.has_changes() || state.journal.is_writing();
            let ticket = pending.then(|| state.journal.ticket());
            if ticket.is_none() {
                state.publish(&self.inner.published);
            }
            (answer, ticket)
        };
        self.inner.wake.notify_one();
        if let Some(ticket) = ticket {
            let stopped = || ApiError::unavailable("the server is stopping; try again in a moment");
            ticket.await.map_err(|_| stopped())??;
        }
        Ok(answer)
    }

    /// Cancelled when another server took over the database.
    pub fn fatal(&self) -> CancellationToken {
        self.inner.fatal.clone()
    }

    /// Accepts no more changes, writes the last batch, and closes the store.
    pub async fn stop(&self) {
        self.inner.stop.cancel();
        self.inner.wake.notify_one();
        let _ = tokio::time::timeout(Duration::from_secs(3), self.inner.done.cancelled()).await;
    }

    /// Counters and histograms.
    pub(crate) fn activity(&self) -> &Activity {
        &self.inner.activity
    }

    /// Time of the server. It never jumps.
    pub fn now(&self) -> Stamp {
        self.inner.clock.stamp()
    }

    /// The store, for reading.
    pub fn store(&self) -> Arc<dyn Store> {
        self.inner.store.clone()
    }

    pub fn settings(&self) -> &Arc<Settings> {
        &self.inner.settings
    }

    /// Reads users and credentials, without the core's lock.
    pub fn directory<T>(&self, read: impl FnOnce(&Directory) -> T) -> T {
        read(&self.inner.directory.read())
    }

    /// Changes users or credentials.
    pub async fn write<T: Send + 'static>(&self, write: DirectoryWrite<T>) -> Result<T, ApiError> {
        self.change(|state| {
            let mut ids = state.ids;
            let (changes, answer) = write(&state.directory.read(), &mut ids, Stamp::now())?;
            state.ids = ids;
            let mut directory = state.directory.write();
            for change in &changes {
                match change {
                    Change::User(user) => {
                        directory.put_user((**user).clone());
                        state.ledger.mark_budget_stale(user.id);
                    }
                    Change::Credential(row) => directory.put_credential((**row).clone()),
                    Change::CredentialGone(id) => directory.drop_credential(*id),
                    _ => {}
                }
            }
            drop(directory);
            state.journal.write_all(changes);
            Ok(answer)
        })
        .await
    }

    /// Books a payment, or a withdrawal if negative.
    pub async fn credit(
        &self,
        user: UserId,
        amount: MicroUsd,
        note: Option<String>,
    ) -> Result<(), ApiError> {
        self.change(|state| state.credit_account(user, amount, note)).await
    }

    /// Balance and spending of a user, running tasks included.
    pub fn account(&self, user: UserId) -> AccountSummary {
        self.inner.published.account(user, self.now(), self.inner.clock)
    }

    /// All queues, the root queue first, then by name.
    pub fn queues(&self) -> Vec<Queue> {
        self.inner.published.queues()
    }

    pub fn queue(&self, name: &str) -> Option<Queue> {
        self.inner.published.queue(name)
    }

    /// Creates or replaces a queue. The flag is true if the queue is new.
    pub async fn put_queue(
        &self,
        queue: QueueSpec,
        must_be_new: bool,
    ) -> Result<(Queue, bool), ApiError> {
        let name = queue.name.clone();
        let is_new = self.change(|state| state.put_queue(queue, must_be_new)).await?;
        Ok((self.queue(&name).unwrap_or_default(), is_new))
    }

    /// Queue that names this user.
    pub fn queue_naming(&self, username: &str) -> Option<String> {
        self.inner.lock().queues.naming(username).map(str::to_owned)
    }

    /// Deletes a queue without jobs and child queues.
    pub async fn delete_queue(&self, name: &str) -> Result<(), ApiError> {
        self.change(|state| state.delete_queue(name)).await
    }

    /// Events as they are committed, from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Event>> {
        self.inner.events.subscribe()
    }

    /// Creates a new key for secrets and reseals all secrets with it. Returns the number of jobs resealed.
    pub async fn rotate_secret_key(&self) -> Result<usize, ApiError> {
        self.inner.secrets.rotate().map_err(|error| {
            if let SecretError::Full { .. } = error {
                return ApiError::conflict(ErrorCode::KeyFileFull, error.to_string());
            }
            tracing::error!(%error, "Cannot change the secret key");
            ApiError::unavailable("the new key could not be written; the old one stays in force")
        })?;
        let resealed = self.change(|state| Ok(state.reseal_secrets())).await?;
        // The resealed secrets are durable: keys without a secret can be removed.
        let sealed: Vec<String> = {
            let state = self.inner.lock();
            state.jobs.iter().filter_map(|job| job.state.sealed.clone()).collect()
        };
        if let Err(error) = self.inner.secrets.forget_unused(sealed.iter().map(String::as_str)) {
            tracing::warn!(%error, "Cannot remove old secret keys");
        }
        Ok(resealed)
    }

    /// Sets the scheduling strategy of the cluster.
    pub async fn set_strategy(&self, name: &str) -> Result<(), ApiError> {
        self.change(|state| state.set_strategy(name)).await
    }

    pub fn strategy(&self) -> &'static str {
        self.inner.lock().engine.scheduler().policy().strategy.name()
    }

    /// Jobs that have not ended.
    pub fn live_jobs(&self) -> BTreeSet<JobId> {
        self.inner.lock().jobs.iter().map(|job| job.id).collect()
    }

    /// Deletes ended jobs and their events.
    pub(crate) async fn forget_jobs(&self, jobs: Vec<JobId>) -> Result<(), ApiError> {
        if jobs.is_empty() {
            return Ok(());
        }
        self.change(|state| {
            state.journal.write(Change::JobsGone(jobs));
            Ok(())
        })
        .await
    }

    /// Deletes events of nodes from before this time.
    pub(crate) async fn forget_events(&self, at: Stamp) -> Result<(), ApiError> {
        self.change(|state| {
            let last = state.journal.last_event();
            state.journal.write(Change::EventsBefore { at, last });
            Ok(())
        })
        .await
    }

    /// Stored bytes of accounts.
    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.inner.storage
    }

    /// Storage of the owner of a live job.
    pub fn storage_of(&self, job: JobId) -> Option<AccountStorage> {
        let owner = self.inner.lock().jobs.get_unsaved(job).map(|row| row.user_id)?;
        Some(self.inner.storage.account(owner))
    }

    /// Highest number of a job.
    pub fn last_job(&self) -> JobId {
        self.inner.lock().jobs.last_id()
    }

    /// Fails unless the database answers and the core accepts changes.
    pub async fn ready(&self) -> Result<(), ApiError> {
        self.inner.lock().journal.check_open()?;
        self.inner.store.ping().await.map_err(|error| unreadable(&error))
    }
}

/// Clock and state at the start. Spending is that of the month of the budgets, which the clock of the last run determines.
async fn load_at_start(
    store: &dyn Store,
    settings: &Settings,
) -> Result<(Clock, Loaded), StoreError> {
    let wall = Clock::start(&settings.wall_clock);
    let loaded = store.load(&wall.month()).await?;
    let clock = clock_anchor(&loaded.meta).map_or(wall, |anchor| wall.after(&anchor));
    if clock.month() == wall.month() {
        return Ok((clock, loaded));
    }
    Ok((clock, store.load(&clock.month()).await?))
}

/// Saves the length of leases before the server grants the first one, so that a later server with a shorter setting waits
/// for their end. A shorter length is saved once no longer lease is valid.
async fn save_longer_lease(
    store: &dyn Store,
    settings: &Settings,
    meta: &BTreeMap<String, String>,
) -> Result<(), StoreError> {
    let length = settings.lease.as_millis();
    let saved = meta.get(LEASE).and_then(|ms| ms.parse::<u128>().ok());
    if saved.is_some_and(|saved| saved >= length) {
        return Ok(());
    }
    store.commit(&[Change::Meta(LEASE, length.to_string())]).await
}

pub(super) fn unreadable(error: &StoreError) -> ApiError {
    tracing::error!(%error, "Cannot read the store");
    ApiError::unavailable("the server cannot read its database now; try again in a moment")
}
