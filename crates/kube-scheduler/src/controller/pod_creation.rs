//! Creation of missing pods, after backoffs and under deterministic names.

use agentaflow_kube_core::crd::{BackOff, GpuWorkloadSpec, GpuWorkloadStatus};
use agentaflow_kube_core::gpu_workload::{BadTemplate, pod, pod_name};
use agentaflow_kube_core::names;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::condition::{self, CreationBlocker};
use super::reconcile::{Reconciler, count_pods, event};
use super::task_table::{TaskSlot, TaskTable};
use super::{EventType, NewPod, QuotaTurn, WorkloadEvent, lifecycle};

/// Pods created in one reconciliation.
const BATCH: usize = 500;

/// Bytes of pods created in one reconciliation; all of them are in memory at once.
const BATCH_BYTES: usize = 4 << 20;

#[derive(Default)]
pub(super) struct PodCreation {
    pub(super) create: Vec<NewPod>,
    pub(super) blocker: Option<CreationBlocker>,
    pub(super) events: Vec<WorkloadEvent>,
    /// Tasks lack pods.
    pub(super) incomplete: bool,
    /// Pods without a node are deleted: another gang gets its pods first.
    pub(super) gives_back: bool,
    pub(super) wake: Option<Timestamp>,
}

impl Reconciler<'_> {
    /// Creates missing pods, unless a backoff is running.
    pub(super) fn create_missing_pods(
        &self,
        spec: &GpuWorkloadSpec,
        table: &TaskTable<'_>,
        status: &mut GpuWorkloadStatus,
    ) -> PodCreation {
        let mut creation = PodCreation { wake: first_overdue(table), ..PodCreation::default() };
        if table.spent > self.old.retries && !table.round_has_begun() {
            let wait = lifecycle::after_failure(table.spent - 1, self.now);
            creation.events.extend(lifecycle::retrying(table, spec.retries, &wait));
            status.back_off = Some(wait);
        }
        let missing: Vec<u32> = empty_slots(table);
        if missing.is_empty() {
            return creation;
        }
        if self.predecessors > 0 {
            creation.blocker = Some(CreationBlocker::Predecessors(self.predecessors));
            return creation;
        }
        creation.incomplete = true;
        let rejected = self.view.rejected.as_deref();
        creation.blocker = rejected.map(|why| {
            let message = format!("The API server refused a pod: {why}");
            CreationBlocker::Rejected(condition::POD_REJECTED, message)
        });
        if self.waits_for_quota(&mut creation) {
            // The reason is in the blocker.
        } else if let Some(wait) = self.too_early(status) {
            creation.wake = earliest(creation.wake, Some(wait.until.0));
            // The watch may not have reported pods that were created just now.
            if wait.count != 1 && creation.blocker.is_none() {
                creation.blocker = Some(CreationBlocker::Delay(wait.until.clone()));
            }
        } else if !table.last_round_is_ending() {
            match self.pods_for(spec, table, &missing) {
                Ok(create) => self.made(create, &missing, table, status, &mut creation),
                Err(bad) => {
                    let warning =
                        CreationBlocker::Rejected(condition::INVALID_TEMPLATE, bad.to_string());
                    creation.blocker = Some(warning);
                }
            }
        }
        if let Some(CreationBlocker::Rejected(reason, message)) = &creation.blocker {
            creation.events.extend(self.warning(reason, message));
        }
        creation
    }

    /// Returns true if the gang creates no pods now because of its turn.
    fn waits_for_quota(&self, creation: &mut PodCreation) -> bool {
        let blocked = |message: String| {
            Some(CreationBlocker::Rejected(condition::WAITING_FOR_QUOTA, message))
        };
        match &self.view.turn {
            QuotaTurn::Free => return false,
            QuotaTurn::Own { ready, at } => {
                creation.wake = earliest(creation.wake, Some(*at).filter(|at| *at > self.now));
                return !ready;
            }
            QuotaTurn::Wait { holder } => {
                creation.blocker = blocked(format!(
                    "Waiting for {holder} to get its pods: the API server refused pods in this namespace"
                ));
            }
            QuotaTurn::BackOff { until } => {
                creation.wake = earliest(creation.wake, Some(*until));
                let why = self.view.rejected.as_deref().unwrap_or("too few pods were accepted");
                creation.blocker = blocked(format!("Creating pods again after {until}: {why}"));
            }
        }
        creation.gives_back = true;
        true
    }

    /// The backoff that is running.
    fn too_early<'s>(&self, status: &'s GpuWorkloadStatus) -> Option<&'s BackOff> {
        if self.view.turn != QuotaTurn::Free {
            return None;
        }
        let wait = status.back_off.as_ref()?;
        (lifecycle::is_backing_off(wait, self.now) && !self.changed_after_rejection())
            .then_some(wait)
    }

    fn pods_for(
        &self,
        spec: &GpuWorkloadSpec,
        table: &TaskTable<'_>,
        missing: &[u32],
    ) -> Result<Vec<NewPod>, BadTemplate> {
        let workload = self.identity();
        let one = |task: &u32| {
            let attempt = table.next_attempt(*task);
            let mut body = pod(workload, spec, *task, attempt, self.scheduler_name)?;
            annotate(&mut body, table.spent, spec.priority);
            Ok(NewPod { name: pod_name(workload.name, *task, attempt), body })
        };
        let batch = (BATCH_BYTES / spec.pod_template.bytes().max(1)).clamp(1, BATCH);
        missing.iter().take(batch).map(one).collect()
    }

    fn made(
        &self,
        create: Vec<NewPod>,
        missing: &[u32],
        table: &TaskTable<'_>,
        status: &mut GpuWorkloadStatus,
        creation: &mut PodCreation,
    ) {
        let again = status.back_off.as_ref().is_some_and(|back_off| back_off.count > 0);
        if self.old.phase.is_none() || self.old.back_off.is_none() {
            let message = format!("Created {}.", count_pods(missing.len()));
            creation.events.push(event(EventType::Normal, "Created", message));
        } else if again && self.view.rejected.is_none() && self.view.turn == QuotaTurn::Free {
            creation.events.extend(lifecycle::rescheduling(table, missing));
        }
        if create.len() == missing.len() {
            status.back_off = Some(lifecycle::after_creation(status.back_off.as_ref(), self.now));
        } else {
            let count = status.back_off.as_ref().map_or(0, |back_off| back_off.count);
            let until = lifecycle::whole_second(self.now);
            status.back_off = Some(BackOff { until, count });
            let soon = self.now.checked_add(SignedDuration::from_secs(1)).ok();
            creation.wake = earliest(creation.wake, soon);
        }
        creation.create = create;
    }

    /// Returns true if the workload changed after the API server rejected its pods: they are then created without a delay.
    fn changed_after_rejection(&self) -> bool {
        self.view.rejected.is_some()
            && self.old.observed_generation != self.workload.metadata.generation
    }
}

/// Time at which the first terminating pod is overdue.
fn first_overdue(table: &TaskTable<'_>) -> Option<Timestamp> {
    let ending = table.slots.iter().filter_map(|slot| match slot {
        TaskSlot::Ending(until) if *until < Timestamp::MAX => Some(*until),
        _ => None,
    });
    ending.min()
}

fn empty_slots(table: &TaskTable<'_>) -> Vec<u32> {
    let empty =
        |(task, slot): (u32, &TaskSlot<'_>)| matches!(slot, TaskSlot::Empty(_)).then_some(task);
    (0_u32..).zip(&table.slots).filter_map(empty).collect()
}

/// Annotates a pod with the retries before it and the priority of its workload.
fn annotate(body: &mut Value, retries: u32, priority: u8) {
    let annotations = &mut body["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[names::POD_RETRIES] = retries.to_string().into();
    annotations[names::POD_PRIORITY] = priority.to_string().into();
}

fn earliest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}
