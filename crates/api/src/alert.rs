//! Alerts: conditions of the cluster that need the attention of an operator, and silences.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::units::Stamp;
use crate::wire::wire_enum;

wire_enum! {
    /// Condition that an alert reports.
    pub enum AlertKind else Unknown {
        /// A GPU is hot.
        GpuHot = "gpu_hot",
        /// A GPU has uncorrected memory errors.
        GpuEcc = "gpu_ecc",
        /// A driver error (XID) keeps a GPU out of use.
        GpuXid = "gpu_xid",
        /// A GPU does not respond.
        GpuLost = "gpu_lost",
        /// A job holds a GPU and does not use it.
        GpuIdle = "gpu_idle",
        /// A GPU is at its power limit.
        GpuPower = "gpu_power",
        /// The memory of a GPU is nearly full.
        GpuMemory = "gpu_memory",
        /// A node does not report.
        NodeSilent = "node_silent",
        /// A job waits longer than the goal of the queue.
        QueueWait = "queue_wait",
        /// The mean utilization is below the goal while jobs are pending.
        Utilization = "utilization",
        /// A user has spent most or all of the budget.
        Budget = "budget",
        /// A certificate expires soon.
        Certificate = "certificate",
        /// A disk is nearly full.
        Disk = "disk",
        /// The scheduler makes no progress.
        Scheduler = "scheduler",
        /// A message that only tests a sink.
        Test = "test",
        /// A condition that this version does not know.
        Unknown = "unknown",
    }
}

#[allow(clippy::derivable_impls, reason = "`wire_enum!` takes no attribute of a variant")]
impl Default for AlertKind {
    fn default() -> Self {
        Self::Unknown
    }
}

wire_enum! {
    /// Urgency of an alert; later values are more urgent.
    pub enum Severity else Info {
        Info = "info",
        Warning = "warning",
        Critical = "critical",
    }
}

#[allow(clippy::derivable_impls, reason = "`wire_enum!` takes no attribute of a variant")]
impl Default for Severity {
    fn default() -> Self {
        Self::Info
    }
}

wire_enum! {
    /// State of an alert.
    pub enum AlertState else Unknown {
        /// The condition holds, but not for long enough.
        Pending = "pending",
        Firing = "firing",
        Resolved = "resolved",
        /// A state that this version does not know.
        Unknown = "unknown",
    }
}

#[allow(clippy::derivable_impls, reason = "`wire_enum!` takes no attribute of a variant")]
impl Default for AlertState {
    fn default() -> Self {
        Self::Unknown
    }
}

/// Objects that an alert is about. Absent fields do not apply.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(default)]
pub struct AlertSubject {
    /// Name of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Index or UUID of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Number of the job; `namespace/name` in Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Name of the user; the namespace in Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Path of the disk, or name of the certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// An alert.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Alert {
    /// Stable while the condition lasts: equal kinds and subjects have equal ids.
    pub id: String,
    pub kind: AlertKind,
    pub severity: Severity,
    pub state: AlertState,
    #[serde(flatten)]
    pub subject: AlertSubject,
    pub summary: String,
    /// Action that helps.
    pub action: String,
    /// Measured value, in the unit of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Threshold that the value passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// Start of the condition.
    pub since: Stamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fired_at: Option<Stamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<Stamp>,
    /// Id of a silence that keeps the alert from the sinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silenced_by: Option<String>,
}

/// Alerts that a silence applies to: an alert matches if all given fields are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SilenceMatch {
    /// Id of one alert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alert: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<AlertKind>,
    #[serde(flatten)]
    pub subject: AlertSubject,
}

impl SilenceMatch {
    /// Returns true if no field is given: the silence would apply to every alert.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn matches(&self, alert: &Alert) -> bool {
        let equal =
            |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        let (wanted, found) = (&self.subject, &alert.subject);
        self.alert.as_ref().is_none_or(|id| *id == alert.id)
            && self.kind.is_none_or(|kind| kind == alert.kind)
            && equal(&wanted.node, &found.node)
            && equal(&wanted.gpu, &found.gpu)
            && equal(&wanted.job, &found.job)
            && equal(&wanted.queue, &found.queue)
            && equal(&wanted.user, &found.user)
            && equal(&wanted.name, &found.name)
    }
}

/// A silence: matching alerts send no messages until it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Silence {
    pub id: String,
    #[serde(rename = "match")]
    pub matcher: SilenceMatch,
    pub created_at: Stamp,
    pub until: Stamp,
    pub comment: String,
    /// User who created the silence.
    pub author: String,
}

/// Request for a silence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SilenceCreate {
    #[serde(rename = "match")]
    pub matcher: SilenceMatch,
    /// Length of the silence; at most a year.
    pub seconds: u64,
    pub comment: String,
}

/// A sink of alert messages, without its address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AlertSink {
    pub name: String,
    /// `slack`, `teams`, `webhook`, `alertmanager`, `email`.
    #[serde(rename = "type")]
    pub kind: String,
    pub min_severity: Severity,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_success: Option<Stamp>,
    /// Failed attempts since the last success.
    pub failures: u32,
    /// Cause of the last failure, without the address of the sink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Time of the next attempt after a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt: Option<Stamp>,
}

/// Alerts, silences and sinks. Users without the right to see all receive alerts about their own jobs and budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AlertReport {
    /// Firing alerts first, then pending, then recently resolved ones.
    pub alerts: Vec<Alert>,
    pub silences: Vec<Silence>,
    pub sinks: Vec<AlertSink>,
    /// Result of the last test message in Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_test: Option<AlertTestReport>,
    /// Faults of the configuration, such as a secret that cannot be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// Request for a test message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AlertTest {
    /// Name of a sink; default all sinks.
    pub sink: Option<String>,
}

/// Result of a test message to one sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AlertTestResult {
    pub sink: String,
    pub delivered: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Request for a test message in Kubernetes, where a `ConfigMap` holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AlertTestRequest {
    pub id: String,
    /// Name of a sink; default all sinks.
    pub sink: Option<String>,
}

/// Results of the request with this id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AlertTestReport {
    pub id: String,
    pub results: Vec<AlertTestResult>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_matches_alerts_with_all_of_its_fields() {
        let text = r#"{"kind": "gpu_hot", "node": "a"}"#;
        let wanted: SilenceMatch = serde_json::from_str(text).unwrap();
        let subject =
            |node: &str| AlertSubject { node: Some(node.to_owned()), ..AlertSubject::default() };
        let alert = |kind, node| Alert { kind, subject: subject(node), ..Alert::default() };
        assert!(wanted.matches(&alert(AlertKind::GpuHot, "a")));
        assert!(!wanted.matches(&alert(AlertKind::GpuHot, "b")));
        assert!(!wanted.matches(&alert(AlertKind::GpuEcc, "a")));
        assert!(SilenceMatch::default().is_empty() && !wanted.is_empty());
    }

    #[test]
    fn severities_are_ordered_by_urgency() {
        assert!(Severity::Critical > Severity::Warning && Severity::Warning > Severity::Info);
    }
}
