//! Tests of the state machine as a driver uses it.

mod config;
mod delivery;
mod messages;
mod notify;
mod property;
mod rules;
mod sinks;
mod smtp;

use std::time::Duration;

use agentaflow_api::alert::AlertKind;
use agentaflow_api::units::Stamp;

use crate::{Alerts, Config, Delivery, Facts, GpuFacts, NodeFacts, State, Transition};

pub(crate) const START: Stamp = Stamp(1_790_000_000_000);

/// Document with one sink without delays.
pub(crate) const ONE_SINK: &str = r#"
group_wait = "0s"
group_interval = "0s"
repeat = "1h"

[[sink]]
name = "ops"
type = "webhook"
url_env = "URL"
"#;

/// Alerts with a clock that the test advances.
pub(crate) struct Bench {
    pub(crate) alerts: Alerts,
    pub(crate) now: Stamp,
}

impl Bench {
    pub(crate) fn new(document: &str) -> Self {
        let config = Config::parse(document).unwrap();
        Self { alerts: Alerts::new(config, State::default()), now: START }
    }

    pub(crate) fn wait(&mut self, time: Duration) -> &mut Self {
        self.now = Stamp(self.now.0 + time.as_millis() as i64);
        self
    }

    pub(crate) fn observe(&mut self, facts: &Facts) -> Vec<Transition> {
        self.alerts.observe(self.now, facts)
    }

    pub(crate) fn due(&mut self) -> Vec<Delivery> {
        self.alerts.due(self.now)
    }

    /// Observes and delivers; returns the messages.
    pub(crate) fn deliver(&mut self, facts: &Facts) -> Vec<Delivery> {
        self.observe(facts);
        let due = self.due();
        for delivery in &due {
            self.alerts.delivered(self.now, delivery);
        }
        due
    }

    /// Stores the state, and starts again with it.
    pub(crate) fn restart(&mut self) {
        let text = serde_json::to_string(self.alerts.state()).unwrap();
        let state = serde_json::from_str(&text).unwrap();
        self.alerts = Alerts::new(self.alerts.config().clone(), state);
    }

    pub(crate) fn kinds(&self) -> Vec<AlertKind> {
        self.alerts.report(self.now).alerts.iter().map(|alert| alert.kind).collect()
    }
}

/// One GPU `0` on node `a`.
pub(crate) fn gpu(change: impl FnOnce(&mut GpuFacts)) -> Facts {
    let mut gpu = GpuFacts { node: "a".into(), gpu: "0".into(), ..GpuFacts::default() };
    change(&mut gpu);
    Facts { gpus: vec![gpu], ..Facts::default() }
}

/// A GPU with an XID, which fires at once.
pub(crate) fn xid() -> Facts {
    gpu(|gpu| gpu.xid = Some(79))
}

pub(crate) fn silent(names: &[&str]) -> Facts {
    let node = |name: &&str| NodeFacts {
        name: (*name).to_owned(),
        silent: true,
        unknown: false,
        last_report: Some(Stamp(START.0 - 90_000)),
    };
    Facts { nodes: names.iter().map(node).collect(), ..Facts::default() }
}
