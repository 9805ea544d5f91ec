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

use super::api::{ApiServer, Failure};

/// How long a lease lasts.
pub(crate) const LENGTH: Duration = Duration::from_secs(15);
/// How long a leader that cannot renew goes on.
pub(crate) const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How often it renews, or looks whether the lease is free.
const RETRY: Duration = Duration::from_secs(2);

/// Whether we lead, as writers ask before every write. A leadership that has lapsed never comes back.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    started: Instant,
    /// Milliseconds after `started`.
    until: Arc<AtomicU64>,
    /// Ends when we no longer lead.
    pub(crate) over: CancellationToken,
    /// Ends when nothing new is to be begun, because we are about to hand over.
    closing: CancellationToken,
}

impl Leadership {
    /// A leadership that began with a request sent at this time.
    pub(super) fn new(asked: Instant) -> Self {
        let leadership = Self {
            started: asked,
            until: Arc::default(),
            over: CancellationToken::new(),
            closing: CancellationToken::new(),
        };
        leadership.set_until(asked);
        leadership
    }

    /// How long we may lead without another renewal.
    fn left(&self) -> Duration {
        let until = Duration::from_millis(self.until.load(Ordering::Acquire));
        until.saturating_sub(self.started.elapsed())
    }

    /// Whether we lead now.
    pub(crate) fn holds(&self) -> bool {
        self.holds_at(Instant::now())
    }

    /// Whether we lead, and are not about to hand over.
    pub(crate) fn is_open(&self) -> bool {
        self.holds() && !self.closing.is_cancelled()
    }

    /// Nothing new is begun from now on.
    pub(crate) fn close(&self) {
        self.closing.cancel();
    }

    /// Waits; not longer than there is something to wait for.
    pub(crate) async fn pause(&self, length: Duration) {
        tokio::select! {
            () = tokio::time::sleep(length) => {}
            () = self.closing.cancelled() => {}
            () = self.over.cancelled() => {}
        }
    }

    fn holds_at(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.started).as_millis();
        let lapsed = age >= u128::from(self.until.load(Ordering::Acquire));
        if lapsed {
            self.over.cancel();
        }
        !self.over.is_cancelled()
    }

    /// The lease was renewed, by a request sent at `asked` and answered at `now`; says whether that was in time.
    fn extend(&self, asked: Instant, now: Instant) -> bool {
        let holds = self.holds_at(now);
        if holds {
            self.set_until(asked);
        }
        holds
    }

    fn set_until(&self, asked: Instant) {
        let until = asked.saturating_duration_since(self.started) + RENEW_DEADLINE;
        self.until.store(until.as_millis() as u64, Ordering::Release);
    }

    fn end(&self) {
        self.over.cancel();
    }
}

/// A lease as a follower last saw it change.
#[derive(Debug)]
struct ObservedLease {
    spec: LeaseSpec,
    since: Instant,
}

impl ObservedLease {
    /// For how long at least the lease has been as it is, by a read sent at `asked` and answered at `answered`.
    fn unchanged(
        seen: &mut Option<Self>,
        spec: &LeaseSpec,
        asked: Instant,
        answered: Instant,
    ) -> Duration {
        match seen {
            Some(seen) if seen.spec == *spec => asked.saturating_duration_since(seen.since),
            _ => {
                *seen = Some(Self { spec: spec.clone(), since: answered });
                Duration::ZERO
            }
        }
    }
}

/// The Lease by which one of several leads.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    server: ApiServer,
    namespace: String,
    name: String,
    identity: String,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct LeaseObject {
    metadata: Metadata,
    spec: LeaseSpec,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    resource_version: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaseSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i32>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<i32>,
}

impl Lease {
    pub(crate) fn new(server: ApiServer, namespace: &str, name: &str, identity: &str) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Self { server, namespace, name, identity: identity.to_owned() }
    }

    /// Waits until we lead. Gives up only when `stop` does.
    pub(crate) async fn acquire(&self, stop: &CancellationToken) -> Option<Leadership> {
        let mut seen: Option<ObservedLease> = None;
        let mut said = false;
        while !stop.is_cancelled() {
            let asked = Instant::now();
            match self.try_acquire(&mut seen, asked).await {
                Ok(true) => {
                    tracing::info!(identity = self.identity, "leading");
                    return Some(Leadership::new(asked));
                }
                Ok(false) => {
                    let holder = seen.as_ref().and_then(|seen| seen.spec.holder_identity.clone());
                    if !said {
                        tracing::info!(holder, "another leads; waiting");
                        said = true;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, lease = self.name, "cannot read or take the lease");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = stop.cancelled() => {}
            }
        }
        None
    }

    /// Keeps the leadership until it is lost, or until `stop`; ends it, and says whether the lease is still ours.
    pub(crate) async fn keep(&self, leadership: &Leadership, stop: &CancellationToken) -> bool {
        loop {
            tokio::select! {
                () = tokio::time::sleep(RETRY.min(leadership.left())) => {}
                () = stop.cancelled() => break,
            }
            let asked = Instant::now();
            // An answer that comes when we lead no more is not worth waiting for.
            let renewed = tokio::time::timeout(leadership.left(), self.renew()).await;
            let in_time = match renewed {
                Ok(Ok(true)) => leadership.extend(asked, Instant::now()),
                Ok(Ok(false)) => {
                    tracing::error!("another has taken the lease");
                    leadership.end();
                    return false;
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "cannot renew the lease");
                    leadership.holds()
                }
                Err(_) => leadership.holds(),
            };
            if !in_time {
                tracing::error!("the lease could not be renewed in time");
                break;
            }
        }
        let held = leadership.holds();
        leadership.end();
        held
    }

    /// Gives the lease back, so that another need not wait. Nothing that we sent may be under way any more.
    pub(crate) async fn give_back(&self) {
        if let Err(error) = self.release().await {
            tracing::warn!(%error, "cannot give the lease back");
        }
    }

    async fn try_acquire(
        &self,
        seen: &mut Option<ObservedLease>,
        asked: Instant,
    ) -> Result<bool, Failure> {
        let lease = match self.read().await {
            Ok(lease) => lease,
            Err(Failure::NotFound(_)) => {
                let body = self.body("", &self.spec(0, None));
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
        let unchanged = ObservedLease::unchanged(seen, &lease.spec, asked, Instant::now());
        let free = holder.is_empty() || holder == self.identity;
        if !free && unchanged < Duration::from_secs(length) {
            return Ok(false);
        }
        let transitions = lease.spec.lease_transitions.unwrap_or(0).saturating_add(1);
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
        let body = self.body(&lease.metadata.resource_version, &spec);
        self.server.put::<LeaseObject>(&self.path(), &body).await.map(|_| true)
    }

    async fn release(&self) -> Result<(), Failure> {
        let lease = self.read().await?;
        if lease.spec.holder_identity.as_deref() == Some(&self.identity) {
            let spec = LeaseSpec { holder_identity: Some(String::new()), ..lease.spec };
            self.replace(&lease.metadata.resource_version, spec).await?;
        }
        Ok(())
    }

    async fn read(&self) -> Result<LeaseObject, Failure> {
        self.server.get(&self.path()).await
    }

    async fn replace(&self, version: &str, spec: LeaseSpec) -> Result<bool, Failure> {
        match self.server.put::<LeaseObject>(&self.path(), &self.body(version, &spec)).await {
            Ok(_) => Ok(true),
            Err(Failure::Conflict(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}", self.namespace, self.name)
    }

    fn spec(&self, transitions: i32, acquired: Option<String>) -> LeaseSpec {
        let now = jiff::Timestamp::now();
        let now = jiff::fmt::temporal::DateTimePrinter::new()
            .precision(Some(6))
            .timestamp_to_string(&now);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(LENGTH.as_secs() as i32),
            acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
        }
    }

    fn body(&self, version: &str, spec: &LeaseSpec) -> serde_json::Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_reign_lasts_until_its_deadline_and_no_renewal_revives_it() {
        // Renewals, as seconds when each was sent and answered, and a second at which somebody asks.
        let check = |renewals: &[(u32, u32)], asked: u32, holds: bool| {
            let start = Instant::now();
            let leadership = Leadership::new(start);
            for (sent, answered) in renewals {
                leadership.extend(start + SECOND * *sent, start + SECOND * *answered);
            }
            let found = leadership.holds_at(start + SECOND * asked);
            assert_eq!(found, holds, "renewals {renewals:?}, asked at {asked}");
            assert_eq!(leadership.over.is_cancelled(), !holds);
        };
        check(&[], 9, true);
        check(&[], 10, false);
        check(&[(8, 9)], 17, true);
        check(&[(8, 9)], 18, false);
        // It counts from when the renewal was sent.
        check(&[(2, 6)], 12, false);
        // The answer came after the deadline: it is over, whatever the answer says.
        check(&[(9, 11)], 12, false);
        check(&[(9, 11), (12, 13)], 14, false);
    }

    #[test]
    fn a_reign_that_was_seen_to_be_over_stays_over() {
        let start = Instant::now();
        let leadership = Leadership::new(start);
        assert!(!leadership.holds_at(start + SECOND * 10));
        assert!(!leadership.extend(start + SECOND, start + SECOND * 2));
        assert!(!leadership.holds_at(start + SECOND * 2));
    }

    #[test]
    fn a_reign_that_closes_begins_nothing_but_still_holds() {
        let leadership = Leadership::new(Instant::now());
        assert!(leadership.is_open());
        leadership.close();
        assert!(!leadership.is_open());
        assert!(leadership.holds());
    }

    #[test]
    fn a_follower_counts_from_the_answer_of_one_look_to_the_question_of_the_next() {
        let start = Instant::now();
        let spec = |renewed: &str| LeaseSpec {
            renew_time: Some(renewed.to_owned()),
            ..LeaseSpec::default()
        };
        let mut seen = None;
        let mut look = |renewed: &str, asked: u32, answered: u32| {
            let (asked, answered) = (start + SECOND * asked, start + SECOND * answered);
            ObservedLease::unchanged(&mut seen, &spec(renewed), asked, answered)
        };
        assert_eq!(look("one", 0, 3), Duration::ZERO);
        assert_eq!(look("one", 5, 6), SECOND * 2);
        assert_eq!(look("one", 18, 21), SECOND * 15);
        assert_eq!(look("two", 22, 23), Duration::ZERO);
        assert_eq!(look("two", 24, 25), SECOND);
    }
}
