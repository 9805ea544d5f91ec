//! The state machine: observes facts, keeps silences, and says which messages are due.

use std::time::Duration;

use agentaflow_api::alert::{Alert, AlertReport, Silence, SilenceCreate};
use agentaflow_api::units::Stamp;
use agentaflow_units::hash64;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::Config;
use crate::facts::Facts;
use crate::notify::{Delivery, Notifier};
use crate::rule::evaluate;
use crate::watch::Watch;

const LONGEST_SILENCE: Duration = Duration::from_hours(24 * 366);
const MOST_SILENCES: usize = 1000;
const LONGEST_COMMENT: usize = 1000;

/// Alerts of a cluster. Equal histories give equal messages.
#[derive(Clone, Debug, Default)]
pub struct Alerts {
    config: Config,
    state: State,
}

/// Everything that survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    watch: Watch,
    notifier: Notifier,
    silences: Vec<Silence>,
    /// Number of created silences.
    silenced: u64,
}

/// A change of an alert.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    pub kind: TransitionKind,
    pub alert: Alert,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransitionKind {
    Fired,
    /// The severity rose.
    Escalated,
    Resolved,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SilenceError {
    #[error("name at least one of alert, kind, node, gpu, job, queue, user and name")]
    Empty,
    #[error("the length must be from 1 second to 366 days")]
    Length,
    #[error("the comment must have at most {LONGEST_COMMENT} bytes")]
    Comment,
    #[error("there are {MOST_SILENCES} silences; end some of them")]
    TooMany,
}

impl Alerts {
    pub fn new(config: Config, state: State) -> Self {
        Self { config, state }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Replaces the configuration. Alerts of disabled rules resolve with the next observation.
    pub fn set_config(&mut self, config: Config) {
        if config != self.config {
            self.config = config;
            self.state.notifier.retry_now();
        }
    }

    /// State to store before the messages from [`Self::due`] are delivered.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Evaluates the rules.
    pub fn observe(&mut self, now: Stamp, facts: &Facts) -> Vec<Transition> {
        self.state.silences.retain(|silence| silence.until > now);
        let observations = evaluate(&self.config.rules, now, facts);
        self.state.watch.observe(now, &self.config.rules, observations)
    }

    /// Messages whose attempt is due. Store the state before the delivery, and report the result with
    /// [`Self::delivered`] or [`Self::failed`].
    pub fn due(&mut self, now: Stamp) -> Vec<Delivery> {
        let State { watch, notifier, silences, .. } = &mut self.state;
        let is_silenced = |alert: &Alert| silence_of(silences, alert, now).is_some();
        notifier.due(now, &self.config, watch, is_silenced)
    }

    pub fn delivered(&mut self, now: Stamp, delivery: &Delivery) {
        self.state.notifier.delivered(now, &delivery.sink.name, &delivery.message.id);
    }

    /// Records a failed attempt. `retry_after` is the pause that the sink asked for.
    pub fn failed(
        &mut self,
        now: Stamp,
        delivery: &Delivery,
        error: &str,
        retry_after: Option<Duration>,
    ) {
        self.state.notifier.failed(now, &delivery.sink.name, error, retry_after);
    }

    /// Attempts failed deliveries again at once: a secret changed.
    pub fn retry_now(&mut self) {
        self.state.notifier.retry_now();
    }

    /// Number that changes with the state, except for the readings of alerts that are known already.
    pub fn revision(&self) -> u64 {
        let State { watch, notifier, silences, silenced } = &self.state;
        let text = serde_json::to_string(&(watch.outline(), notifier, silences, silenced));
        hash64(text.unwrap_or_default().as_bytes())
    }

    /// Time of the next retry.
    pub fn next_attempt(&self) -> Option<Stamp> {
        self.state.notifier.next_attempt()
    }

    pub fn silence(
        &mut self,
        now: Stamp,
        wanted: SilenceCreate,
        author: &str,
    ) -> Result<Silence, SilenceError> {
        if wanted.matcher.is_empty() {
            return Err(SilenceError::Empty);
        }
        if wanted.seconds == 0 || wanted.seconds > LONGEST_SILENCE.as_secs() {
            return Err(SilenceError::Length);
        }
        if wanted.comment.len() > LONGEST_COMMENT {
            return Err(SilenceError::Comment);
        }
        if self.state.silences.len() >= MOST_SILENCES {
            return Err(SilenceError::TooMany);
        }
        self.state.silenced += 1;
        let origin = format!("{}\0{}", now.0, self.state.silenced);
        let silence = Silence {
            id: format!("{:08x}", hash64(origin.as_bytes()) as u32),
            matcher: wanted.matcher,
            created_at: now,
            until: Stamp(now.0 + wanted.seconds as i64 * 1000),
            comment: wanted.comment,
            author: author.to_owned(),
        };
        self.state.silences.push(silence.clone());
        Ok(silence)
    }

    /// Replaces all silences by the silences of another owner, such as a `ConfigMap`.
    pub fn set_silences(&mut self, silences: Vec<Silence>) {
        self.state.silences = silences;
    }

    /// Ends a silence; none if there is none with this id.
    pub fn unsilence(&mut self, id: &str) -> Option<Silence> {
        let at = self.state.silences.iter().position(|silence| silence.id == id)?;
        Some(self.state.silences.remove(at))
    }

    pub fn report(&self, now: Stamp) -> AlertReport {
        let silences: Vec<Silence> =
            self.state.silences.iter().filter(|silence| silence.until > now).cloned().collect();
        let mut alerts = self.state.watch.all();
        for alert in &mut alerts {
            alert.silenced_by = silence_of(&silences, alert, now).map(|silence| silence.id.clone());
        }
        let sinks = self.state.notifier.sinks(&self.config);
        AlertReport { alerts, silences, sinks, ..AlertReport::default() }
    }
}

fn silence_of<'a>(silences: &'a [Silence], alert: &Alert, now: Stamp) -> Option<&'a Silence> {
    silences.iter().find(|silence| silence.until > now && silence.matcher.matches(alert))
}
