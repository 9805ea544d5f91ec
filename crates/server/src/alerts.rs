//! Alerts of the server: feeds facts to the rules, stores their state, and delivers messages.
//!
//! The state is stored before a message is sent, and again with its result. A server that is killed in between sends the
//! message again with the same id; no message is lost. If the database does not answer, messages are sent nevertheless: the
//! failure of the database is a reason for an alert.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agentaflow_alerts::deliver::{DeliveryError, deliver};
use agentaflow_alerts::{
    Alerts, CertificateFacts, Delivery, DiskFacts, Facts, Message, Secrets, SilenceError,
    SinkConfig, Transition,
};
use agentaflow_api::alert::{AlertReport, AlertState, AlertTestResult, Silence, SilenceCreate};
use agentaflow_api::error::ResourceKind;
use agentaflow_api::units::Stamp;
use agentaflow_metrics::MetricType::Gauge;
use agentaflow_metrics::{Exposition, MetricSource};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::api_error::ApiError;
use crate::core::{AlertFacts, Core};
use crate::logs;
use crate::tls::Certificates;

/// Longest wait for the database before a message is sent without it.
const SAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Handle of the alerts. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AlertService(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    core: Core,
    certificates: Option<Arc<Certificates>>,
    alerts: Mutex<Alerts>,
    /// Revision of the state in the store.
    saved: tokio::sync::Mutex<Option<u64>>,
    /// A delivery has a result, or a silence changed.
    wake: Notify,
}

impl AlertService {
    pub fn new(core: Core, certificates: Option<Arc<Certificates>>) -> Self {
        let alerts = Alerts::new(core.settings().alerts.clone(), core.stored_alerts());
        Self(Arc::new(Shared {
            core,
            certificates,
            alerts: Mutex::new(alerts),
            saved: tokio::sync::Mutex::new(None),
            wake: Notify::new(),
        }))
    }

    /// Evaluates the rules and delivers messages until the server stops.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut facts = AlertFacts::default();
        let interval = self.alerts().config().interval;
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let mut transitions = Vec::new();
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.0.wake.notified() => {}
                _ = ticks.tick() => {
                    let facts = self.with_machine(facts.collect(&self.0.core).await);
                    transitions = self.alerts().observe(self.0.core.now(), &facts);
                }
            }
            log(&transitions);
            let deliveries = self.alerts().due(self.0.core.now());
            self.save(transitions).await;
            for delivery in deliveries {
                tokio::spawn(self.clone().attempt(delivery));
            }
        }
        self.save(Vec::new()).await;
    }

    /// Adds the facts about this machine.
    fn with_machine(&self, mut facts: Facts) -> Facts {
        let data = &self.0.core.settings().data_dir;
        if let Some((free, total)) = logs::usable_room(data) {
            facts.disks.push(DiskFacts { path: data.display().to_string(), free, total });
        }
        if let Some(certificates) = &self.0.certificates
            && let Some(expires) = certificates.expires()
        {
            facts.certificates.push(CertificateFacts {
                name: certificates.path().display().to_string(),
                expires: Stamp(expires.as_millisecond()),
            });
        }
        facts
    }

    /// Stores the state if it changed. Waits for a limited time only.
    async fn save(&self, transitions: Vec<Transition>) {
        let mut saved = self.0.saved.lock().await;
        let (revision, text) = {
            let alerts = self.alerts();
            let revision = alerts.revision();
            if *saved == Some(revision) && transitions.is_empty() {
                return;
            }
            (revision, serde_json::to_string(alerts.state()).unwrap_or_default())
        };
        let core = self.0.core.clone();
        let write = tokio::spawn(async move { core.save_alerts(text, transitions).await });
        match tokio::time::timeout(SAVE_TIMEOUT, write).await {
            Ok(Ok(Ok(()))) => *saved = Some(revision),
            Ok(Ok(Err(error))) => tracing::warn!(%error, "Cannot store the alerts"),
            _ => tracing::warn!("The store does not answer; alerts are sent nevertheless"),
        }
    }

    async fn attempt(self, delivery: Delivery) {
        let config = self.alerts().config().clone();
        let secrets = Secrets::default();
        let result = deliver(&config, &delivery.sink, &delivery.message, &secrets).await;
        log_delivery(&delivery, result.as_ref().err());
        let now = self.0.core.now();
        match result {
            Ok(()) => self.alerts().delivered(now, &delivery),
            Err(error) => {
                self.alerts().failed(now, &delivery, &error.to_string(), error.retry_after());
            }
        }
        self.0.wake.notify_one();
    }

    /// Metrics of this machine: the expiry of the certificate, and the disk of the data directory.
    fn write_metrics(&self, text: &mut Exposition) {
        let Facts { certificates, disks, .. } = self.with_machine(Facts::default());
        for certificate in certificates {
            text.value(
                "agentaflow_certificate_expiry_timestamp_seconds",
                Gauge,
                "End of the validity of the certificate, in seconds since 1970.",
                certificate.expires.0 as f64 / 1000.0,
            );
        }
        for disk in disks {
            let values = [
                (
                    "agentaflow_disk_free_bytes",
                    "Free space on the disk of the data directory.",
                    disk.free,
                ),
                (
                    "agentaflow_disk_size_bytes",
                    "Usable size of the disk of the data directory.",
                    disk.total,
                ),
            ];
            for (name, help, bytes) in values {
                text.value(name, Gauge, help, bytes as f64);
            }
        }
        let mut firing = BTreeMap::new();
        for alert in self.report().alerts {
            if alert.state == AlertState::Firing {
                *firing.entry((alert.kind, alert.severity)).or_insert(0.0) += 1.0;
            }
        }
        let series = firing.iter().map(|((kind, severity), count)| {
            ([("kind", kind.as_str()), ("severity", severity.as_str())], *count)
        });
        let help = "Firing alerts by kind and severity.";
        text.series("agentaflow_alerts_firing", Gauge, help, series);
    }

    pub(crate) fn report(&self) -> AlertReport {
        self.alerts().report(self.0.core.now())
    }

    /// Sends a test message to one sink or to all.
    pub(crate) async fn test(&self, sink: Option<&str>) -> Result<Vec<AlertTestResult>, ApiError> {
        let config = self.alerts().config().clone();
        let wanted: Vec<SinkConfig> = config
            .sinks
            .iter()
            .filter(|known| sink.is_none_or(|name| name == known.name))
            .cloned()
            .collect();
        if let Some(name) = sink.filter(|_| wanted.is_empty()) {
            return Err(ApiError::not_found(ResourceKind::Sink, name));
        }
        let message = Message::test(self.0.core.now());
        let mut results = Vec::new();
        for sink in wanted {
            let sent = deliver(&config, &sink, &message, &Secrets::default()).await;
            results.push(AlertTestResult {
                sink: sink.name,
                delivered: sent.is_ok(),
                error: sent.err().map(|error| error.to_string()),
            });
        }
        Ok(results)
    }

    /// Adds a silence; it is durable when this returns.
    pub(crate) async fn silence(
        &self,
        wanted: SilenceCreate,
        author: &str,
    ) -> Result<Silence, ApiError> {
        let added = self.alerts().silence(self.0.core.now(), wanted, author);
        let silence = added.map_err(|error| {
            let field = match error {
                SilenceError::Empty | SilenceError::TooMany => "match",
                SilenceError::Length => "seconds",
                SilenceError::Comment => "comment",
            };
            ApiError::invalid(field, error.to_string())
        })?;
        self.save(Vec::new()).await;
        Ok(silence)
    }

    pub(crate) async fn unsilence(&self, id: &str) -> Result<Silence, ApiError> {
        let ended = self.alerts().unsilence(id);
        let ended = ended.ok_or_else(|| ApiError::not_found(ResourceKind::Silence, id))?;
        self.save(Vec::new()).await;
        self.0.wake.notify_one();
        Ok(ended)
    }

    fn alerts(&self) -> MutexGuard<'_, Alerts> {
        self.0.alerts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetricSource for AlertService {
    fn write(&self, text: &mut Exposition) {
        self.write_metrics(text);
    }
}

fn log(transitions: &[Transition]) {
    for Transition { kind, alert } in transitions {
        tracing::info!(alert = %alert.kind, severity = %alert.severity, ?kind, "{}", alert.summary);
    }
}

/// Errors of deliveries contain no address.
fn log_delivery(delivery: &Delivery, error: Option<&DeliveryError>) {
    let (sink, alert) = (&delivery.sink.name, delivery.message.kind);
    match error {
        None => tracing::info!(sink, %alert, "Alert message delivered"),
        Some(error) => {
            tracing::warn!(sink, %alert, %error, "Alert message not delivered; it is retried");
        }
    }
}
