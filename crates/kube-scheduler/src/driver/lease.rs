//! Leader election by a Lease.
//!
//! Clocks of replicas differ, so that only the own monotonic clock counts. All times of a leader begin when it *sends* a
//! renewal, all times of a follower when it has *received* a lease:
//!
//! ```text
//! leader    renews ──────────── renew deadline: no new write ── last write times out │ margin │
//! follower      reads the renewed lease ──────────────── unchanged for the lease duration ──────── takes over
//! ```
//!
//! A write sent before the renew deadline times out, at the leader and at the API server, [`lease_times::MARGIN`] before the lease ends
//! ([`Leadership::write_timeout`]). So no write takes effect after another replica may lead, unless the network or a paused
//! process delays a sent request for longer than the margin. Every write names the uid of its object, and the API server
//! refuses to bind a pod twice.

use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::Options;
use super::api::{ApiServer, Failure};
use super::leader_address::{Addresses, LeaderAddress};
use super::lease_times::{self, LeaseTimes};

/// Leadership of this replica; checked before every write. Lapsed leadership is never restored.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    times: LeaseTimes,
    started: Instant,
    /// End of leadership without another renewal, in milliseconds after `started`.
    until: Arc<AtomicU64>,
    /// Cancelled when leadership is lost.
    pub(crate) over: CancellationToken,
    /// Cancelled before the lease is released: no new work starts.
    closing: CancellationToken,
}

impl Leadership {
    /// Leadership acquired by a request sent at this time.
    pub(super) fn new(asked: Instant, times: LeaseTimes) -> Self {
        let leadership = Self {
            times,
            started: asked,
            until: Arc::default(),
            over: CancellationToken::new(),
            closing: CancellationToken::new(),
        };
        leadership.set_until(asked);
        leadership
    }

    /// Time that is left without another renewal.
    fn left(&self) -> Duration {
        let until = Duration::from_millis(self.until.load(Ordering::Acquire));
        until.saturating_sub(self.started.elapsed())
    }

    /// Timeout of a write sent now, at most `most`: the write has no effect after the end of the lease.
    pub(crate) fn write_timeout(&self, most: Duration) -> Duration {
        let after_deadline = self.times.duration().saturating_sub(self.times.renew_deadline());
        let after_deadline = after_deadline.saturating_sub(lease_times::MARGIN);
        most.min(self.left() + after_deadline)
    }

    pub(crate) fn holds(&self) -> bool {
        self.holds_at(Instant::now())
    }

    /// Returns true if new work may start: this replica leads and is not about to release the lease.
    pub(crate) fn is_open(&self) -> bool {
        self.holds() && !self.closing.is_cancelled()
    }

    /// Prevents new work.
    pub(crate) fn close(&self) {
        self.closing.cancel();
    }

    /// Sleeps; returns early when leadership ends.
    pub(crate) async fn sleep(&self, length: Duration) {
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

    /// Records a renewal sent at `asked` and answered at `now`; returns true if it was in time.
    fn extend(&self, asked: Instant, now: Instant) -> bool {
        let holds = self.holds_at(now);
        if holds {
            self.set_until(asked);
        }
        holds
    }

    fn set_until(&self, asked: Instant) {
        let until = asked.saturating_duration_since(self.started) + self.times.renew_deadline();
        self.until.store(until.as_millis() as u64, Ordering::Release);
    }

    fn end(&self) {
        self.over.cancel();
    }
}

/// A lease and the time of its last observed change.
#[derive(Debug)]
struct ObservedLease {
    spec: LeaseSpec,
    since: Instant,
}

impl ObservedLease {
    /// Minimum time for which the lease did not change, by a read sent at `asked` and answered at `answered`.
    fn unchanged(
        observed: &mut Option<Self>,
        spec: &LeaseSpec,
        asked: Instant,
        answered: Instant,
    ) -> Duration {
        match observed {
            Some(observed) if observed.spec == *spec => {
                asked.saturating_duration_since(observed.since)
            }
            _ => {
                *observed = Some(Self { spec: spec.clone(), since: answered });
                Duration::ZERO
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Lease {
    server: ApiServer,
    namespace: String,
    name: String,
    identity: String,
    times: LeaseTimes,
    /// Addresses of this replica, written into the Lease.
    own: Addresses,
    /// Addresses of the leader, read from the Lease.
    leader: LeaderAddress,
}

/// Result of an attempt to acquire the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Acquired,
    /// Another replica holds the lease for at least this time.
    Held(Duration),
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
    annotations: BTreeMap<String, String>,
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
    pub(crate) fn new(server: ApiServer, options: &Options, leader: LeaderAddress) -> Self {
        Self {
            server,
            namespace: options.namespace.clone(),
            name: options.lease.clone(),
            identity: options.identity.clone(),
            times: options.lease_times,
            own: Addresses::of(
                options.health,
                options.metrics,
                options.dashboard,
                options.own_address,
            ),
            leader,
        }
    }

    /// Waits for leadership; none after `stop`.
    pub(crate) async fn acquire(&self, stop: &CancellationToken) -> Option<Leadership> {
        let mut observed: Option<ObservedLease> = None;
        let mut logged = false;
        while !stop.is_cancelled() {
            let asked = Instant::now();
            let mut pause = self.times.retry();
            match self.try_acquire(&mut observed, asked).await {
                Ok(Attempt::Acquired) => {
                    tracing::info!(identity = self.identity, "leading");
                    return Some(Leadership::new(asked, self.times));
                }
                Ok(Attempt::Held(left)) => {
                    // At the end of the lease without a delay.
                    pause = pause.min(left);
                    let holder = observed
                        .as_ref()
                        .and_then(|observed| observed.spec.holder_identity.clone());
                    if !logged {
                        tracing::info!(holder, "another replica leads; waiting");
                        logged = true;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, lease = self.name, "cannot read or acquire the lease");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
        None
    }

    /// Renews the lease until it is lost or until `stop`; ends leadership, and returns true if the lease is still held.
    pub(crate) async fn keep(&self, leadership: &Leadership, stop: &CancellationToken) -> bool {
        let mut pause = self.times.retry();
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause.min(leadership.left())) => {}
                () = stop.cancelled() => break,
            }
            pause = self.times.retry();
            let asked = Instant::now();
            // A lost packet must leave time for another attempt.
            let patience = leadership.left().min(self.times.renew_deadline() / 2);
            let renewed = tokio::time::timeout(patience, self.renew()).await;
            let in_time = match renewed {
                Ok(Ok(true)) => leadership.extend(asked, Instant::now()),
                Ok(Ok(false)) => {
                    tracing::error!("another replica acquired the lease");
                    leadership.end();
                    return false;
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "cannot renew the lease");
                    leadership.holds()
                }
                Err(_) => {
                    pause = Duration::ZERO;
                    leadership.holds()
                }
            };
            if !in_time {
                tracing::error!("the lease was not renewed in time");
                break;
            }
        }
        let held = leadership.holds();
        leadership.end();
        held
    }

    /// Releases the lease, so that a follower need not wait. No write may be in flight.
    pub(crate) async fn release(&self) {
        if let Err(error) = self.clear_holder().await {
            tracing::warn!(%error, "cannot release the lease");
        }
    }

    async fn try_acquire(
        &self,
        observed: &mut Option<ObservedLease>,
        asked: Instant,
    ) -> Result<Attempt, Failure> {
        let lost = Attempt::Held(self.times.retry());
        let lease = match self.read().await {
            Ok(lease) => lease,
            Err(Failure::NotFound(_)) => {
                let body = self.body("", &self.spec(0, None));
                let path =
                    format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace);
                return match self.server.post::<LeaseObject>(&path, &body).await {
                    Ok(_) => Ok(Attempt::Acquired),
                    Err(Failure::Conflict(_)) => Ok(lost),
                    Err(error) => Err(error),
                };
            }
            Err(error) => return Err(error),
        };
        self.leader.set(Addresses::read(&lease.metadata.annotations));
        let holder = lease.spec.holder_identity.as_deref().unwrap_or_default();
        let length = lease.spec.lease_duration_seconds.unwrap_or(0).clamp(0, 3600) as u64;
        let length = Duration::from_secs(length);
        let unchanged = ObservedLease::unchanged(observed, &lease.spec, asked, Instant::now());
        let free = holder.is_empty() || holder == self.identity;
        if !free && unchanged < length {
            return Ok(Attempt::Held(length.saturating_sub(unchanged)));
        }
        let transitions = lease.spec.lease_transitions.unwrap_or(0).saturating_add(1);
        let spec = self.spec(transitions, None);
        let replaced = self.replace(&lease.metadata.resource_version, spec).await?;
        Ok(if replaced { Attempt::Acquired } else { lost })
    }

    async fn renew(&self) -> Result<bool, Failure> {
        let lease = self.read().await?;
        if lease.spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(false);
        }
        let transitions = lease.spec.lease_transitions.unwrap_or(0);
        let spec = self.spec(transitions, lease.spec.acquire_time.clone());
        // A conflict may be an earlier renewal that arrived late: the next read resolves it.
        let body = self.body(&lease.metadata.resource_version, &spec);
        self.server.put::<LeaseObject>(&self.path(), &body).await.map(|_| true)
    }

    async fn clear_holder(&self) -> Result<(), Failure> {
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
            lease_duration_seconds: Some(self.times.duration().as_secs() as i32),
            acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
        }
    }

    fn body(&self, version: &str, spec: &LeaseSpec) -> serde_json::Value {
        let mut body = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "annotations": self.own.annotations(),
            },
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

    fn times() -> LeaseTimes {
        LeaseTimes::new(SECOND * 15, SECOND * 10, SECOND * 2).expect("valid times")
    }

    #[test]
    fn a_write_times_out_before_its_lease_ends() {
        let four = SECOND * 4;
        let leadership = Leadership::new(Instant::now(), LeaseTimes::default());
        assert_eq!(leadership.write_timeout(four), four, "a fresh lease leaves the usual time");
        let late = Instant::now().checked_sub(Duration::from_millis(3900)).expect("a time");
        let leadership = Leadership::new(late, LeaseTimes::default());
        let timeout = leadership.write_timeout(four);
        assert!(timeout <= Duration::from_millis(1600), "{timeout:?}");
        assert!(timeout >= SECOND, "{timeout:?}");
    }

    #[test]
    fn leadership_lasts_until_its_deadline_and_no_renewal_revives_it() {
        // Renewals as seconds of request and response, and the second of the check.
        let check = |renewals: &[(u32, u32)], asked: u32, holds: bool| {
            let start = Instant::now();
            let leadership = Leadership::new(start, times());
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
        // The time of the request counts.
        check(&[(2, 6)], 12, false);
        // A response after the deadline does not count.
        check(&[(9, 11)], 12, false);
        check(&[(9, 11), (12, 13)], 14, false);
    }

    #[test]
    fn leadership_that_lapsed_stays_lapsed() {
        let start = Instant::now();
        let leadership = Leadership::new(start, times());
        assert!(!leadership.holds_at(start + SECOND * 10));
        assert!(!leadership.extend(start + SECOND, start + SECOND * 2));
        assert!(!leadership.holds_at(start + SECOND * 2));
    }

    #[test]
    fn closed_leadership_starts_no_work_and_still_holds() {
        let leadership = Leadership::new(Instant::now(), times());
        assert!(leadership.is_open());
        leadership.close();
        assert!(!leadership.is_open());
        assert!(leadership.holds());
    }

    #[test]
    fn a_follower_measures_from_one_response_to_the_next_request() {
        let start = Instant::now();
        let spec = |renewed: &str| LeaseSpec {
            renew_time: Some(renewed.to_owned()),
            ..LeaseSpec::default()
        };
        let mut observed = None;
        let mut look = |renewed: &str, asked: u32, answered: u32| {
            let (asked, answered) = (start + SECOND * asked, start + SECOND * answered);
            ObservedLease::unchanged(&mut observed, &spec(renewed), asked, answered)
        };
        assert_eq!(look("one", 0, 3), Duration::ZERO);
        assert_eq!(look("one", 5, 6), SECOND * 2);
        assert_eq!(look("one", 18, 21), SECOND * 15);
        assert_eq!(look("two", 22, 23), Duration::ZERO);
        assert_eq!(look("two", 24, 25), SECOND);
    }
}
