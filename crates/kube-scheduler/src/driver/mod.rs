//! The scheduler as a program: watches in, writes out, one leader.
//!
//! One task owns the [`ClusterState`] and loops: watch events and action results in, one pass of the engine, actions out.
//! Everything that takes time runs in other tasks (`watch`, `executor`). [`Replica::run`] is the whole life of a replica.

mod alert_inputs;
mod alert_store;
mod alerts;
mod api;
mod api_discovery;
mod bind;
mod clock;
mod events;
mod executor;
mod http;
mod leader_address;
mod lease;
mod lease_times;
mod log_format;
pub(crate) mod metrics;
mod owner_lookup;
mod priority_classes;
mod status_writes;
mod traces;
mod usage_store;
mod watch;
mod writes;

use agentaflow_alerts::Facts;
use agentaflow_engine::Snapshot;
use agentaflow_kube_core::slim;
use agentaflow_metrics::Access;
use agentaflow_otlp::Collector;
use kube::Client;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::sync::watch as latest;
use tokio_util::sync::CancellationToken;

use crate::controller::EventType;
use crate::state::{Action, ActionResult, ClusterState, EventRecord, Key, ObjectRef, Settings};
use alerts::AlertTask;
use api::{ApiServer, Failure};
use clock::Clock;
use executor::Executor;
pub use http::ClusterReader;
use http::{Health, Query};
use leader_address::LeaderAddress;
use lease::{Leadership, Lease};
pub use lease_times::{LeaseTimes, LeaseTimesError};
use traces::Traces;
use usage_store::UsageStore;
use watch::WatchUpdate;

/// Interval of usage snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(20);
/// Interval of metric updates.
const METRICS_INTERVAL: Duration = Duration::from_millis(500);
/// Watch events applied before a pass.
const BATCH: usize = 4096;
/// Queries answered before a pass.
const MAX_QUERIES: usize = 64;
/// Nodes whose scores the debug log shows for each placement.
const SCORES_LOGGED: usize = 5;

/// Options of a replica.
#[derive(Clone, Debug)]
pub struct Options {
    /// The namespace of the product: lease, settings, usage snapshot, `GPUNode` objects.
    pub namespace: String,
    pub settings: Settings,
    /// Name of the Lease for leader election.
    pub lease: String,
    pub lease_times: LeaseTimes,
    /// Name of the `ConfigMap` with settings that apply at run time.
    pub config: String,
    /// Identity of this replica in the Lease.
    pub identity: String,
    /// Address of health and explain endpoints.
    pub health: Option<SocketAddr>,
    /// Address of the metrics endpoint.
    pub metrics: Option<SocketAddr>,
    pub metrics_access: Access,
    /// Receiver of traces; none exports nothing.
    pub traces: Option<Collector>,
    /// Address of the dashboard, for standby replicas; another program part serves it.
    pub dashboard: Option<SocketAddr>,
    /// IP under which other replicas reach this one, if an endpoint listens on all addresses.
    pub own_address: Option<IpAddr>,
    /// Longest time between two passes.
    pub interval: Duration,
    /// Certificate file of the webhook, whose expiry raises an alert; none if the webhook renews its own.
    pub certificate: Option<std::path::PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("the lease was lost: another replica leads")]
    Lost,
}

/// A replica before it runs.
#[expect(missing_debug_implementations, reason = "the client has none")]
pub struct Replica {
    options: Options,
    client: Client,
    health: Health,
    queries: mpsc::Receiver<Query>,
}

impl Replica {
    pub fn new(options: Options, client: Client) -> Self {
        let access = options.metrics_access.clone();
        let (health, queries) = Health::new(Arc::default(), access, LeaderAddress::default());
        Self { options, client, health, queries }
    }

    pub fn reader(&self) -> ClusterReader {
        ClusterReader::new(self.health.clone())
    }

    /// Runs until `stop`: waits for leadership, leads, and releases the lease.
    pub async fn run(self, stop: CancellationToken) -> Result<(), SchedulerError> {
        let Self { options, client, health, queries } = self;
        run(options, client, health, queries, stop).await
    }
}

async fn run(
    options: Options,
    client: Client,
    health: Health,
    queries: mpsc::Receiver<Query>,
    stop: CancellationToken,
) -> Result<(), SchedulerError> {
    let (metrics, leader) = (health.metrics.clone(), health.leader());
    serve(&options, &health, &stop).await?;
    let server = ApiServer::new(client.clone(), metrics.api_requests.clone());
    let lease = Lease::new(server.clone(), &options, leader);
    // A follower is ready to take over.
    health.set_ready(true);
    let Some(leadership) = lease.acquire(&stop).await else { return Ok(()) };
    health.set_ready(false);
    metrics.set_leading(true);
    let done = CancellationToken::new();
    let keeper = {
        let (lease, leadership, done) = (lease.clone(), leadership.clone(), done.clone());
        tokio::spawn(async move { lease.keep(&leadership, &done).await })
    };
    let server = server.during(&leadership);
    tokio::spawn(priority_classes::ensure(server.clone()));
    let leader = Leader::new(options, client, server.clone(), leadership, health);
    let lost = leader.lead(queries, &stop).await;
    done.cancel();
    let ours = keeper.await.unwrap_or(false);
    metrics.set_leading(false);
    if ours {
        server.drain().await;
        lease.release().await;
    }
    if lost { Err(SchedulerError::Lost) } else { Ok(()) }
}

/// Opens both ports before serving: a port in use is reported at once, and a client that finds one port open finds both
/// open.
async fn serve(
    options: &Options,
    health: &Health,
    stop: &CancellationToken,
) -> Result<(), SchedulerError> {
    let (for_health, for_metrics) = (listen(options.health).await?, listen(options.metrics).await?);
    if let Some(listener) = for_health {
        tokio::spawn(http::serve_health(listener, health.clone(), stop.clone()));
    }
    if let Some(listener) = for_metrics {
        tokio::spawn(http::serve_metrics(listener, health.clone(), stop.clone()));
    }
    Ok(())
}

async fn listen(address: Option<SocketAddr>) -> Result<Option<TcpListener>, SchedulerError> {
    let Some(address) = address else { return Ok(None) };
    let listener = TcpListener::bind(address).await;
    listener.map(Some).map_err(|source| SchedulerError::Listen { address, source })
}

/// Work that is done at most once in an interval.
struct Periodic {
    interval: Duration,
    last: Instant,
    /// Something changed since the last time: the loop wakes when the interval is over.
    stale: bool,
}

impl Periodic {
    fn new(interval: Duration) -> Self {
        Self { interval, last: Instant::now(), stale: false }
    }

    fn is_due(&self) -> bool {
        self.last.elapsed() >= self.interval
    }

    fn finish(&mut self) {
        self.last = Instant::now();
        self.stale = false;
    }

    fn wake(&self) -> Option<Instant> {
        self.stale.then_some(self.last + self.interval)
    }
}

struct Leader {
    options: Options,
    client: Client,
    server: ApiServer,
    leadership: Leadership,
    health: Health,
    executor: Executor,
    results: mpsc::UnboundedReceiver<ActionResult>,
    usage_store: UsageStore,
    clock: Clock,
    facts: latest::Sender<Facts>,
    goal: latest::Sender<Option<f64>>,
    missing: BTreeSet<&'static str>,
    traces: Option<Traces>,
}

impl Leader {
    fn new(
        options: Options,
        client: Client,
        server: ApiServer,
        leadership: Leadership,
        health: Health,
    ) -> Self {
        let (sender, results) = mpsc::unbounded_channel();
        let usage_store = UsageStore::new(
            server.clone(),
            &options.namespace,
            &format!("{}-memory", options.lease),
        );
        let metrics = health.metrics.clone();
        let executor =
            Executor::new(server.clone(), leadership.clone(), &options.identity, sender, metrics);
        let missing = watch::REQUIRED.into_iter().collect();
        let clock = Clock::new();
        let traces = options.traces.clone();
        let traces = traces.and_then(|to| Traces::start(to, &server, &options.identity));
        let (facts, goal) = (latest::Sender::default(), latest::Sender::default());
        Self {
            options,
            client,
            server,
            leadership,
            health,
            executor,
            results,
            usage_store,
            clock,
            facts,
            goal,
            missing,
            traces,
        }
    }

    /// Leads until `stop` or until the lease is lost; returns true if it was lost.
    async fn lead(mut self, mut queries: mpsc::Receiver<Query>, stop: &CancellationToken) -> bool {
        let usage = self.read_usage(stop).await;
        let served = api_discovery::discover(&self.server, &self.leadership, stop).await;
        self.options.settings.kueue = served.kueue;
        self.missing.extend(served.required());
        let mut state = ClusterState::new(self.options.settings.clone(), usage, self.clock.now());
        for kind in served.jobs() {
            state.watch_jobs(kind);
        }
        if tracing::enabled!(tracing::Level::DEBUG) {
            state.keep_rankings(SCORES_LOGGED);
        }
        let (sender, mut updates) = mpsc::channel(BATCH);
        let watching = CancellationToken::new();
        let (namespace, config) = (&self.options.namespace, &self.options.config);
        let sources = watch::Sources { client: &self.client, server: &self.server, served };
        sources.watch_all(namespace, config, &sender, &watching);
        drop(sender);
        self.goal.send_replace(goal(&self.options.settings));
        tokio::spawn(self.alert_task().run(watching.clone()));
        let mut batch = Vec::with_capacity(BATCH);
        let mut wake = Instant::now() + self.options.interval;
        let mut metrics = Periodic::new(METRICS_INTERVAL);
        let mut snapshot = Periodic::new(SNAPSHOT_INTERVAL);
        let lost = loop {
            let mut changed = false;
            tokio::select! {
                biased;
                () = stop.cancelled() => break false,
                () = self.leadership.over.cancelled() => break true,
                count = updates.recv_many(&mut batch, BATCH) => if count == 0 { break true },
                Some(result) = self.results.recv() => {
                    state.action_finished(self.clock.now(), result);
                    changed = true;
                }
                () = tokio::time::sleep_until(wake.into()) => {}
                Some(query) = queries.recv() => {
                    self.health.mark_alive();
                    query.answer(&mut state);
                    continue;
                }
            }
            self.health.mark_alive();
            for _ in 0..MAX_QUERIES {
                let Ok(query) = queries.try_recv() else { break };
                query.answer(&mut state);
            }
            changed |= !batch.is_empty();
            for update in batch.drain(..) {
                self.apply_update(&mut state, update);
            }
            while let Ok(result) = self.results.try_recv() {
                state.action_finished(self.clock.now(), result);
            }
            let (pause, has_actions) = self.run_pass(&mut state);
            metrics.stale |= changed || has_actions;
            snapshot.stale |= changed || has_actions;
            self.health.metrics.record(&state.take_activity());
            if metrics.is_due() {
                let passed = metrics.last.elapsed();
                self.health.metrics.set_summary(state.summary(), passed);
                if self.missing.is_empty() {
                    self.facts.send_replace(state.alert_facts(self.clock.now()));
                }
                self.executor.submit(state.queue_statuses());
                metrics.finish();
            }
            if snapshot.is_due() && self.missing.is_empty() {
                self.write_usage(state.memory());
                snapshot.finish();
            }
            let wakes = [Some(Instant::now() + pause), metrics.wake(), snapshot.wake()];
            wake = wakes.into_iter().flatten().min().unwrap_or(wake);
        };
        watching.cancel();
        if lost {
            return true;
        }
        self.executor.finish(api::TIMEOUT).await;
        if self.missing.is_empty()
            && let Err(error) = self.usage_store.write(&self.leadership, &state.memory()).await
        {
            tracing::warn!(%error, "cannot write the usage snapshot");
        }
        false
    }

    fn alert_task(&self) -> AlertTask {
        AlertTask {
            client: self.client.clone(),
            server: self.server.clone(),
            board: self.health.alerts.clone(),
            facts: self.facts.subscribe(),
            goal: self.goal.subscribe(),
            clock: self.clock,
            namespace: self.options.namespace.clone(),
            lease: self.options.lease.clone(),
            identity: self.options.identity.clone(),
            certificate: self.options.certificate.clone(),
        }
    }

    /// Reads the last leader's usage snapshot, until the API server answers.
    async fn read_usage(&self, stop: &CancellationToken) -> Option<Snapshot> {
        while !stop.is_cancelled() && self.leadership.holds() {
            match self.usage_store.read().await {
                Ok(found) => return found,
                Err(Failure::Refused { message, .. }) => {
                    tracing::warn!(
                        message,
                        "reading the usage snapshot is forbidden; fair shares start from zero"
                    );
                    return None;
                }
                Err(error) => tracing::warn!(%error, "cannot read the usage snapshot yet"),
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        None
    }

    fn write_usage(&self, snapshot: Snapshot) {
        let (usage_store, leadership) = (self.usage_store.clone(), self.leadership.clone());
        tokio::spawn(async move {
            if let Err(error) = usage_store.write(&leadership, &snapshot).await {
                tracing::warn!(%error, "cannot write the usage snapshot");
            }
        });
    }

    fn apply_update(&mut self, state: &mut ClusterState, update: WatchUpdate) {
        match update {
            WatchUpdate::Change(change) => {
                tracing::trace!(change = %log_format::ChangeSummary(&change), "seen");
                if let Some(traces) = &mut self.traces {
                    traces.observe_change(&change, self.missing.is_empty());
                }
                state.apply(self.clock.now(), change);
            }
            WatchUpdate::Kueue => {
                tracing::info!("Kueue was installed; its queue labels are ignored from now on");
                self.options.settings.kueue = true;
                state.kueue_installed();
            }
            WatchUpdate::Jobs(kind) => {
                tracing::info!(kind = kind.kind, "jobs of this kind are units from now on");
                state.watch_jobs(kind);
            }
            WatchUpdate::Config(map) => {
                self.configure(state, map.map(|map| *map).unwrap_or_default());
            }
            WatchUpdate::Listed(kind) => {
                if self.missing.remove(kind) && self.missing.is_empty() {
                    let began = Instant::now();
                    state.start(self.clock.now());
                    self.health.set_ready(true);
                    tracing::info!(took = ?began.elapsed(), "all kinds are listed; scheduling starts");
                }
            }
        }
    }

    /// Applies run-time settings. A refused one keeps its value and becomes an Event of the `ConfigMap`.
    fn configure(&self, state: &mut ClusterState, map: slim::ConfigMap) {
        let defaults = self.options.settings.clone();
        let (settings, refused) =
            defaults.with_config(&map.data.unwrap_or_default(), state.policy());
        if settings.policy != *state.policy() {
            tracing::info!(policy = ?settings.policy, "settings applied");
        }
        self.goal.send_replace(goal(&settings));
        state.set_settings(settings);
        let text = |text: Option<String>| text.unwrap_or_default();
        let (namespace, name) = (text(map.metadata.namespace), text(map.metadata.name));
        let uid: Arc<str> = text(map.metadata.uid).into();
        for setting in refused {
            tracing::warn!(%setting, config = self.options.config, "invalid setting");
            let key = Key::new(&namespace, &name);
            self.executor.submit(vec![Action::RecordEvent(EventRecord {
                object: ObjectRef { kind: "ConfigMap", key, uid: uid.clone() },
                event_type: EventType::Warning,
                reason: "InvalidSetting",
                message: setting.to_string(),
            })]);
        }
    }

    /// Runs one pass; returns the delay before the next pass, and true if there were actions.
    fn run_pass(&mut self, state: &mut ClusterState) -> (Duration, bool) {
        let began = Instant::now();
        let step = state.step(self.clock.now());
        if self.missing.is_empty() {
            self.health.metrics.pass(began.elapsed());
        }
        for (sender, why) in state.take_rejected() {
            self.health.metrics.rejected_events.inc();
            tracing::warn!(%sender, %why, "the engine rejected an event");
        }
        for ranking in state.take_rankings() {
            tracing::debug!(scores = %log_format::RankingSummary(&ranking), "scored");
        }
        for action in &step.actions {
            tracing::debug!(action = %log_format::ActionSummary(action), "decided");
        }
        if let Some(traces) = &mut self.traces {
            traces.observe_actions(&step.actions);
        }
        let has_actions = !step.actions.is_empty();
        self.executor.submit(step.actions);
        let until =
            step.wake.map(|wake| Duration::from_millis(wake.0.saturating_sub(self.clock.now().0)));
        let pause = until.map_or(self.options.interval, |until| until.min(self.options.interval));
        (pause.max(Duration::from_millis(1)), has_actions)
    }
}

/// Goal of the mean utilization in percent.
fn goal(settings: &Settings) -> Option<f64> {
    settings.policy.utilization_goal.map(|goal| f64::from(goal.get()))
}
