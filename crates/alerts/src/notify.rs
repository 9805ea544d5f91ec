//! Messages to sinks: grouping, repetition, and retries.
//!
//! Each sink has its own state by kind of alert: the alerts that it was told about, and at most one message that is not
//! delivered yet. A retry sends the same message, unless its alerts changed in the meantime. A resolved alert is sent to
//! the sinks that were told that it fires.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agentaflow_api::alert::{Alert, AlertKind, AlertSink, AlertState, Severity};
use agentaflow_api::units::Stamp;
use agentaflow_backoff::BackoffPolicy;
use agentaflow_units::hash64;
use serde::{Deserialize, Serialize};

use crate::config::{Config, SinkConfig};
use crate::message::Message;
use crate::watch::{Watch, elapsed};

const RETRY: BackoffPolicy = BackoffPolicy::new(Duration::from_secs(5), Duration::from_mins(5));

/// Interval of messages to a sink that manages messages itself, and forgets alerts that are not repeated.
const REFRESH: Duration = Duration::from_mins(1);

/// A message that is due.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub sink: SinkConfig,
    pub message: Message,
}

/// State of all sinks by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Notifier {
    sinks: BTreeMap<String, SinkState>,
    /// Number of composed messages.
    composed: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct SinkState {
    /// By the word of the kind.
    groups: BTreeMap<String, Group>,
    /// Failed attempts since the last success.
    failures: u32,
    last_error: Option<String>,
    next_attempt: Option<Stamp>,
    last_success: Option<Stamp>,
    /// Attempts without a result yet; none after a restart.
    #[serde(skip)]
    in_flight: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Group {
    /// Firing alerts that the sink was told about, or may have been told about, by id.
    told: BTreeMap<String, Told>,
    /// Not delivered yet.
    outgoing: Option<Message>,
    /// Time of the first change that no message reports yet.
    changed_at: Option<Stamp>,
    last_sent: Option<Stamp>,
}

/// Knowledge of a sink about a firing alert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Told {
    severity: Severity,
    /// False if an attempt without an answer may have said otherwise.
    certain: bool,
}

/// Alerts of a group for a sink.
struct Due {
    firing: Vec<Alert>,
    resolved: Vec<Alert>,
    /// Something that the sink was not told.
    is_news: bool,
    /// The news has a critical alert.
    is_urgent: bool,
}

impl Notifier {
    /// Updates the messages of all sinks, and returns the messages with a due attempt.
    pub(crate) fn due(
        &mut self,
        now: Stamp,
        config: &Config,
        watch: &Watch,
        is_silenced: impl Fn(&Alert) -> bool,
    ) -> Vec<Delivery> {
        self.sinks.retain(|name, _| config.sink(name).is_some());
        let quiet = config.quiet.as_ref().is_some_and(|quiet| quiet.contains(now));
        let alerts: Vec<Alert> =
            watch.firing().filter(|alert| !is_silenced(alert)).cloned().collect();
        let mut deliveries = Vec::new();
        for sink in &config.sinks {
            let state = self.sinks.entry(sink.name.clone()).or_default();
            // A message on its way is not replaced.
            if state.in_flight > 0 {
                continue;
            }
            let mute = quiet && !sink.manages_messages();
            for kind in AlertKind::ALL {
                let group_alerts = alerts.iter().filter(|alert| alert.kind == *kind);
                let wanted: Vec<&Alert> =
                    group_alerts.filter(|alert| alert.severity >= sink.min_severity).collect();
                let known = state.groups.contains_key(kind.as_str());
                if wanted.is_empty() && !known {
                    continue;
                }
                let group = state.groups.entry(kind.as_str().to_owned()).or_default();
                let due = group.compare(&wanted, watch, mute);
                group.compose(now, config, sink, *kind, due, &mut self.composed);
                if group.is_idle(now, config) {
                    state.groups.remove(kind.as_str());
                }
            }
            if state.next_attempt.is_none_or(|at| at <= now) {
                deliveries.extend(state.attempt(sink));
            }
        }
        deliveries
    }

    pub(crate) fn delivered(&mut self, now: Stamp, sink: &str, id: &str) {
        let Some(state) = self.sinks.get_mut(sink) else { return };
        state.in_flight = state.in_flight.saturating_sub(1);
        state.failures = 0;
        (state.last_error, state.next_attempt) = (None, None);
        state.last_success = Some(now);
        for group in state.groups.values_mut() {
            group.delivered(now, id);
        }
    }

    pub(crate) fn failed(
        &mut self,
        now: Stamp,
        sink: &str,
        error: &str,
        retry_after: Option<Duration>,
    ) {
        let Some(state) = self.sinks.get_mut(sink) else { return };
        state.in_flight = state.in_flight.saturating_sub(1);
        let delay = RETRY.delay(state.failures).max(retry_after.unwrap_or_default());
        state.failures = state.failures.saturating_add(1);
        state.last_error = Some(error.to_owned());
        state.next_attempt = Some(Stamp(now.0.saturating_add(delay.as_millis() as i64)));
    }

    /// Attempts the next delivery of every sink at once: an address or secret changed.
    pub(crate) fn retry_now(&mut self) {
        for state in self.sinks.values_mut() {
            state.next_attempt = None;
        }
    }

    pub(crate) fn sinks(&self, config: &Config) -> Vec<AlertSink> {
        let unknown = SinkState::default();
        let shown = |sink: &SinkConfig| {
            let state = self.sinks.get(&sink.name).unwrap_or(&unknown);
            AlertSink {
                name: sink.name.clone(),
                kind: sink.type_name().to_owned(),
                min_severity: sink.min_severity,
                last_success: state.last_success,
                failures: state.failures,
                last_error: state.last_error.clone(),
                next_attempt: state.next_attempt,
            }
        };
        config.sinks.iter().map(shown).collect()
    }

    /// Earliest retry after a failure.
    pub(crate) fn next_attempt(&self) -> Option<Stamp> {
        self.sinks.values().filter_map(|state| state.next_attempt).min()
    }
}

impl SinkState {
    /// Marks the waiting messages as attempted and returns them.
    fn attempt(&mut self, sink: &SinkConfig) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        for group in self.groups.values_mut() {
            let Some(message) = group.outgoing.clone() else { continue };
            group.begin_attempt(&message);
            deliveries.push(Delivery { sink: sink.clone(), message });
            // After a failure one message shows if the sink works again.
            if self.failures > 0 {
                break;
            }
        }
        self.in_flight = deliveries.len();
        deliveries
    }
}

impl Group {
    /// Difference between the alerts that fire and the alerts that the sink was told about.
    fn compare(&mut self, wanted: &[&Alert], watch: &Watch, mute: bool) -> Due {
        // Lists no longer have an alert that resolved long ago, as after a long failure of the sink.
        self.told.retain(|id, _| watch.find(id).is_some());
        let passes = |alert: &Alert| !mute || alert.severity == Severity::Critical;
        let firing: Vec<Alert> =
            wanted.iter().filter(|alert| passes(alert)).map(|alert| (*alert).clone()).collect();
        let is_new = |alert: &Alert| {
            let told = self.told.get(&alert.id);
            told.is_none_or(|told| !told.certain || told.severity < alert.severity)
        };
        let gone = self.told.keys().filter_map(|id| watch.find(id));
        let resolved: Vec<Alert> = gone
            .filter(|alert| alert.state == AlertState::Resolved && passes(alert))
            .cloned()
            .collect();
        let is_news = firing.iter().any(is_new) || !resolved.is_empty();
        let is_urgent =
            firing.iter().any(|alert| is_new(alert) && alert.severity == Severity::Critical);
        Due { firing, resolved, is_news, is_urgent }
    }

    /// Composes a message if one is due; keeps a message of equal alerts that is not delivered yet.
    fn compose(
        &mut self,
        now: Stamp,
        config: &Config,
        sink: &SinkConfig,
        kind: AlertKind,
        due: Due,
        composed: &mut u64,
    ) {
        if let Some(outgoing) = &self.outgoing {
            if is_same(outgoing, &due) {
                return;
            }
            self.outgoing = None;
        }
        if due.firing.is_empty() && due.resolved.is_empty() {
            self.changed_at = None;
            return;
        }
        if !self.is_time(now, config, sink, &due) {
            return;
        }
        *composed += 1;
        let origin = format!("{}\0{kind}\0{}\0{composed}", sink.name, now.0);
        let message = Message {
            id: format!("{:016x}", hash64(origin.as_bytes())),
            kind,
            at: now,
            firing: due.firing,
            resolved: due.resolved,
        };
        self.outgoing = Some(message);
        self.changed_at = None;
    }

    fn is_time(&mut self, now: Stamp, config: &Config, sink: &SinkConfig, due: &Due) -> bool {
        let (wait, pause, repeat) = if sink.manages_messages() {
            (Duration::ZERO, Duration::ZERO, REFRESH)
        } else {
            (config.group_wait, config.group_interval, config.repeat)
        };
        if !due.is_news {
            self.changed_at = None;
            return self.last_sent.is_none_or(|sent| elapsed(sent, now) >= repeat);
        }
        let since = *self.changed_at.get_or_insert(now);
        let paused = self.last_sent.is_some_and(|sent| elapsed(sent, now) < pause);
        elapsed(since, now) >= wait && (due.is_urgent || !paused)
    }

    /// The sink may receive the message without an answer that arrives here.
    fn begin_attempt(&mut self, message: &Message) {
        for alert in message.alerts() {
            let told = Told { severity: alert.severity, certain: false };
            self.told.insert(alert.id.clone(), told);
        }
    }

    fn delivered(&mut self, now: Stamp, id: &str) {
        let Some(message) = self.outgoing.take_if(|outgoing| outgoing.id == id) else { return };
        for alert in &message.resolved {
            self.told.remove(&alert.id);
        }
        for alert in &message.firing {
            let told = Told { severity: alert.severity, certain: true };
            self.told.insert(alert.id.clone(), told);
        }
        self.last_sent = Some(now);
    }

    /// Nothing was told, nothing is to be told, and the pause after the last message is over.
    fn is_idle(&self, now: Stamp, config: &Config) -> bool {
        let pause = config.group_interval;
        self.told.is_empty()
            && self.outgoing.is_none()
            && self.changed_at.is_none()
            && self.last_sent.is_none_or(|sent| elapsed(sent, now) >= pause)
    }
}

/// Returns true if a message reports these alerts; values and summaries may have changed.
fn is_same(message: &Message, due: &Due) -> bool {
    let keys = |alerts: &[Alert]| -> BTreeSet<(String, Severity, Option<Stamp>)> {
        alerts.iter().map(|alert| (alert.id.clone(), alert.severity, alert.resolved_at)).collect()
    };
    keys(&message.firing) == keys(&due.firing) && keys(&message.resolved) == keys(&due.resolved)
}
