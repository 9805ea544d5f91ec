//! PodCreation the pods that are missing, neither too early nor under a second name.

use agentaflow_kube_core::crd::{BackOff, GpuWorkloadSpec, GpuWorkloadStatus};
use agentaflow_kube_core::gpu_workload::{BadTemplate, Identity, pod, pod_name};
use agentaflow_kube_core::names;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::condition::{self, CreationBlocker};
use super::reconcile::{Reconciler, note, pods_in_words};
use super::task_table::{TaskSlot, TaskTable};
use super::{EventType, NewPod, WorkloadEvent, lifecycle};

/// The most pods that are made in one go.
const BATCH: usize = 500;

/// The most bytes of pods that are made in one go; all of them are in memory at once.
const BATCH_BYTES: usize = 4 << 20;

/// What came of making pods.
#[derive(Default)]
pub(super) struct PodCreation {
    pub(super) create: Vec<NewPod>,
    pub(super) obstacle: Option<CreationBlocker>,
    pub(super) notes: Vec<WorkloadEvent>,
    pub(super) wake: Option<Timestamp>,
}

impl Reconciler<'_> {
    /// Makes the pods that are missing, unless it is too early.
    pub(super) fn make(
        &self,
        spec: &GpuWorkloadSpec,
        roster: &TaskTable<'_>,
        status: &mut GpuWorkloadStatus,
    ) -> PodCreation {
        let mut making = PodCreation { wake: stragglers(roster), ..PodCreation::default() };
        if roster.spent > self.old.retries && !roster.round_has_begun() {
            let wait = lifecycle::after_failure(roster.spent - 1, self.now);
            making.notes.extend(lifecycle::retrying(roster, spec.retries, &wait));
            status.back_off = Some(wait);
        }
        let missing: Vec<u32> = empty_seats(roster);
        if missing.is_empty() {
            return making;
        }
        let rejected = self.outlook.rejected.as_deref();
        making.obstacle = rejected.map(|why| {
            let message = format!("The API server refuses its pods: {why}");
            CreationBlocker::Trouble(condition::POD_REJECTED, message)
        });
        if let Some(wait) = self.too_early(status) {
            making.wake = earliest(making.wake, Some(wait.until.0));
            // Right after pods were made they may simply not be seen yet.
            if wait.count != 1 && making.obstacle.is_none() {
                making.obstacle = Some(CreationBlocker::Delay(wait.until.clone()));
            }
        } else if !roster.last_round_is_ending() {
            match self.pods_for(spec, roster, &missing) {
                Ok(create) => self.made(create, &missing, roster, status, &mut making),
                Err(bad) => {
                    let trouble =
                        CreationBlocker::Trouble(condition::INVALID_TEMPLATE, bad.to_string());
                    making.obstacle = Some(trouble);
                }
            }
        }
        if let Some(CreationBlocker::Trouble(reason, message)) = &making.obstacle {
            making.notes.extend(self.trouble(reason, message));
        }
        making
    }

    /// The wait that is not over yet.
    fn too_early<'s>(&self, status: &'s GpuWorkloadStatus) -> Option<&'s BackOff> {
        let wait = status.back_off.as_ref()?;
        (lifecycle::is_waiting(wait, self.now) && !self.mended()).then_some(wait)
    }

    fn pods_for(
        &self,
        spec: &GpuWorkloadSpec,
        roster: &TaskTable<'_>,
        missing: &[u32],
    ) -> Result<Vec<NewPod>, BadTemplate> {
        let metadata = &self.workload.metadata;
        let workload = Identity {
            name: metadata.name.as_deref().unwrap_or_default(),
            namespace: metadata.namespace.as_deref().unwrap_or_default(),
            uid: metadata.uid.as_deref(),
        };
        let one = |task: &u32| {
            let attempt = roster.next_attempt(*task);
            let mut body = pod(workload, spec, *task, attempt, self.scheduler_name)?;
            remember(&mut body, roster.spent);
            Ok(NewPod { name: pod_name(workload.name, *task, attempt), body })
        };
        let batch = (BATCH_BYTES / spec.pod_template.bytes().max(1)).clamp(1, BATCH);
        missing.iter().take(batch).map(one).collect()
    }

    fn made(
        &self,
        create: Vec<NewPod>,
        missing: &[u32],
        roster: &TaskTable<'_>,
        status: &mut GpuWorkloadStatus,
        making: &mut PodCreation,
    ) {
        let again = status.back_off.as_ref().is_some_and(|back_off| back_off.count > 0);
        if self.old.phase.is_none() || self.old.back_off.is_none() {
            let message = format!("Made {}.", pods_in_words(missing.len()));
            making.notes.push(note(EventType::Normal, "Created", message));
        } else if again && self.outlook.rejected.is_none() {
            making.notes.extend(lifecycle::rescheduling(roster, missing));
        }
        if create.len() == missing.len() {
            status.back_off = Some(lifecycle::after_making(status.back_off.as_ref(), self.now));
        } else {
            let count = status.back_off.as_ref().map_or(0, |back_off| back_off.count);
            let until = lifecycle::whole_second(self.now);
            status.back_off = Some(BackOff { until, count });
            let soon = self.now.checked_add(SignedDuration::from_secs(1)).ok();
            making.wake = earliest(making.wake, soon);
        }
        making.create = create;
    }

    /// The workload was changed after its pods were refused: worth a try at once.
    fn mended(&self) -> bool {
        self.outlook.rejected.is_some()
            && self.old.observed_generation != self.workload.metadata.generation
    }
}

/// When the first pod that is being stopped is overdue.
fn stragglers(roster: &TaskTable<'_>) -> Option<Timestamp> {
    let ending = roster.seats.iter().filter_map(|seat| match seat {
        TaskSlot::Ending(until) if *until < Timestamp::MAX => Some(*until),
        _ => None,
    });
    ending.min()
}

fn empty_seats(roster: &TaskTable<'_>) -> Vec<u32> {
    let empty =
        |(task, seat): (u32, &TaskSlot<'_>)| matches!(seat, TaskSlot::Empty(_)).then_some(task);
    (0_u32..).zip(&roster.seats).filter_map(empty).collect()
}

/// Writes into a pod which round it belongs to.
fn remember(body: &mut Value, retries: u32) {
    let annotations = &mut body["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[names::POD_RETRIES] = retries.to_string().into();
}

fn earliest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}
