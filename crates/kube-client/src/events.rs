//! Events of jobs: the Kubernetes Events of workloads and their pods.

use agentaflow_api::event::Event;
use agentaflow_api::ids::EventSeq;
use agentaflow_api::{Stamp, job::Job};
use agentaflow_kube_core::names;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1 as core;
use kube::api::ListParams;
use kube::runtime::watcher;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

use super::named::{Kind, Named};
use super::show::stamp;
use super::{Cluster, Failure, list};

/// Greatest difference in milliseconds between the events of a workload and its pods about one decision.
const SAME_TIME: i64 = 1_000;

impl Cluster {
    /// Events of one job or of all jobs, oldest first.
    pub async fn events(&self, job: Option<&str>) -> Result<Vec<Event>, Failure> {
        let mut known = self.known(job).await?;
        let api = known.api(self);
        let mut found = list::all(&api, ListParams::default()).await?;
        found.sort_by_key(|event| (at(event), event.metadata.name.clone()));
        // Events of workloads identify the pods of these workloads.
        for event in &found {
            known.learn(event);
        }
        let waits = known.workload_waits(&found);
        let news = found.iter().filter(|event| !known.repeats(event, &waits));
        Ok(news.filter_map(|event| known.show(event)).collect())
    }

    /// Stream of events recorded after this call.
    pub async fn follow_events(
        &self,
        job: Option<&str>,
    ) -> Result<BoxStream<'static, Result<Event, Failure>>, Failure> {
        let known = self.known(job).await?;
        let api = known.api(self);
        let changes = watcher(api, watcher::Config::default()).boxed();
        let mut following = Following { known, changes, seen: BTreeMap::new(), begun: false };
        // Lists the existing events now: every event after this call is new, even if the stream is polled late.
        following.begin().await?;
        let events = futures_util::stream::unfold(following, |mut following| async move {
            following.next().await.map(|event| (event, following))
        });
        Ok(events.boxed())
    }

    /// Selects the objects of one job or of all jobs.
    async fn known(&self, job: Option<&str>) -> Result<JobObjects, Failure> {
        let mut known = JobObjects { everywhere: self.everywhere, ..JobObjects::default() };
        if let Some(name) = job {
            let named = self.named(name)?;
            known.add(&self.job_of(&named).await?, named.kind);
            known.only = Some(named);
            return Ok(known);
        }
        for job in self.jobs(&[]).await? {
            let named = self.named(&job.handle())?;
            known.add(&job, named.kind);
        }
        Ok(known)
    }
}

/// Objects of the selected jobs.
#[derive(Clone, Debug, Default)]
struct JobObjects {
    everywhere: bool,
    /// The selected job; `None` selects all jobs.
    only: Option<Named>,
    /// Namespace and name.
    workloads: BTreeSet<(String, String)>,
    pods: BTreeSet<(String, String)>,
}

impl JobObjects {
    fn add(&mut self, job: &Job, kind: Kind) {
        let space = job.k8s_namespace.clone().unwrap_or_default();
        let name = job.spec.job_name.clone().unwrap_or_default();
        match kind {
            Kind::Workload => self.workloads.insert((space, name)),
            Kind::Pod => self.pods.insert((space, name)),
        };
    }

    /// Records the workload of an event: it may be newer than the last list, or deleted.
    fn learn(&mut self, event: &core::Event) {
        let about = &event.involved_object;
        if self.only.is_none() && about.kind.as_deref() == Some("GPUWorkload") {
            self.workloads.extend(key(about));
        }
    }

    fn api(&self, cluster: &Cluster) -> kube::Api<core::Event> {
        match &self.only {
            Some(named) => cluster.namespaced(&named.namespace),
            None => cluster.listed(),
        }
    }

    /// First and last time of each pending reason of a workload.
    fn workload_waits(&self, events: &[core::Event]) -> BTreeMap<Named, Vec<(Stamp, Stamp)>> {
        let mut waits: BTreeMap<Named, Vec<(Stamp, Stamp)>> = BTreeMap::new();
        for event in events.iter().filter(|event| is_wait_of(event, "GPUWorkload")) {
            if let Some(workload) = self.job_of(event) {
                waits.entry(workload).or_default().push((first_at(event), at(event)));
            }
        }
        waits
    }

    /// True if a pod waits at the same time as its workload: the scheduler reports one reason for both.
    fn repeats(&self, event: &core::Event, waits: &BTreeMap<Named, Vec<(Stamp, Stamp)>>) -> bool {
        if !is_wait_of(event, "Pod") {
            return false;
        }
        let time = at(event).0;
        let is_within = |(first, last): &(Stamp, Stamp)| {
            (first.0 - SAME_TIME..=last.0 + SAME_TIME).contains(&time)
        };
        let waits = self.job_of(event).and_then(|workload| waits.get(&workload));
        waits.is_some_and(|waits| waits.iter().any(is_within))
    }

    /// Converts an event; `None` if it concerns no selected job.
    fn show(&self, event: &core::Event) -> Option<Event> {
        let named = self.job_of(event)?;
        let about = &event.involved_object;
        let mut data = serde_json::Map::new();
        if let Some(count) = count(event) {
            data.insert("count".to_owned(), count.into());
        }
        let fields = [("type", event.type_.as_ref()), ("object", about.name.as_ref())];
        data.extend(
            fields
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), Value::from(value?.clone())))),
        );
        let host = event.source.as_ref().and_then(|source| source.host.clone());
        Some(Event {
            seq: EventSeq::default(),
            at: at(event),
            kind: event.reason.as_deref().unwrap_or_default().into(),
            message: event.message.clone().unwrap_or_default(),
            job: Some(named.handle(self.everywhere)),
            node_id: host.filter(|host| !host.is_empty()),
            data,
            ..Event::default()
        })
    }

    fn job_of(&self, event: &core::Event) -> Option<Named> {
        let about = &event.involved_object;
        let (namespace, name) = key(about)?;
        match about.kind.as_deref()? {
            "GPUWorkload" => {
                let found = self.workloads.contains(&(namespace.clone(), name.clone()));
                found.then_some(Named { namespace, kind: Kind::Workload, name })
            }
            "Pod" => {
                if let Some(workload) = self.workload_of(&namespace, &name) {
                    return Some(Named { namespace, kind: Kind::Workload, name: workload });
                }
                let ours = event.reporting_component.as_deref() == Some(names::SCHEDULER_NAME);
                let meant = self.pods.contains(&(namespace.clone(), name.clone()));
                (meant || (ours && self.only.is_none())).then_some(Named {
                    namespace,
                    kind: Kind::Pod,
                    name,
                })
            }
            _ => None,
        }
    }

    /// Workload of a pod, by the pod's name: the pod itself may be deleted.
    fn workload_of(&self, namespace: &str, pod: &str) -> Option<String> {
        let first = (namespace.to_owned(), String::new());
        let here = self.workloads.range(first..).take_while(|(space, _)| space == namespace);
        here.map(|(_, name)| name).find(|name| is_pod_of(pod, name)).cloned()
    }
}

/// True for a pending reason of an object of this kind.
fn is_wait_of(event: &core::Event, kind: &str) -> bool {
    event.reason.as_deref() == Some(names::FAILED_SCHEDULING)
        && event.involved_object.kind.as_deref() == Some(kind)
}

/// True if a pod of this name belongs to the workload.
fn is_pod_of(pod: &str, workload: &str) -> bool {
    let parts = |text: &str| -> Option<(u32, u32)> {
        let (rest, last) = text.rsplit_once('-')?;
        match last.strip_prefix('r').and_then(|attempt| attempt.parse().ok()) {
            Some(attempt) => Some((rest.rsplit_once('-')?.1.parse().ok()?, attempt)),
            None => Some((last.parse().ok()?, 0)),
        }
    };
    parts(pod).is_some_and(|(task, attempt)| {
        agentaflow_kube_core::gpu_workload::pod_name(workload, task, attempt) == pod
    })
}

/// Stream of events that resumes after the API server closes the watch.
struct Following {
    known: JobObjects,
    changes: BoxStream<'static, watcher::Result<watcher::Event<core::Event>>>,
    /// Resource version of each delivered event.
    seen: BTreeMap<String, String>,
    begun: bool,
}

impl Following {
    /// Records the existing events as delivered.
    async fn begin(&mut self) -> Result<(), Failure> {
        while !self.begun {
            match self.changes.next().await {
                Some(Ok(watcher::Event::InitDone)) => self.begun = true,
                Some(Ok(watcher::Event::Apply(event) | watcher::Event::InitApply(event))) => {
                    self.is_fresh(&event);
                    self.known.learn(&event);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(of_watch(error)),
                None => return Err(Failure::Other("the events broke off".to_owned())),
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<Result<Event, Failure>> {
        loop {
            match self.changes.next().await? {
                Ok(watcher::Event::Apply(event) | watcher::Event::InitApply(event)) => {
                    let fresh = self.is_fresh(&event);
                    self.known.learn(&event);
                    // Events recorded while the watch was interrupted are new as well.
                    if let Some(event) = self.known.show(&event).filter(|_| fresh) {
                        return Some(Ok(event));
                    }
                }
                Ok(watcher::Event::Init | watcher::Event::InitDone | watcher::Event::Delete(_)) => {
                }
                Err(_) => tokio::time::sleep(std::time::Duration::from_secs(1)).await,
            }
        }
    }

    fn is_fresh(&mut self, event: &core::Event) -> bool {
        let uid = event.metadata.uid.clone().unwrap_or_default();
        let version = event.metadata.resource_version.clone().unwrap_or_default();
        self.seen.insert(uid, version.clone()) != Some(version)
    }
}

fn of_watch(error: watcher::Error) -> Failure {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error.into(),
        other => Failure::Other(other.to_string()),
    }
}

fn key(about: &core::ObjectReference) -> Option<(String, String)> {
    Some((about.namespace.clone().unwrap_or_default(), about.name.clone()?))
}

fn count(event: &core::Event) -> Option<i32> {
    let series = event.series.as_ref().and_then(|series| series.count);
    series.or(event.count).filter(|count| *count > 1)
}

/// Time of the last occurrence.
fn at(event: &core::Event) -> Stamp {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let last = series.map(|time| Stamp(time.0.as_millisecond()));
    last.or_else(|| event.last_timestamp.as_ref().filter(|_| event.event_time.is_none()).map(stamp))
        .unwrap_or_else(|| first_at(event))
}

/// Time of the first occurrence.
fn first_at(event: &core::Event) -> Stamp {
    let precise = event.event_time.as_ref().map(|time| Stamp(time.0.as_millisecond()));
    let whole = event.first_timestamp.as_ref().or(event.last_timestamp.as_ref());
    let made = event.metadata.creation_timestamp.as_ref();
    precise.or_else(|| whole.or(made).map(stamp)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_name_of_a_pod_identifies_its_workload() {
        for (pod, workload, expected) in [
            ("train-0", "train", true),
            ("train-12-r3", "train", true),
            ("train-x", "train", false),
            ("train-0", "tra", false),
            ("train-0-0", "train-0", true),
            ("train-0-0", "train", false),
            ("train", "train", false),
        ] {
            assert_eq!(is_pod_of(pod, workload), expected, "{pod} of {workload}");
        }
    }

    #[test]
    fn events_name_their_job_and_the_time_of_their_last_occurrence() {
        let mut known = JobObjects::default();
        known.workloads.insert(("ml".to_owned(), "train".to_owned()));
        let event = |kind: &str, name: &str| -> core::Event {
            serde_json::from_value(json!({
                "metadata": {"name": "e", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "involvedObject": {"kind": kind, "name": name, "namespace": "ml"},
                "eventTime": "2026-01-01T00:00:01.500000Z",
                "series": {"count": 3, "lastObservedTime": "2026-01-01T00:00:09.000000Z"},
                "reason": "Waiting", "message": "no room", "type": "Warning",
            }))
            .unwrap()
        };
        for (kind, name) in [("GPUWorkload", "train"), ("Pod", "train-0")] {
            let shown = known.show(&event(kind, name)).unwrap();
            assert_eq!(shown.job.as_deref(), Some("train"));
            assert_eq!(shown.at.to_string(), "2026-01-01T00:00:09.000Z");
            assert_eq!((shown.kind.as_str(), &shown.data["count"]), ("Waiting", &json!(3)));
        }
        assert_eq!(known.show(&event("Pod", "other-0")), None);
        assert_eq!(known.show(&event("Node", "train")), None);
        known.learn(&event("GPUWorkload", "other"));
        let shown = known.show(&event("Pod", "other-0")).unwrap();
        assert_eq!(shown.job.as_deref(), Some("other"));
    }

    #[test]
    fn a_pod_repeats_the_pending_reason_of_its_workload_at_the_same_time() {
        let event = |kind: &str, name: &str, time: &str, message: &str| -> core::Event {
            serde_json::from_value(json!({
                "involvedObject": {"kind": kind, "name": name, "namespace": "ml"},
                "eventTime": format!("2026-01-01T00:00:{time}00Z"),
                "reason": names::FAILED_SCHEDULING, "message": message,
            }))
            .unwrap()
        };
        let mut known = JobObjects::default();
        known.workloads.insert(("ml".to_owned(), "train".to_owned()));
        let waits = known.workload_waits(&[event("GPUWorkload", "train", "10.0000", "no room")]);
        let check = |name: &str, time: &str, expected: bool| {
            let pod = event("Pod", name, time, "another sentence");
            assert_eq!(known.repeats(&pod, &waits), expected, "{name} at {time}");
        };
        check("train-0", "10.4000", true);
        check("train-0", "12.0000", false);
        check("other-0", "10.4000", false);
    }
}
