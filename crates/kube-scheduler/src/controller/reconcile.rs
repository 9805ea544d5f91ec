//! One look at a workload from beginning to end.

use agentaflow_kube_core::crd::{GpuWorkloadSpec, GpuWorkloadStatus, WorkloadPhase};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{self, Pod};
use jiff::Timestamp;

use super::assignment::{Assignment, assignment};
use super::condition::{self, ConditionUpdate, ConditionWriter, CreationBlocker};
use super::task_table::{self, TaskTable};
use super::{DeletePod, EventType, Finalizer, Reconciled, SchedulerView, WorkloadEvent, lifecycle};

/// What is to be done for a workload now.
///
/// `pods` may contain pods of others: only those that the workload owns count. A pod in `create` that exists
/// already under the workload's ownership is as good as made; whatever else the API server says against one comes
/// back through [`SchedulerView::rejected`].
pub fn reconcile(
    workload: &slim::Workload,
    pods: &[&Pod],
    outlook: &SchedulerView,
    scheduler_name: &str,
    now: Timestamp,
) -> Reconciled {
    let uid = workload.metadata.uid.as_deref().unwrap_or_default();
    let pods = pods.iter().copied().filter(|pod| owned(pod, uid)).collect();
    let look = Reconciler { workload, old: &workload.status, pods, outlook, scheduler_name, now };
    if workload.metadata.deletion_timestamp.is_some() {
        return look.clean_up();
    }
    let mut done = look.decide();
    done.delete.retain(|pod| !look.is_asked_to_go(pod));
    done
}

/// Everything that a decision goes by.
pub(super) struct Reconciler<'a> {
    pub(super) workload: &'a slim::Workload,
    pub(super) old: &'a GpuWorkloadStatus,
    pub(super) pods: Vec<&'a Pod>,
    pub(super) outlook: &'a SchedulerView,
    pub(super) scheduler_name: &'a str,
    pub(super) now: Timestamp,
}

impl Reconciler<'_> {
    fn decide(&self) -> Reconciled {
        let checked = match &self.workload.spec.0 {
            Err(message) => Err(format!("It cannot be read: {message}")),
            Ok(spec) => agentaflow_kube_core::gpu_workload::check(spec)
                .map(|()| spec.as_ref())
                .map_err(|bad| bad.to_string()),
        };
        let over = matches!(self.old.phase, Some(WorkloadPhase::Succeeded | WorkloadPhase::Failed));
        match checked {
            Ok(spec) if over => self.after_the_end(spec),
            Err(_) if over => self.nothing(),
            Ok(spec) if self.is_completed_by_hand() => self.complete(spec),
            Ok(spec) => self.carry_on(spec),
            Err(message) => self.invalid(&message),
        }
    }

    /// Whether the deletion of a pod was asked for, and need not be again.
    fn is_asked_to_go(&self, pod: &DeletePod) -> bool {
        self.outlook.deleting.contains(&pod.name)
    }

    /// All pods are deleted, and the workload may go when none is left.
    fn clean_up(&self) -> Reconciled {
        let mut done = self.nothing();
        let pods = self.pods.iter().filter_map(|pod| task_table::delete(pod, "WorkloadDeleted"));
        done.delete.extend(pods.filter(|pod| !self.is_asked_to_go(pod)));
        let ours = self.has_finalizer() && self.pods.is_empty();
        done.finalizer = if ours { Finalizer::Remove } else { Finalizer::Keep };
        if !done.delete.is_empty() {
            let message = format!("Deleting {}.", pods_in_words(done.delete.len()));
            done.notes.push(note(EventType::Normal, "Stopping", message));
        }
        done
    }

    /// Finished is finished: only what holds something, or is of no use any more, goes.
    fn after_the_end(&self, spec: &GpuWorkloadSpec) -> Reconciled {
        let roster = TaskTable::new(&self.pods, spec, self.old, self.now);
        let succeeded = self.old.phase == Some(WorkloadPhase::Succeeded);
        Reconciled { delete: roster.remains(succeeded), ..self.nothing() }
    }

    /// Nothing is made of what cannot be understood; what runs goes on.
    fn invalid(&self, message: &str) -> Reconciled {
        let mut status = self.fresh();
        let reason = condition::INVALID_SPEC;
        let mut scribe = self.scribe(&mut status);
        scribe.settle(condition::SCHEDULABLE, ConditionUpdate::new("False", reason, message));
        scribe.begin(condition::ASSIGNED, condition::assigned(&Assignment::default()));
        scribe.begin(
            condition::READY,
            ConditionUpdate::new("False", "Pending", "It waits for its places."),
        );
        status.phase.get_or_insert_default();
        status.message = message_of(&status, condition::SCHEDULABLE);
        let notes = self.trouble(reason, message).into_iter().collect();
        let mut done = Reconciled { notes, ..self.done(status) };
        // It has nothing to clean up, and the API server may let nobody take a finalizer off what its schema refuses.
        if self.pods.is_empty() {
            done.finalizer = Finalizer::Keep;
        }
        done
    }

    fn carry_on(&self, spec: &GpuWorkloadSpec) -> Reconciled {
        let roster = TaskTable::new(&self.pods, spec, self.old, self.now);
        if roster.failed || roster.succeeded() {
            return self.finish(spec, &roster);
        }
        let mut status = self.fresh();
        status.retries = roster.spent;
        status.completed_tasks = roster.completed();
        let making = self.make(spec, &roster, &mut status);
        let places = assignment(&roster.seats, self.outlook, spec.gpu_requirements.gpu_count > 0);
        self.describe(&roster, &places, making.obstacle.as_ref(), &mut status);
        let mut notes = making.notes;
        let phase = status.phase.unwrap_or_default();
        notes.extend(lifecycle::progress(self.old.phase, phase, places.nodes.as_deref()));
        let mut delete = roster.leftovers();
        // Once for each change of the spec: others may have given the pods another class than we asked for.
        if self.old.observed_generation != self.workload.metadata.generation {
            delete.extend(roster.of_other_priority(spec));
        }
        Reconciled { create: making.create, delete, notes, wake: making.wake, ..self.done(status) }
    }

    /// Phase, conditions, places and the sentence.
    fn describe(
        &self,
        roster: &TaskTable<'_>,
        places: &Assignment,
        obstacle: Option<&CreationBlocker>,
        status: &mut GpuWorkloadStatus,
    ) {
        let seats = &roster.seats;
        status.phase = Some(if condition::running(seats) {
            WorkloadPhase::Running
        } else if condition::placed(seats) {
            WorkloadPhase::Scheduled
        } else {
            WorkloadPhase::Pending
        });
        status.start_time =
            self.old.start_time.clone().or_else(|| lifecycle::start(roster, self.now));
        status.assigned_node.clone_from(&places.nodes);
        status.assigned_gpu.clone_from(&places.gpus);
        status.price_per_hour = places.price_per_hour();
        let retrying = roster.spent > 0 && !roster.round_has_begun();
        let news =
            condition::schedulable(&self.old.conditions, seats, places, self.outlook, obstacle);
        let mut scribe = self.scribe(status);
        if let Some(news) = news {
            scribe.settle(condition::SCHEDULABLE, news);
        }
        scribe.settle(condition::ASSIGNED, condition::assigned(places));
        scribe.settle(condition::READY, condition::ready(seats, retrying));
        let told = if condition::placed(seats) { condition::READY } else { condition::SCHEDULABLE };
        status.message = message_of(status, told);
    }

    /// Somebody says that it is done.
    fn is_completed_by_hand(&self) -> bool {
        let annotations = self.workload.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(names::COMPLETE)).is_some_and(|said| said == "true")
    }

    /// It ends as if it were done; what still runs is stopped.
    fn complete(&self, spec: &GpuWorkloadSpec) -> Reconciled {
        let roster = TaskTable::new(&self.pods, spec, self.old, self.now);
        if roster.failed || roster.succeeded() {
            return self.finish(spec, &roster);
        }
        let placed = condition::placed(&roster.seats);
        let ending = note(EventType::Normal, "Completed", "It was completed by hand.".to_owned());
        let mut done = self.end(spec, &roster, WorkloadPhase::Succeeded, ending);
        if let Some(status) = &mut done.status {
            status.completion_time = Some(lifecycle::whole_second(self.now));
            if !placed {
                let words = "It was completed before every task had a place.";
                let news = ConditionUpdate::new("False", "Completed", words);
                self.scribe(status).settle(condition::SCHEDULABLE, news);
            }
        }
        done
    }

    /// It is over, well or not.
    fn finish(&self, spec: &GpuWorkloadSpec, roster: &TaskTable<'_>) -> Reconciled {
        let tasks = roster.seats.len();
        let failed = roster.cause.filter(|_| roster.failed);
        let (phase, ending) = if let Some(cause) = failed {
            let message = lifecycle::failure(&cause, tasks, roster.spent);
            (WorkloadPhase::Failed, note(EventType::Warning, "Failed", message))
        } else {
            let message = lifecycle::success(tasks);
            (WorkloadPhase::Succeeded, note(EventType::Normal, "Succeeded", message))
        };
        self.end(spec, roster, phase, ending)
    }

    /// The last status.
    fn end(
        &self,
        spec: &GpuWorkloadSpec,
        roster: &TaskTable<'_>,
        phase: WorkloadPhase,
        ending: WorkloadEvent,
    ) -> Reconciled {
        let mut status = GpuWorkloadStatus {
            phase: Some(phase),
            retries: roster.spent,
            back_off: None,
            completed_tasks: None,
            completion_time: Some(lifecycle::completion(roster, self.now)),
            message: Some(ending.message.clone()),
            ..self.fresh()
        };
        status.start_time = status.start_time.or_else(|| lifecycle::start(roster, self.now));
        self.close_conditions(spec, roster, &ending, &mut status);
        let delete = roster.remains(phase == WorkloadPhase::Succeeded);
        Reconciled { delete, notes: vec![ending], ..self.done(status) }
    }

    /// The last conditions. What was known of its GPUs stays on record: kubelets forget it.
    fn close_conditions(
        &self,
        spec: &GpuWorkloadSpec,
        roster: &TaskTable<'_>,
        ending: &WorkloadEvent,
        status: &mut GpuWorkloadStatus,
    ) {
        let needs_gpus = spec.gpu_requirements.gpu_count > 0;
        let places = roster.last_places(|seats| assignment(seats, self.outlook, needs_gpus));
        let had_gpus = condition::find(&self.old.conditions, condition::ASSIGNED)
            .is_some_and(|condition| condition.status == "True");
        if !had_gpus {
            status.assigned_node.clone_from(&places.nodes);
            status.assigned_gpu.clone_from(&places.gpus);
            status.price_per_hour = places.price_per_hour();
        }
        let mut scribe = self.scribe(status);
        let news = ConditionUpdate::new("True", "Scheduled", "Every task had a place.");
        scribe.settle(condition::SCHEDULABLE, news);
        if !had_gpus {
            scribe.settle(condition::ASSIGNED, condition::assigned(&places));
        }
        scribe.settle(
            condition::READY,
            ConditionUpdate::new("False", ending.reason, ending.message.clone()),
        );
    }

    /// The old status, speaking of the workload as it is now.
    fn fresh(&self) -> GpuWorkloadStatus {
        let observed_generation = self.workload.metadata.generation;
        GpuWorkloadStatus { observed_generation, ..self.old.clone() }
    }

    fn scribe<'s>(&self, status: &'s mut GpuWorkloadStatus) -> ConditionWriter<'s> {
        ConditionWriter {
            conditions: &mut status.conditions,
            generation: self.workload.metadata.generation,
            at: lifecycle::whole_second(self.now),
        }
    }

    /// Nothing but the finalizer.
    fn nothing(&self) -> Reconciled {
        let finalizer = if self.has_finalizer() { Finalizer::Keep } else { Finalizer::Add };
        Reconciled {
            create: Vec::new(),
            delete: Vec::new(),
            status: None,
            finalizer,
            notes: Vec::new(),
            wake: None,
        }
    }

    fn done(&self, status: GpuWorkloadStatus) -> Reconciled {
        Reconciled { status: (status != *self.old).then_some(status), ..self.nothing() }
    }

    fn has_finalizer(&self) -> bool {
        self.workload.metadata.finalizers.iter().flatten().any(|name| name == names::FINALIZER)
    }

    /// An Event about trouble, the first time only.
    pub(super) fn trouble(&self, reason: &'static str, message: &str) -> Option<WorkloadEvent> {
        let told = condition::says(&self.old.conditions, condition::SCHEDULABLE, reason)
            && self.old.observed_generation == self.workload.metadata.generation;
        (!told).then(|| {
            note(EventType::Warning, reason, agentaflow_kube_core::pod_end::clip(message, 900))
        })
    }
}

fn message_of(status: &GpuWorkloadStatus, kind: &str) -> Option<String> {
    condition::find(&status.conditions, kind).map(|condition| condition.message.clone())
}

pub(super) fn note(kind: EventType, reason: &'static str, message: String) -> WorkloadEvent {
    WorkloadEvent { kind, reason, message }
}

pub(super) fn pods_in_words(count: usize) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}

fn owned(pod: &Pod, uid: &str) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == uid)
}
