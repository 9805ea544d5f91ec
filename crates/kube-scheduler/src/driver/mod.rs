//! The scheduler as a program: watches in, writes out, one leader.
//!
//! One task holds the world and turns: changes and outcomes in, a pass of the engine, acts out. Everything that takes
//! time happens elsewhere (`watch`, `executor`). `run` is the whole life of a replica.

mod api;
mod api_discovery;
mod bind;
mod clock;
mod events;
mod executor;
mod http;
mod lease;
mod log_format;
mod metrics;
mod owner_lookup;
mod priority_classes;
mod status_writes;
mod usage_store;
mod watch;
mod writes;

use agentaflow_engine::Snapshot;
use kube::Client;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::state::{ActionResult, ClusterState, Settings};
use api::{ApiServer, Failure};
use clock::Clock;
use executor::Executor;
use http::{Health, Query};
use lease::{Leadership, Lease};
use metrics::Metrics;
use usage_store::UsageStore;
use watch::WatchUpdate;

/// How often past use is written down.
const MEMORY: Duration = Duration::from_secs(20);
/// How often metrics are counted anew.
const CENSUS: Duration = Duration::from_millis(500);
/// How much is taken in before the engine is asked.
const BATCH: usize = 4096;
/// How many questions are answered before the engine is asked.
const QUESTIONS: usize = 64;
/// Nodes whose scores are told with each placement in the debug log.
const SCORES_TOLD: usize = 5;

/// How a replica is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The namespace of the product: lease, settings, memory, `GPUNode` objects.
    pub namespace: String,
    /// What the engine is told.
    pub settings: Settings,
    /// The lease by which one of several leads.
    pub lease: String,
    /// The `ConfigMap` with settings that people change at run time.
    pub config: String,
    /// Who we are among the replicas.
    pub identity: String,
    /// Where health is served.
    pub health: Option<SocketAddr>,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The longest time between two passes.
    pub interval: Duration,
}

/// PendingCondition a replica ends.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// A port is taken, or may not be opened.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// PendingCondition.
        source: std::io::Error,
    },
    /// Another leads now.
    #[error("the lease was lost: another replica leads")]
    Lost,
}

/// Runs a replica until `stop`: waits to lead, leads, and executor over.
pub async fn run(
    options: Options,
    client: Client,
    stop: CancellationToken,
) -> Result<(), SchedulerError> {
    let metrics = Arc::new(Metrics::default());
    let (health, questions) = Health::new(metrics.clone());
    serve(&options, &health, &stop).await?;
    let server = ApiServer::new(client.clone());
    let lease = Lease::new(server.clone(), &options.namespace, &options.lease, &options.identity);
    // A follower is ready: it is there to take over.
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
    priority_classes::ensure(&server).await;
    let leader = Leader::new(options, client, server.clone(), leadership, health);
    let lost = leader.lead(questions, &stop).await;
    done.cancel();
    let ours = keeper.await.unwrap_or(false);
    metrics.set_leading(false);
    if ours {
        server.settle().await;
        lease.give_back().await;
    }
    if lost { Err(SchedulerError::Lost) } else { Ok(()) }
}

/// Opens both ports before anything is served: one that is taken is told at once, and whoever sees one open finds the
/// other.
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

/// A replica that leads.
struct Leader {
    options: Options,
    client: Client,
    server: ApiServer,
    leadership: Leadership,
    health: Health,
    executor: Executor,
    outcomes: mpsc::UnboundedReceiver<ActionResult>,
    memory: UsageStore,
    clock: Clock,
    missing: BTreeSet<&'static str>,
}

impl Leader {
    fn new(
        options: Options,
        client: Client,
        server: ApiServer,
        leadership: Leadership,
        health: Health,
    ) -> Self {
        let (sender, outcomes) = mpsc::unbounded_channel();
        let memory = UsageStore::new(
            server.clone(),
            &options.namespace,
            &format!("{}-memory", options.lease),
        );
        let metrics = health.metrics.clone();
        let executor =
            Executor::new(server.clone(), leadership.clone(), &options.identity, sender, metrics);
        let missing = watch::REQUIRED.into_iter().collect();
        let clock = Clock::new();
        Self {
            options,
            client,
            server,
            leadership,
            health,
            executor,
            outcomes,
            memory,
            clock,
            missing,
        }
    }

    /// Leads until `stop`, or until the lease is lost, which it says.
    async fn lead(
        mut self,
        mut questions: mpsc::Receiver<Query>,
        stop: &CancellationToken,
    ) -> bool {
        let remembered = self.remember(stop).await;
        let served = api_discovery::probe(&self.server, &self.leadership, stop).await;
        self.options.settings.kueue = served.kueue;
        self.missing.extend(served.required());
        let mut world =
            ClusterState::new(self.options.settings.clone(), remembered, self.clock.now());
        if tracing::enabled!(tracing::Level::DEBUG) {
            world.keep_rankings(SCORES_TOLD);
        }
        let (feeder, mut feeds) = mpsc::channel(BATCH);
        let watching = CancellationToken::new();
        let (namespace, config) = (&self.options.namespace, &self.options.config);
        let sources = watch::Sources { client: &self.client, server: &self.server, served };
        sources.watch_all(namespace, config, &feeder, &watching);
        drop(feeder);
        let mut changes = Vec::with_capacity(BATCH);
        let mut wake = Instant::now() + self.options.interval;
        let (mut counted, mut written) = (Instant::now(), Instant::now());
        // Something happened that was not counted, or not written down yet.
        let (mut uncounted, mut unwritten) = (false, false);
        let lost = loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break false,
                () = self.leadership.over.cancelled() => break true,
                count = feeds.recv_many(&mut changes, BATCH) => if count == 0 { break true },
                Some(outcome) = self.outcomes.recv() => {
                    (uncounted, unwritten) = (true, true);
                    self.take_outcomes(&mut world, outcome);
                }
                () = tokio::time::sleep_until(wake.into()) => {}
                Some(question) = questions.recv() => {
                    self.health.turn();
                    question.put(&mut world);
                    continue;
                }
            }
            self.health.turn();
            for _ in 0..QUESTIONS {
                let Ok(question) = questions.try_recv() else { break };
                question.put(&mut world);
            }
            (uncounted, unwritten) =
                (uncounted || !changes.is_empty(), unwritten || !changes.is_empty());
            for feed in changes.drain(..) {
                self.take_in(&mut world, feed);
            }
            while let Ok(outcome) = self.outcomes.try_recv() {
                world.done(self.clock.now(), outcome);
            }
            let (pause, acted) = self.turn(&mut world);
            (uncounted, unwritten) = (uncounted || acted, unwritten || acted);
            wake = Instant::now() + pause;
            if counted.elapsed() >= CENSUS {
                self.health.metrics.set_census(world.census());
                self.executor.give(world.queue_statuses());
                (counted, uncounted) = (Instant::now(), false);
            }
            if written.elapsed() >= MEMORY && self.missing.is_empty() {
                (written, unwritten) = (Instant::now(), false);
                self.write_memory(world.memory());
            }
            // Who asks for numbers must not wait for the next change.
            if uncounted {
                wake = wake.min(counted + CENSUS);
            }
            if unwritten {
                wake = wake.min(written + MEMORY);
            }
        };
        watching.cancel();
        if lost {
            return true;
        }
        self.executor.finish(api::TIMEOUT).await;
        if self.missing.is_empty()
            && let Err(error) = self.memory.write(&self.leadership, &world.memory()).await
        {
            tracing::warn!(%error, "past use could not be written down");
        }
        false
    }

    /// What the last leader left; asked for until there is an answer.
    async fn remember(&self, stop: &CancellationToken) -> Option<Snapshot> {
        while !stop.is_cancelled() && self.leadership.holds() {
            match self.memory.read().await {
                Ok(found) => return found,
                Err(Failure::Refused { message, .. }) => {
                    tracing::warn!(message, "past use may not be read; fair shares begin anew");
                    return None;
                }
                Err(error) => tracing::warn!(%error, "past use cannot be read yet"),
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        None
    }

    fn write_memory(&self, snapshot: Snapshot) {
        let (memory, leadership) = (self.memory.clone(), self.leadership.clone());
        tokio::spawn(async move {
            if let Err(error) = memory.write(&leadership, &snapshot).await {
                tracing::warn!(%error, "past use could not be written down");
            }
        });
    }

    fn take_outcomes(&mut self, world: &mut ClusterState, first: ActionResult) {
        world.done(self.clock.now(), first);
        while let Ok(outcome) = self.outcomes.try_recv() {
            world.done(self.clock.now(), outcome);
        }
    }

    fn take_in(&mut self, world: &mut ClusterState, feed: WatchUpdate) {
        match feed {
            WatchUpdate::Change(change) => {
                tracing::trace!(change = %log_format::ChangeSummary(&change), "seen");
                world.apply(self.clock.now(), change);
            }
            WatchUpdate::Kueue => {
                tracing::info!("Kueue is here: labels of its queues are its business from now on");
                self.options.settings.kueue = true;
                world.leave_queues_to_kueue();
            }
            WatchUpdate::Config(map) => self.configure(world, map.and_then(|map| map.data)),
            WatchUpdate::Listed(kind) => {
                if self.missing.remove(kind) && self.missing.is_empty() {
                    let began = Instant::now();
                    world.begin(self.clock.now());
                    self.health.set_ready(true);
                    tracing::info!(took = ?began.elapsed(), "everything is listed; deciding");
                }
            }
        }
    }

    /// Settings that people change at run time; what cannot be right changes nothing.
    fn configure(
        &self,
        world: &mut ClusterState,
        data: Option<std::collections::BTreeMap<String, String>>,
    ) {
        let settings = self.options.settings.clone();
        match settings.with_config(&data.unwrap_or_default()) {
            Ok(settings) => {
                tracing::info!(strategy = %settings.policy.strategy, "settings");
                world.set_settings(settings);
            }
            Err(error) => {
                tracing::warn!(%error, config = self.options.config, "settings not changed");
            }
        }
    }

    /// One pass; says how long to wait for the next, and whether anything was decided.
    fn turn(&self, world: &mut ClusterState) -> (Duration, bool) {
        let began = Instant::now();
        let step = world.step(self.clock.now());
        if self.missing.is_empty() {
            self.health.metrics.pass(began.elapsed());
        }
        for (event, why) in world.take_rejected() {
            self.health.metrics.rejected_events.inc();
            tracing::warn!(?event, %why, "the engine did not take a change");
        }
        for ranking in world.take_rankings() {
            tracing::debug!(scores = %log_format::RankingSummary(&ranking), "scored");
        }
        for act in &step.acts {
            tracing::debug!(act = %log_format::ActionSummary(act), "decided");
        }
        let acted = !step.acts.is_empty();
        self.executor.give(step.acts);
        let until =
            step.wake.map(|wake| Duration::from_millis(wake.0.saturating_sub(self.clock.now().0)));
        let pause = until.map_or(self.options.interval, |until| until.min(self.options.interval));
        (pause.max(Duration::from_millis(1)), acted)
    }
}
