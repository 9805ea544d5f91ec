//! Conditions over time: pending, firing, resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agentaflow_api::alert::{Alert, AlertKind, AlertState, AlertSubject, Severity};
use agentaflow_api::units::Stamp;
use agentaflow_units::hash64;
use serde::{Deserialize, Serialize};

use crate::engine::{Transition, TransitionKind};
use crate::rule::{Condition, Observation, Rule};

/// Resolved alerts stay in lists for this long.
const KEEP_RESOLVED: Duration = Duration::from_hours(24);
const MOST_RESOLVED: usize = 200;

/// All alerts that are not resolved, and the latest resolved ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Watch {
    live: BTreeMap<String, LiveAlert>,
    /// Oldest first.
    resolved: Vec<Alert>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct LiveAlert {
    alert: Alert,
    /// Time since which the condition is gone.
    clear_since: Option<Stamp>,
}

impl Watch {
    pub(crate) fn observe(
        &mut self,
        now: Stamp,
        rules: &BTreeMap<AlertKind, Rule>,
        observations: Vec<Observation>,
    ) -> Vec<Transition> {
        let mut seen = BTreeSet::new();
        let mut transitions = Vec::new();
        for Observation { kind, subject, condition } in observations {
            let id = id_of(kind, &subject);
            let hold = rules.get(&kind).map_or(Duration::ZERO, |rule| rule.hold);
            if let Some(condition) = condition {
                let live = self.live.entry(id.clone()).or_insert_with(|| LiveAlert {
                    alert: new_alert(&id, kind, subject, now),
                    clear_since: None,
                });
                transitions.extend(live.holds(now, hold, condition));
            }
            seen.insert(id);
        }
        transitions.extend(self.clear_unseen(now, rules, &seen));
        self.forget_old(now);
        transitions
    }

    fn clear_unseen(
        &mut self,
        now: Stamp,
        rules: &BTreeMap<AlertKind, Rule>,
        seen: &BTreeSet<String>,
    ) -> Vec<Transition> {
        let mut transitions = Vec::new();
        let resolved = &mut self.resolved;
        self.live.retain(|id, live| {
            if seen.contains(id) {
                return true;
            }
            if live.alert.state == AlertState::Pending {
                return false;
            }
            let since = *live.clear_since.get_or_insert(now);
            // An alert whose rule was disabled resolves at once.
            let rule = rules.get(&live.alert.kind).filter(|rule| rule.enabled);
            if elapsed(since, now) < rule.map_or(Duration::ZERO, |rule| rule.keep) {
                return true;
            }
            live.alert.state = AlertState::Resolved;
            live.alert.resolved_at = Some(now);
            resolved.push(live.alert.clone());
            let kind = TransitionKind::Resolved;
            transitions.push(Transition { kind, alert: live.alert.clone() });
            false
        });
        transitions
    }

    fn forget_old(&mut self, now: Stamp) {
        let too_many = self.resolved.len().saturating_sub(MOST_RESOLVED);
        self.resolved.drain(..too_many);
        let is_recent =
            |alert: &Alert| alert.resolved_at.is_some_and(|at| elapsed(at, now) < KEEP_RESOLVED);
        self.resolved.retain(is_recent);
    }

    /// Facts of the alerts that change rarely.
    pub(crate) fn outline(&self) -> Vec<(&str, AlertState, Severity, Option<Stamp>)> {
        let live = self.live.iter();
        let live = live.map(|(id, live)| {
            (id.as_str(), live.alert.state, live.alert.severity, live.clear_since)
        });
        let resolved = self.resolved.iter();
        let resolved = resolved
            .map(|alert| (alert.id.as_str(), alert.state, alert.severity, alert.resolved_at));
        live.chain(resolved).collect()
    }

    pub(crate) fn firing(&self) -> impl Iterator<Item = &Alert> {
        let alerts = self.live.values().map(|live| &live.alert);
        alerts.filter(|alert| alert.state == AlertState::Firing)
    }

    /// A firing alert with this id, or the last resolved one.
    pub(crate) fn find(&self, id: &str) -> Option<&Alert> {
        let live = self.live.get(id).map(|live| &live.alert);
        live.or_else(|| self.resolved.iter().rfind(|alert| alert.id == id))
    }

    /// Firing, then pending, then resolved alerts, each with the most urgent and latest first.
    pub(crate) fn all(&self) -> Vec<Alert> {
        let live = self.live.values().map(|live| &live.alert);
        let mut all: Vec<Alert> = live.chain(&self.resolved).cloned().collect();
        all.sort_by(|a, b| {
            let order = (a.state, b.severity, b.since).cmp(&(b.state, a.severity, a.since));
            order.then_with(|| a.id.cmp(&b.id))
        });
        // Pending is declared before firing.
        let (firing, rest) = all.into_iter().partition(|alert| alert.state == AlertState::Firing);
        let (firing, rest): (Vec<Alert>, Vec<Alert>) = (firing, rest);
        firing.into_iter().chain(rest).collect()
    }
}

impl LiveAlert {
    /// Records that the condition holds.
    fn holds(&mut self, now: Stamp, hold: Duration, condition: Condition) -> Option<Transition> {
        self.clear_since = None;
        let before = self.alert.severity;
        let was_firing = self.alert.state == AlertState::Firing;
        let Condition { severity, value, threshold, summary, action } = condition;
        self.alert = Alert {
            severity,
            value,
            threshold,
            summary,
            action: action.to_owned(),
            ..std::mem::take(&mut self.alert)
        };
        let kind = if was_firing {
            if severity <= before {
                return None;
            }
            TransitionKind::Escalated
        } else {
            if elapsed(self.alert.since, now) < hold {
                return None;
            }
            self.alert.state = AlertState::Firing;
            self.alert.fired_at = Some(now);
            TransitionKind::Fired
        };
        Some(Transition { kind, alert: self.alert.clone() })
    }
}

fn new_alert(id: &str, kind: AlertKind, subject: AlertSubject, now: Stamp) -> Alert {
    Alert {
        id: id.to_owned(),
        kind,
        subject,
        since: now,
        state: AlertState::Pending,
        ..Alert::default()
    }
}

/// Id of the alerts of a rule about a subject.
fn id_of(kind: AlertKind, subject: &AlertSubject) -> String {
    let AlertSubject { node, gpu, job, queue, user, name } = subject;
    let parts = [node, gpu, job, queue, user, name];
    let parts = parts.map(|part| part.as_deref().unwrap_or_default());
    // A separator that no name contains.
    format!("{:016x}", hash64(format!("{kind}\0{}", parts.join("\0")).as_bytes()))
}

pub(crate) fn elapsed(since: Stamp, now: Stamp) -> Duration {
    Duration::from_millis(u64::try_from(now.0.saturating_sub(since.0)).unwrap_or(0))
}
