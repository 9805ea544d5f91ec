//! Messages: a group of alerts for one sink.

use agentaflow_api::alert::{Alert, AlertKind, AlertState, Severity};
use agentaflow_api::units::Stamp;
use serde::{Deserialize, Serialize};

/// A group of alerts of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Message {
    /// Equal in every attempt, so that a receiver can drop repetitions.
    pub id: String,
    pub kind: AlertKind,
    pub at: Stamp,
    pub firing: Vec<Alert>,
    pub resolved: Vec<Alert>,
}

impl Message {
    /// A message that only tests a sink.
    pub fn test(now: Stamp) -> Self {
        let alert = Alert {
            id: format!("{:016x}", agentaflow_units::hash64(b"test")),
            kind: AlertKind::Test,
            severity: Severity::Info,
            state: AlertState::Firing,
            summary: "Test message of agentaflow".to_owned(),
            action: "No action is needed: alerts reach this place.".to_owned(),
            since: now,
            fired_at: Some(now),
            ..Alert::default()
        };
        Self {
            id: format!("test-{}", now.0),
            kind: AlertKind::Test,
            at: now,
            firing: vec![alert],
            resolved: Vec::new(),
        }
    }

    pub fn is_resolved(&self) -> bool {
        self.firing.is_empty()
    }

    /// `firing` or `resolved`.
    pub(crate) fn status(&self) -> &'static str {
        if self.is_resolved() { "resolved" } else { "firing" }
    }

    /// Highest severity of the firing alerts, else of the resolved ones.
    pub(crate) fn severity(&self) -> Severity {
        let alerts = if self.is_resolved() { &self.resolved } else { &self.firing };
        alerts.iter().map(|alert| alert.severity).max().unwrap_or_default()
    }

    pub(crate) fn alerts(&self) -> impl Iterator<Item = &Alert> {
        self.firing.iter().chain(&self.resolved)
    }

    /// One line: `[FIRING 2, RESOLVED 1] GPU hot`.
    pub(crate) fn title(&self) -> String {
        let mut parts = Vec::new();
        for (word, count) in [("FIRING", self.firing.len()), ("RESOLVED", self.resolved.len())] {
            if count > 0 {
                parts.push(format!("{word} {count}"));
            }
        }
        format!("[{}] {}", parts.join(", "), kind_title(self.kind))
    }
}

/// Name of a kind in messages.
pub(crate) fn kind_title(kind: AlertKind) -> &'static str {
    match kind {
        AlertKind::GpuHot => "GPU hot",
        AlertKind::GpuEcc => "GPU memory errors",
        AlertKind::GpuXid => "GPU driver error",
        AlertKind::GpuLost => "GPU lost",
        AlertKind::GpuIdle => "Idle GPU held by a job",
        AlertKind::GpuPower => "GPU at its power limit",
        AlertKind::GpuMemory => "GPU memory nearly full",
        AlertKind::NodeSilent => "Node silent",
        AlertKind::QueueWait => "Queue wait over the goal",
        AlertKind::Utilization => "Utilization under the goal",
        AlertKind::Budget => "Budget",
        AlertKind::Certificate => "Certificate expires",
        AlertKind::Disk => "Disk nearly full",
        AlertKind::Scheduler => "Scheduler stalled",
        AlertKind::Test => "Test",
        AlertKind::Unknown => "Alert",
    }
}

/// Word for one alert.
pub(crate) fn state_word(alert: &Alert) -> &'static str {
    if alert.state == AlertState::Resolved { "resolved" } else { alert.severity.as_str() }
}
