//! One look at a workload from beginning to end.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::condition::{self, News, Obstacle, Scribe};
use super::roster::{self, Roster, Seat};
use super::seat::{Assignment, assignment};
use super::{Finalizer, Identity, NewPod, Note, NoteKind, Outlook, Reconciled, lifecycle, pod};
use crate::crd::{GpuWorkloadSpec, GpuWorkloadStatus, WorkloadPhase};
use crate::names;
use crate::slim::{self, Pod};

/// The most pods that are made in one go.
const BATCH: usize = 500;

/// What is to be done for a workload now.
///
/// `pods` may contain pods of others: only those that the workload owns count. A pod in `create` that exists
/// already under the workload's ownership is as good as made; whatever else the API server says against one comes
/// back through [`Outlook::rejected`].
pub fn reconcile(
    workload: &slim::Workload,
    pods: &[&Pod],
    outlook: &Outlook,
    scheduler_name: &str,
    now: Timestamp,
) -> Reconciled {
    let uid = workload.metadata.uid.as_deref().unwrap_or_default();
    let pods = pods.iter().copied().filter(|pod| owned(pod, uid)).collect();
    let look = Look { workload, old: &workload.status, pods, outlook, scheduler_name, now };
    if workload.metadata.deletion_timestamp.is_some() {
        return look.clean_up();
    }
    let checked = match &workload.spec.0 {
        Err(message) => Err(format!("It cannot be read: {message}")),
        Ok(spec) => super::check(spec).map(|()| spec.as_ref()).map_err(|bad| bad.to_string()),
    };
    let over = matches!(look.old.phase, Some(WorkloadPhase::Succeeded | WorkloadPhase::Failed));
    match checked {
        Ok(spec) if over => look.after_the_end(spec),
        Err(_) if over => look.nothing(),
        Ok(spec) => look.carry_on(spec),
        Err(message) => look.invalid(&message),
    }
}

struct Look<'a> {
    workload: &'a slim::Workload,
    old: &'a GpuWorkloadStatus,
    pods: Vec<&'a Pod>,
    outlook: &'a Outlook,
    scheduler_name: &'a str,
    now: Timestamp,
}

/// What came of making pods.
#[derive(Default)]
struct Making {
    create: Vec<NewPod>,
    obstacle: Option<Obstacle>,
    notes: Vec<Note>,
    wake: Option<Timestamp>,
}

impl<'a> Look<'a> {
    /// All pods are deleted, and the workload may go when none is left.
    fn clean_up(&self) -> Reconciled {
        let mut done = self.nothing();
        done.delete
            .extend(self.pods.iter().filter_map(|pod| roster::delete(pod, "WorkloadDeleted")));
        let ours = self.has_finalizer() && self.pods.is_empty();
        done.finalizer = if ours { Finalizer::Remove } else { Finalizer::Keep };
        if !done.delete.is_empty() {
            let message = format!("Deleting {}.", pods_in_words(done.delete.len()));
            done.notes.push(note(NoteKind::Normal, "Stopping", message));
        }
        done
    }

    /// Finished is finished: only what holds something, or is of no use any more, goes.
    fn after_the_end(&self, spec: &GpuWorkloadSpec) -> Reconciled {
        let roster = Roster::new(&self.pods, spec, self.old, self.now);
        let succeeded = self.old.phase == Some(WorkloadPhase::Succeeded);
        Reconciled { delete: roster.remains(succeeded), ..self.nothing() }
    }

    /// Nothing is made of what cannot be understood; what runs goes on.
    fn invalid(&self, message: &str) -> Reconciled {
        let mut status = self.fresh();
        let reason = condition::INVALID_SPEC;
        let mut scribe = self.scribe(&mut status);
        scribe.settle(condition::SCHEDULABLE, News::new("False", reason, message));
        scribe.begin(condition::ASSIGNED, condition::assigned(&Assignment::default()));
        scribe.begin(condition::READY, News::new("False", "Pending", "It waits for its places."));
        status.phase.get_or_insert_default();
        status.message = message_of(&status, condition::SCHEDULABLE);
        let notes = self.trouble(reason, message).into_iter().collect();
        Reconciled { notes, ..self.done(status) }
    }

    fn carry_on(&self, spec: &GpuWorkloadSpec) -> Reconciled {
        let roster = Roster::new(&self.pods, spec, self.old, self.now);
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
        Reconciled {
            create: making.create,
            delete: roster.leftovers(),
            notes,
            wake: making.wake,
            ..self.done(status)
        }
    }

    /// Makes the pods that are missing, unless it is too early.
    fn make(
        &self,
        spec: &GpuWorkloadSpec,
        roster: &Roster<'_>,
        status: &mut GpuWorkloadStatus,
    ) -> Making {
        let mut making = Making { wake: self.stragglers(roster), ..Making::default() };
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
            Obstacle::Trouble(condition::POD_REJECTED, message)
        });
        if let Some(why) = rejected {
            making.notes.extend(self.trouble(condition::POD_REJECTED, why));
        }
        if let Some(back_off) = status.back_off.as_ref().filter(|_| !self.mended()) {
            let until = back_off.until.0;
            if self.now < until {
                // Right after pods were made they may simply not be seen yet.
                let told = back_off.count != 1 && making.obstacle.is_none();
                if told {
                    making.obstacle = Some(Obstacle::Delay(back_off.until.clone()));
                }
                making.wake = earliest(making.wake, Some(until));
                return making;
            }
        }
        match self.pods_for(spec, roster, &missing) {
            Ok(create) => self.made(create, &missing, roster, status, &mut making),
            Err(bad) => {
                let reason = condition::INVALID_TEMPLATE;
                making.notes.extend(self.trouble(reason, &bad.to_string()));
                making.obstacle = Some(Obstacle::Trouble(reason, bad.to_string()));
            }
        }
        making
    }

    fn pods_for(
        &self,
        spec: &GpuWorkloadSpec,
        roster: &Roster<'_>,
        missing: &[u32],
    ) -> Result<Vec<NewPod>, super::BadTemplate> {
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
            Ok(NewPod { name: super::pod_name(workload.name, *task, attempt), body })
        };
        missing.iter().take(BATCH).map(one).collect()
    }

    fn made(
        &self,
        create: Vec<NewPod>,
        missing: &[u32],
        roster: &Roster<'_>,
        status: &mut GpuWorkloadStatus,
        making: &mut Making,
    ) {
        let again = status.back_off.as_ref().is_some_and(|back_off| back_off.count > 0);
        if self.old.phase.is_none() || self.old.back_off.is_none() {
            let message = format!("Made {}.", pods_in_words(missing.len()));
            making.notes.push(note(NoteKind::Normal, "Created", message));
        } else if again && self.outlook.rejected.is_none() {
            making.notes.extend(lifecycle::rescheduling(roster, missing));
        }
        if create.len() == missing.len() {
            status.back_off = Some(lifecycle::after_making(status.back_off.as_ref(), self.now));
        } else {
            let soon = self.now.checked_add(SignedDuration::from_secs(1)).ok();
            making.wake = earliest(making.wake, soon);
        }
        making.create = create;
    }

    /// Phase, conditions, places and the sentence.
    fn describe(
        &self,
        roster: &Roster<'_>,
        places: &Assignment,
        obstacle: Option<&Obstacle>,
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

    fn finish(&self, spec: &GpuWorkloadSpec, roster: &Roster<'_>) -> Reconciled {
        let mut status = self.fresh();
        let tasks = roster.seats.len();
        let (phase, word, kind, message) = match roster.cause.filter(|_| roster.failed) {
            Some(cause) => {
                let message = lifecycle::failure(&cause, tasks, roster.spent);
                (WorkloadPhase::Failed, "Failed", NoteKind::Warning, message)
            }
            None => {
                let message = lifecycle::success(tasks);
                (WorkloadPhase::Succeeded, "Succeeded", NoteKind::Normal, message)
            }
        };
        status.phase = Some(phase);
        status.retries = roster.spent;
        status.back_off = None;
        status.completed_tasks = None;
        status.start_time =
            self.old.start_time.clone().or_else(|| lifecycle::start(roster, self.now));
        status.completion_time = Some(lifecycle::completion(roster, self.now));
        let needs_gpus = spec.gpu_requirements.gpu_count > 0;
        let places = roster.last_places(|seats| assignment(seats, self.outlook, needs_gpus));
        if status.assigned_node.is_none() {
            status.assigned_node = places.nodes.clone();
            status.assigned_gpu = places.gpus.clone();
        }
        let had_gpus = condition::find(&self.old.conditions, condition::ASSIGNED)
            .is_some_and(|condition| condition.status == "True");
        let mut scribe = self.scribe(&mut status);
        scribe.settle(
            condition::SCHEDULABLE,
            News::new("True", "Scheduled", "Every task had a place."),
        );
        if !had_gpus {
            scribe.settle(condition::ASSIGNED, condition::assigned(&places));
        }
        scribe.settle(condition::READY, News::new("False", word, message.clone()));
        status.message = Some(message.clone());
        let delete = roster.remains(phase == WorkloadPhase::Succeeded);
        Reconciled { delete, notes: vec![note(kind, word, message)], ..self.done(status) }
    }

    /// The old status, speaking of the workload as it is now.
    fn fresh(&self) -> GpuWorkloadStatus {
        let observed_generation = self.workload.metadata.generation;
        GpuWorkloadStatus { observed_generation, ..self.old.clone() }
    }

    fn scribe<'s>(&self, status: &'s mut GpuWorkloadStatus) -> Scribe<'s> {
        Scribe {
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
    fn trouble(&self, reason: &'static str, message: &str) -> Option<Note> {
        let told = condition::says(&self.old.conditions, condition::SCHEDULABLE, reason)
            && self.old.observed_generation == self.workload.metadata.generation;
        (!told).then(|| note(NoteKind::Warning, reason, super::verdict::clip(message, 900)))
    }

    /// The workload was changed after its pods were refused: worth a try at once.
    fn mended(&self) -> bool {
        self.outlook.rejected.is_some()
            && self.old.observed_generation != self.workload.metadata.generation
    }

    /// When the first pod that is being stopped is overdue.
    fn stragglers(&self, roster: &Roster<'_>) -> Option<Timestamp> {
        let ending = roster.seats.iter().filter_map(|seat| match seat {
            Seat::Ending(until) if *until < Timestamp::MAX => Some(*until),
            _ => None,
        });
        ending.min()
    }
}

fn empty_seats(roster: &Roster<'_>) -> Vec<u32> {
    let empty = |(task, seat): (u32, &Seat<'_>)| matches!(seat, Seat::Empty(_)).then_some(task);
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

fn message_of(status: &GpuWorkloadStatus, kind: &str) -> Option<String> {
    condition::find(&status.conditions, kind).map(|condition| condition.message.clone())
}

fn note(kind: NoteKind, reason: &'static str, message: String) -> Note {
    Note { kind, reason, message }
}

fn pods_in_words(count: usize) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}

fn earliest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

fn owned(pod: &Pod, uid: &str) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == uid)
}
