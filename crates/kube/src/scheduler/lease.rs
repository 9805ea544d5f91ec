//! One leader at a time, by a Lease.
//!
//! Who leads is a matter of clocks that do not agree, so only our own monotonic one counts. A leader that has not
//! renewed within [`RENEW_DEADLINE`] stops writing at once: requests have a shorter deadline than the rest of the
//! lease, so that nothing of it arrives after another may lead. A follower takes a lease over only after it has
//! watched it unchanged for its whole length.

use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::api::{Failure, Server};

/// How long a lease lasts.
pub(crate) const LENGTH: Duration = Duration::from_secs(15);
/// How long a leader that cannot renew goes on.
pub(crate) const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How often it renews, or looks whether the lease is free.
const RETRY: Duration = Duration::from_secs(2);

/// Whether we lead, as writers ask before every write.
#[derive(Clone, Debug)]
pub(crate) struct Reign {
    started: Instant,
    /// Milliseconds after `started`; zero when we do not lead.
    until: Arc<AtomicU64>,
    /// Ends when we no longer lead.
    pub(crate) over: CancellationToken,
}

impl Reign {
    /// Whether we lead now.
    pub(crate) fn holds(&self) -> bool {
        self.started.elapsed().as_millis() < u128::from(self.until.load(Ordering::Acquire))
    }

    /// How long we may lead without another renewal.
    fn left(&self) -> Duration {
        let until = Duration::from_millis(self.until.load(Ordering::Acquire));
        until.saturating_sub(self.started.elapsed())
    }

    fn extend(&self, from: Instant) {
        let until = from.duration_since(self.started) + RENEW_DEADLINE;
        self.until.store(until.as_millis() as u64, Ordering::Release);
    }

    fn end(&self) {
        self.until.store(0, Ordering::Release);
        self.over.cancel();
    }
}

/// The Lease by which one of several leads.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    server: Server,
    namespace: String,
    name: String,
    identity: String,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct LeaseObject {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    resource_version: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i32>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<i32>,
}

impl Lease {
    pub(crate) fn new(server: Server, namespace: &str, name: &str, identity: &str) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Self { server, namespace, name, identity: identity.to_owned() }
    }

    /// Waits until we lead. Gives up only when `stop` does.
    pub(crate) async fn acquire(&self, stop: &CancellationToken) -> Option<Reign> {
        let mut seen: Option<(Spec, Instant)> = None;
        let mut said = false;
        while !stop.is_cancelled() {
            let asked = Instant::now();
            match self.try_acquire(&mut seen, asked).await {
                Ok(true) => {
                    let reign = Reign {
                        started: asked,
                        until: Arc::default(),
                        over: CancellationToken::new(),
                    };
                    reign.extend(asked);
                    tracing::info!(identity = self.identity, "leading");
                    return Some(reign);
                }
                Ok(false) => {
                    let holder = seen.as_ref().and_then(|(spec, _)| spec.holder_identity.clone());
                    if !said {
                        tracing::info!(holder, "another leads; waiting");
                        said = true;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, lease = self.name, "cannot read or take the lease")
                }
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = stop.cancelled() => {}
            }
        }
        None
    }

    /// Keeps the reign until it is lost, or until `stop`; then the lease is given back.
    pub(crate) async fn keep(&self, reign: &Reign, stop: &CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(RETRY.min(reign.left())) => {}
                () = stop.cancelled() => break,
            }
            let asked = Instant::now();
            // An answer that comes when we lead no more is not worth waiting for.
            match tokio::time::timeout(reign.left(), self.renew()).await {
                Ok(Ok(true)) => reign.extend(asked),
                Ok(Ok(false)) => {
                    tracing::error!("another has taken the lease");
                    break;
                }
                Ok(Err(error)) => tracing::warn!(%error, "cannot renew the lease"),
                Err(_) => {}
            }
            if !reign.holds() {
                tracing::error!("the lease could not be renewed in time");
                break;
            }
        }
        let lost = !reign.holds();
        reign.end();
        if stop.is_cancelled() && !lost {
            if let Err(error) = self.release().await {
                tracing::warn!(%error, "cannot give the lease back");
            }
        }
    }

    async fn try_acquire(
        &self,
        seen: &mut Option<(Spec, Instant)>,
        now: Instant,
    ) -> Result<bool, Failure> {
        let lease = match self.read().await {
            Ok(lease) => lease,
            Err(Failure::NotFound(_)) => {
                let body = self.body("", self.spec(0, None));
                let path =
                    format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace);
                return match self.server.post::<LeaseObject>(&path, &body).await {
                    Ok(_) => Ok(true),
                    Err(Failure::Conflict(_)) => Ok(false),
                    Err(error) => Err(error),
                };
            }
            Err(error) => return Err(error),
        };
        let holder = lease.spec.holder_identity.as_deref().unwrap_or_default();
        let length = lease.spec.lease_duration_seconds.unwrap_or(0).clamp(0, 3600) as u64;
        let unchanged = match seen {
            Some((spec, since)) if *spec == lease.spec => now.duration_since(*since),
            _ => {
                *seen = Some((lease.spec.clone(), now));
                Duration::ZERO
            }
        };
        let free = holder.is_empty() || holder == self.identity;
        if !free && unchanged < Duration::from_secs(length) {
            return Ok(false);
        }
        let transitions = lease.spec.lease_transitions.unwrap_or(0) + 1;
        self.replace(&lease.metadata.resource_version, self.spec(transitions, None)).await
    }

    async fn renew(&self) -> Result<bool, Failure> {
        let lease = self.read().await?;
        if lease.spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(false);
        }
        let transitions = lease.spec.lease_transitions.unwrap_or(0);
        let spec = self.spec(transitions, lease.spec.acquire_time.clone());
        // A conflict may be an earlier renewal of our own that arrived late: the next look tells.
        let body = self.body(&lease.metadata.resource_version, spec);
        self.server.put::<LeaseObject>(&self.path(), &body).await.map(|_| true)
    }

    async fn release(&self) -> Result<(), Failure> {
        let lease = self.read().await?;
        if lease.spec.holder_identity.as_deref() == Some(&self.identity) {
            let spec = Spec { holder_identity: Some(String::new()), ..lease.spec };
            self.replace(&lease.metadata.resource_version, spec).await?;
        }
        Ok(())
    }

    async fn read(&self) -> Result<LeaseObject, Failure> {
        self.server.get(&self.path()).await
    }

    async fn replace(&self, version: &str, spec: Spec) -> Result<bool, Failure> {
        match self.server.put::<LeaseObject>(&self.path(), &self.body(version, spec)).await {
            Ok(_) => Ok(true),
            Err(Failure::Conflict(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}", self.namespace, self.name)
    }

    fn spec(&self, transitions: i32, acquired: Option<String>) -> Spec {
        let now = jiff::Timestamp::now();
        let now = jiff::fmt::temporal::DateTimePrinter::new()
            .precision(Some(6))
            .timestamp_to_string(&now);
        Spec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(LENGTH.as_secs() as i32),
            acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
        }
    }

    fn body(&self, version: &str, spec: Spec) -> serde_json::Value {
        let mut body = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": self.name, "namespace": self.namespace },
            "spec": spec,
        });
        if !version.is_empty() {
            body["metadata"]["resourceVersion"] = version.into();
        }
        body
    }
}
