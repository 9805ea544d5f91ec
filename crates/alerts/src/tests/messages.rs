//! Messages for the tests of sinks.

use agentaflow_api::alert::{Alert, AlertKind, AlertState, AlertSubject, Severity};
use agentaflow_api::units::Stamp;

use super::START;
use crate::Message;
use crate::sink::Origin;

pub(super) const ORIGIN: Origin<'static> =
    Origin { cluster: Some("lab"), dashboard: Some("https://gpu.example.com/") };

pub(super) fn alert(gpu: &str) -> Alert {
    Alert {
        id: format!("id-{gpu}"),
        kind: AlertKind::GpuHot,
        severity: Severity::Warning,
        state: AlertState::Firing,
        subject: AlertSubject {
            node: Some("a".into()),
            gpu: Some(gpu.into()),
            ..AlertSubject::default()
        },
        summary: format!("GPU {gpu} on a is at 91 °C"),
        action: "Check the fans.".into(),
        value: Some(91.0),
        threshold: Some(85.0),
        since: Stamp(START.0 - 60_000),
        fired_at: Some(START),
        ..Alert::default()
    }
}

pub(super) fn resolved(gpu: &str) -> Alert {
    let at = Stamp(START.0 + 30_000);
    Alert { state: AlertState::Resolved, resolved_at: Some(at), ..alert(gpu) }
}

pub(super) fn message(firing: Vec<Alert>, resolved: Vec<Alert>) -> Message {
    let at = Stamp(START.0 + 30_000);
    Message { id: "0123456789abcdef".into(), kind: AlertKind::GpuHot, at, firing, resolved }
}

/// Markup of every format in the name of a job.
pub(super) const HOSTILE: &str =
    "<!channel> <https://evil|x> *b* [l](https://evil) <script> \u{1b}[31m\r\nX: y\u{202e}&amp;";

pub(super) fn hostile() -> Message {
    message(vec![Alert { summary: HOSTILE.into(), ..alert("0") }], Vec::new())
}
