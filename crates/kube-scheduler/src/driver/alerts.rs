//! Alerts of the leader: takes facts from the loop that owns the state, stores the state of the alerts in a `ConfigMap`, and
//! delivers messages. It is a task of its own, so that a loop that makes no progress raises an alert.
//!
//! As on the server, the state is stored before a message is sent: a leader that is killed in between leaves the message to
//! the next leader, which sends it with the same id.

use agentaflow_alerts::deliver::deliver;
use agentaflow_alerts::{
    Alerts, CertificateFacts, Config, Delivery, Facts, Message, Secrets, State, Transition,
    TransitionKind,
};
use agentaflow_api::alert::{AlertReport, AlertTestReport, AlertTestRequest, AlertTestResult};
use agentaflow_api::units::Stamp;
use agentaflow_kube_core::{names, slim};
use kube::Client;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::alert_inputs::{Found, Inputs, follow};
use super::alert_store::AlertStore;
use super::api::{ApiServer, Failure};
use super::clock::Clock;
use super::events;
use crate::controller::EventType;
use crate::state::{EventRecord, Key, ObjectRef};

/// Pause between attempts to read the stored state.
const READ_PAUSE: Duration = Duration::from_millis(500);

/// Alerts as of now, shared with the HTTP endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct AlertBoard(Arc<Mutex<Board>>);

#[derive(Debug, Default)]
struct Board {
    alerts: Alerts,
    inputs: Inputs,
    last_test: Option<AlertTestReport>,
    now: Stamp,
}

impl AlertBoard {
    pub(crate) fn report(&self) -> AlertReport {
        let board = self.lock();
        AlertReport {
            problems: board.inputs.problems.clone(),
            last_test: board.last_test.clone(),
            ..board.alerts.report(board.now)
        }
    }

    fn lock(&self) -> MutexGuard<'_, Board> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new leader starts with the stored state.
    fn replace(&self, alerts: Alerts) {
        *self.lock() = Board { alerts, ..Board::default() };
    }

    /// Takes over changed inputs; a changed secret may repair a sink.
    fn set_inputs(&self, inputs: Inputs) {
        let mut board = self.lock();
        board.alerts.set_config(inputs.config.clone());
        board.alerts.set_silences(inputs.silences.clone());
        if board.inputs.secrets != inputs.secrets {
            board.alerts.retry_now();
        }
        for problem in &inputs.problems {
            if !board.inputs.problems.contains(problem) {
                tracing::warn!(%problem, "invalid setting of the alerts");
            }
        }
        board.inputs = inputs;
    }
}

/// Connections of the task.
pub(crate) struct AlertTask {
    pub(crate) client: Client,
    /// Writes during this leadership only.
    pub(crate) server: ApiServer,
    pub(crate) board: AlertBoard,
    pub(crate) facts: watch::Receiver<Facts>,
    /// Goal of the mean utilization in percent.
    pub(crate) goal: watch::Receiver<Option<f64>>,
    pub(crate) clock: Clock,
    pub(crate) namespace: String,
    pub(crate) lease: String,
    pub(crate) identity: String,
    /// Certificate file of the webhook.
    pub(crate) certificate: Option<PathBuf>,
}

struct Running {
    task: AlertTask,
    store: AlertStore,
    map: watch::Receiver<Found<slim::ConfigMap>>,
    secret: watch::Receiver<Found<slim::Secret>>,
    /// Revision of the stored state.
    saved: Option<u64>,
    wake: Arc<Notify>,
}

impl AlertTask {
    /// Evaluates the rules and delivers messages until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let (map_sender, map) = watch::channel(None);
        let (secret_sender, secret) = watch::channel(None);
        let (client, namespace) = (self.client.clone(), self.namespace.clone());
        tokio::spawn(follow(client, namespace, names::ALERTS, map_sender, stop.clone()));
        let (client, namespace) = (self.client.clone(), self.namespace.clone());
        tokio::spawn(follow(client, namespace, names::ALERT_SECRET, secret_sender, stop.clone()));
        let store = AlertStore::new(self.server.clone(), &self.namespace, &self.lease);
        let Some(state) = stop.run_until_cancelled(read(&store)).await else { return };
        self.board.replace(Alerts::new(Config::default(), state));
        let wake = Arc::new(Notify::new());
        let mut running = Running { task: self, store, map, secret, saved: None, wake };
        // Without the sinks, the state of their messages would be dropped.
        let known = async {
            let _ = running.map.wait_for(Option::is_some).await;
            let _ = running.secret.wait_for(Option::is_some).await;
        };
        if stop.run_until_cancelled(known).await.is_none() {
            return;
        }
        running.apply_inputs();
        running.lead(&stop).await;
    }

    fn now(&self) -> Stamp {
        Stamp(i64::try_from(self.clock.now().0).unwrap_or(i64::MAX))
    }
}

/// State of the last leader, once the API server answers.
async fn read(store: &AlertStore) -> State {
    loop {
        match store.read().await {
            Ok(state) => return state,
            Err(Failure::Refused { message, .. }) => {
                tracing::warn!(message, "reading the alerts is forbidden; they start anew");
                return State::default();
            }
            Err(error) => tracing::warn!(%error, "cannot read the alerts yet"),
        }
        tokio::time::sleep(READ_PAUSE).await;
    }
}

impl Running {
    async fn lead(&mut self, stop: &CancellationToken) {
        let mut interval = self.task.board.lock().alerts.config().interval;
        let mut ticks = ticks(interval);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.wake.notified() => {}
                _ = ticks.tick() => {}
                Ok(()) = self.map.changed() => self.apply_inputs(),
                Ok(()) = self.secret.changed() => self.apply_inputs(),
                Ok(()) = self.task.goal.changed() => self.apply_inputs(),
            }
            let configured = self.task.board.lock().alerts.config().interval;
            if configured != interval {
                interval = configured;
                ticks = self::ticks(interval);
            }
            self.turn().await;
        }
        self.save().await;
    }

    /// Evaluates the rules, stores the state, and starts the deliveries that are due.
    async fn turn(&mut self) {
        let now = self.task.now();
        let mut facts = self.task.facts.borrow_and_update().clone();
        if let Some(file) = &self.task.certificate {
            facts.certificates.extend(CertificateFacts::of_file(file));
        }
        let (transitions, deliveries, test) = {
            let mut board = self.task.board.lock();
            board.now = now;
            // The loop has not begun its first turn yet.
            let transitions = if facts.scheduler.is_some() {
                board.alerts.observe(now, &facts)
            } else {
                Vec::new()
            };
            let test = board
                .inputs
                .test
                .clone()
                .filter(|test| board.last_test.as_ref().is_none_or(|last| last.id != test.id));
            if let Some(test) = &test {
                board.last_test =
                    Some(AlertTestReport { id: test.id.clone(), ..AlertTestReport::default() });
            }
            (transitions, board.alerts.due(now), test)
        };
        self.save().await;
        for transition in &transitions {
            self.record(transition).await;
        }
        for delivery in deliveries {
            let (board, wake) = (self.task.board.clone(), self.wake.clone());
            tokio::spawn(attempt(board, delivery, self.task.clock, wake));
        }
        if let Some(test) = test {
            tokio::spawn(send_test(self.task.board.clone(), test, now));
        }
    }

    fn apply_inputs(&mut self) {
        let map = self.map.borrow_and_update().clone().flatten();
        let secret = self.secret.borrow_and_update().clone().flatten();
        let goal = *self.task.goal.borrow_and_update();
        let in_force = self.task.board.lock().inputs.config.clone();
        let inputs = Inputs::read(map.as_ref(), secret.as_ref(), goal, &in_force);
        self.task.board.set_inputs(inputs);
    }

    /// Stores the state if it changed; messages are sent even if the API server does not answer.
    async fn save(&mut self) {
        let (revision, state) = {
            let board = self.task.board.lock();
            let revision = board.alerts.revision();
            if self.saved == Some(revision) {
                return;
            }
            (revision, board.alerts.state().clone())
        };
        match self.store.write(&state).await {
            Ok(()) => self.saved = Some(revision),
            Err(error) => tracing::warn!(%error, "cannot store the alerts"),
        }
    }

    /// Records an Event of the `GPUNode`, or of the `ConfigMap` for alerts without a node.
    async fn record(&self, transition: &Transition) {
        let alert = &transition.alert;
        let (event_type, reason) = match transition.kind {
            TransitionKind::Resolved => (EventType::Normal, "AlertResolved"),
            TransitionKind::Fired | TransitionKind::Escalated => {
                (EventType::Warning, "AlertFiring")
            }
        };
        tracing::info!(alert = %alert.kind, severity = %alert.severity, reason, "{}", alert.summary);
        let (kind, name) = match &alert.subject.node {
            Some(node) => ("GPUNode", node.as_str()),
            None => ("ConfigMap", names::ALERTS),
        };
        let key = Key::new(&self.task.namespace, name);
        let event = EventRecord {
            object: ObjectRef { kind, key, uid: "".into() },
            event_type,
            reason,
            message: alert.summary.clone(),
        };
        let (server, identity) = (&self.task.server, &self.task.identity);
        if let Err(error) = events::record(server, identity, &event, jiff::Timestamp::now()).await {
            tracing::warn!(%error, "cannot record the Event of an alert");
        }
    }
}

fn ticks(interval: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

async fn attempt(board: AlertBoard, delivery: Delivery, clock: Clock, wake: Arc<Notify>) {
    let (config, secrets) = current(&board);
    let result = deliver(&config, &delivery.sink, &delivery.message, &secrets).await;
    let now = Stamp(i64::try_from(clock.now().0).unwrap_or(i64::MAX));
    let (sink, alert) = (&delivery.sink.name, delivery.message.kind);
    match result {
        Ok(()) => {
            tracing::info!(sink, %alert, "alert message delivered");
            board.lock().alerts.delivered(now, &delivery);
        }
        Err(error) => {
            // Errors of deliveries contain no address.
            tracing::warn!(sink, %alert, %error, "alert message not delivered; it is retried");
            let retry_after = error.retry_after();
            board.lock().alerts.failed(now, &delivery, &error.to_string(), retry_after);
        }
    }
    wake.notify_one();
}

fn current(board: &AlertBoard) -> (Config, Secrets) {
    let board = board.lock();
    (board.alerts.config().clone(), board.inputs.secrets.clone())
}

/// Sends a test message to the sinks of a request, and publishes the results.
async fn send_test(board: AlertBoard, request: AlertTestRequest, now: Stamp) {
    let (config, secrets) = current(&board);
    let message = Message::test(now);
    let mut results = Vec::new();
    for sink in &config.sinks {
        if request.sink.as_ref().is_some_and(|name| *name != sink.name) {
            continue;
        }
        let sent = deliver(&config, sink, &message, &secrets).await;
        results.push(AlertTestResult {
            sink: sink.name.clone(),
            delivered: sent.is_ok(),
            error: sent.err().map(|error| error.to_string()),
        });
    }
    board.lock().last_test = Some(AlertTestReport { id: request.id, results });
}
