//! Traces of pods: spans from creation to exit, exported once a pod has ended.
//!
//! The leader records pending reasons and decisions in memory; all other times come from the ended pod. A pod that ends while
//! no replica leads has no trace, and one that waited for an earlier leader lacks the reasons of that time.

mod spans;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agentaflow_api::units::Stamp;
use agentaflow_kube_core::names::SCHEDULER_NAME;
use agentaflow_kube_core::slim;
use agentaflow_otlp::{Collector, Exporter, Resource};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;

use super::api::{ApiServer, core};
use crate::state::{Action, Change, Key, Object, PodRef};
use spans::{Moment, pod_spans};

/// Pods whose moments are kept.
const MOST_PODS: usize = 50_000;
/// Moments of one pod.
const MOST_MOMENTS: usize = 64;
/// Ended pods that wait for their export.
const MOST_ENDED: usize = 10_000;
/// Pods of one request.
const BATCH: usize = 50;
/// Time for more pods to join a request.
const GATHER: Duration = Duration::from_millis(500);

/// Collects the moments of pods and hands ended pods to the exporting task.
pub(super) struct Traces {
    moments: BTreeMap<Arc<str>, Vec<Moment>>,
    /// Ended pods that still exist and have been handed over.
    exported: BTreeSet<Arc<str>>,
    ended: mpsc::Sender<EndedPod>,
}

/// A pod that has ended or is deleted.
struct EndedPod {
    pod: PodRef,
    moments: Vec<Moment>,
    at: Stamp,
}

impl Traces {
    /// Starts the exporting task; none if no client can be created.
    pub(super) fn start(to: Collector, server: &ApiServer, identity: &str) -> Option<Self> {
        let resource = Resource { service: "agentaflow-scheduler", instance: identity.to_owned() };
        let exporter = match Exporter::new(to, resource) {
            Ok(exporter) => exporter,
            Err(error) => {
                tracing::error!(%error, "cannot export traces");
                return None;
            }
        };
        let (ended, received) = mpsc::channel(MOST_ENDED);
        tokio::spawn(export(exporter, server.clone(), received));
        Some(Self { moments: BTreeMap::new(), exported: BTreeSet::new(), ended })
    }

    /// Records pending reasons and decisions.
    pub(super) fn observe_actions(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::WriteCondition { pod, condition } => {
                    let (reason, message) = (condition.reason, condition.message.to_string());
                    self.record(pod, |at| Moment::Pending { at, reason, message });
                }
                Action::Bind(bind) => {
                    let node = bind.node.to_string();
                    self.record(&bind.pod, |at| Moment::Bound { at, node });
                }
                _ => {}
            }
        }
    }

    fn record(&mut self, pod: &PodRef, moment: impl FnOnce(Stamp) -> Moment) {
        if self.moments.len() >= MOST_PODS && !self.moments.contains_key(&pod.uid) {
            return;
        }
        let moments = self.moments.entry(pod.uid.clone()).or_default();
        if moments.len() < MOST_MOMENTS {
            moments.push(moment(Stamp::now()));
        }
    }

    /// Notices the end of a pod. Pods that had ended before the first complete list belong to an earlier leader.
    pub(super) fn observe_change(&mut self, change: &Change, started: bool) {
        let (object, deleted) = match change {
            Change::Applied(object) => (object, false),
            Change::Deleted(object) => (object, true),
        };
        let Object::Pod(pod) = &**object else { return };
        let Some(uid) = pod.metadata.uid.as_deref() else { return };
        let uid: Arc<str> = uid.into();
        if deleted {
            self.moments.remove(&uid);
            self.exported.remove(&uid);
        } else if has_ended(pod) && self.exported.insert(uid.clone()) && started {
            self.hand_over(pod, uid);
        }
    }

    fn hand_over(&mut self, pod: &slim::Pod, uid: Arc<str>) {
        let moments = self.moments.remove(&uid).unwrap_or_default();
        let ours = pod.spec.scheduler_name.as_deref() == Some(SCHEDULER_NAME);
        if !ours && moments.is_empty() {
            return;
        }
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let key = Key::new(&text(&pod.metadata.namespace), &text(&pod.metadata.name));
        let pod = PodRef { key, uid };
        if self.ended.try_send(EndedPod { pod, moments, at: Stamp::now() }).is_err() {
            tracing::warn!("too many ended pods wait for the receiver of traces; dropped one");
        }
    }
}

fn has_ended(pod: &slim::Pod) -> bool {
    matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// Exports ended pods until the leader stops.
async fn export(exporter: Exporter, server: ApiServer, mut ended: mpsc::Receiver<EndedPod>) {
    let mut batch = Vec::new();
    while ended.recv_many(&mut batch, BATCH).await > 0 {
        tokio::time::sleep(GATHER).await;
        while batch.len() < BATCH
            && let Ok(more) = ended.try_recv()
        {
            batch.push(more);
        }
        let mut spans = Vec::new();
        for EndedPod { pod: PodRef { key, uid }, moments, at } in batch.drain(..) {
            // The watch has only the fields that scheduling reads.
            match server.get::<Pod>(&core(&key.namespace, "pods", &key.name)).await {
                Ok(pod) if pod.metadata.uid.as_deref() == Some(&*uid) => {
                    spans.extend(pod_spans(&pod, &moments, at));
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(pod = %key, %error, "no trace of an ended pod"),
            }
        }
        exporter.deliver(&spans).await;
    }
}
