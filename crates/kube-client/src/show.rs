//! Workloads and pods as jobs of the REST API.

use agentaflow_api::end::EndReason;
use agentaflow_api::job::{Job, JobSpec, JobStatus, TaskPlace, TaskState};
use agentaflow_api::pending::{PendingCode, PendingReason};
use agentaflow_api::{Dollars, Stamp};
use agentaflow_kube_core::crd::{GpuWorkloadSpec, WorkloadPhase};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{Pod, Workload};
use agentaflow_kube_core::translate::micro_dollars;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde_json::Value;
use std::borrow::Borrow;
use std::collections::BTreeMap;

use super::ending::{self, Ending};
use super::named::{Kind, Named};
use super::template;

const HOUR_MS: i128 = 3_600_000;

/// Options of the conversion to API jobs: with or without namespace, and the current time.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) everywhere: bool,
    pub(super) now: Stamp,
}

impl View {
    pub(super) fn workload<P: Borrow<Pod>>(&self, workload: &Workload, pods: &[P]) -> Job {
        let status = &workload.status;
        let phase = status.phase.unwrap_or_default();
        let named = named(&workload.metadata, Kind::Workload);
        let current = current(pods);
        let tasks = tasks(&current, status.assigned_node.as_deref(), phase);
        let ending = current.values().map(|pod| ending::of(pod));
        let ending = ending.into_iter().find(|end| end.reason.is_some()).unwrap_or_default();
        let over = matches!(phase, WorkloadPhase::Succeeded | WorkloadPhase::Failed);
        let placed = phase != WorkloadPhase::Pending;
        let waits = unschedulable(&status.conditions, phase);
        let mut job = Job {
            spec: workload.spec.0.as_ref().map(|spec| of_spec(spec)).unwrap_or_default(),
            status: of_phase(phase),
            error_message: failure(workload, phase, &ending),
            assigned_gpu_id: status.assigned_gpu.clone().filter(|_| placed).map(Into::into),
            k8s_pod_name: current.values().next().and_then(|pod| pod.metadata.name.clone()),
            scheduled_at: condition(&status.conditions, "Assigned")
                .filter(|assigned| assigned.status == "True")
                .map(|assigned| stamp(&assigned.last_transition_time)),
            started_at: status.start_time.as_ref().map(stamp),
            completed_at: status.completion_time.as_ref().map(stamp),
            exit_code: exit_code(phase, &ending),
            end_reason: end_reason(phase, &ending),
            attempt: current.values().map(|pod| attempt(pod) + 1).max().unwrap_or(0),
            retries_used: status.retries,
            wait_reason: waits.as_ref().map(|waits| waits.message.clone()),
            pending_reason: waits.map(pending_reason),
            price_per_hour: status.price_per_hour.as_deref().and_then(price),
            tasks: if placed { tasks } else { Vec::new() },
            ..self.begin(&named, &workload.metadata)
        };
        job.spec.job_name = Some(named.name);
        let changes = status.conditions.iter().map(|one| stamp(&one.last_transition_time));
        job.updated_at = changes.chain(job.completed_at).fold(job.updated_at, Stamp::max);
        self.count(&mut job, over);
        job
    }

    /// Job of a pod that belongs to no workload; `spec` is the raw pod spec.
    pub(super) fn pod(&self, pod: &Pod, spec: &Value) -> Job {
        let named = named(&pod.metadata, Kind::Pod);
        let node = pod.spec.node_name.as_deref().filter(|node| !node.is_empty());
        let phase = match (pod.status.phase.as_deref().unwrap_or_default(), node) {
            ("Succeeded", _) => WorkloadPhase::Succeeded,
            ("Failed", _) => WorkloadPhase::Failed,
            ("Running", _) => WorkloadPhase::Running,
            (_, Some(_)) => WorkloadPhase::Scheduled,
            (_, None) => WorkloadPhase::Pending,
        };
        let ending = ending::of(pod);
        let over = matches!(phase, WorkloadPhase::Succeeded | WorkloadPhase::Failed);
        let unplaced = pod.status.conditions.iter().flatten().find(|one| {
            one.kind == "PodScheduled" && one.status == "False" && phase == WorkloadPhase::Pending
        });
        let annotation = |name| pod.metadata.annotations.as_ref().and_then(|all| all.get(name));
        let current = BTreeMap::from([(0, pod)]);
        let mut job = Job {
            spec: of_pod(spec, pod),
            status: of_phase(phase),
            error_message: ending.message.clone(),
            assigned_gpu_id: annotation(names::POD_ASSIGNED_GPU).cloned().map(Into::into),
            k8s_pod_name: pod.metadata.name.clone(),
            started_at: pod.status.start_time.as_ref().map(stamp),
            completed_at: ended(pod).filter(|_| over),
            exit_code: exit_code(phase, &ending),
            end_reason: end_reason(phase, &ending),
            attempt: u32::from(node.is_some()),
            wait_reason: unplaced.and_then(|one| one.message.clone()),
            price_per_hour: annotation(names::POD_PRICE).and_then(|text| price(text)),
            tasks: tasks(&current, node, phase),
            ..self.begin(&named, &pod.metadata)
        };
        job.spec.job_name = Some(named.name);
        job.updated_at = job.started_at.max(job.completed_at).unwrap_or(job.updated_at);
        self.count(&mut job, over);
        job
    }

    /// Job for an object of a different kind, of which only the name is known.
    pub(super) fn other(&self, kind: &str, metadata: &ObjectMeta) -> Job {
        let named = named(metadata, Kind::Workload);
        let space = if self.everywhere { format!("{}/", named.namespace) } else { String::new() };
        Job {
            k8s_job_name: Some(format!("{space}{}/{}", kind.to_lowercase(), named.name)),
            spec: JobSpec { job_name: Some(named.name.clone()), ..JobSpec::default() },
            ..self.begin(&named, metadata)
        }
    }

    fn begin(&self, named: &Named, metadata: &ObjectMeta) -> Job {
        let created = metadata.creation_timestamp.as_ref().map_or(self.now, stamp);
        Job {
            k8s_job_name: Some(named.handle(self.everywhere)),
            k8s_namespace: Some(named.namespace.clone()),
            created_at: created,
            updated_at: created,
            cancel_requested: metadata.deletion_timestamp.is_some(),
            ..Job::default()
        }
    }

    /// Sets run time and cost.
    fn count(&self, job: &mut Job, over: bool) {
        let until = if over { job.completed_at } else { Some(self.now) };
        let ran = job.started_at.zip(until);
        let ran = ran.map(|(from, until)| until.0.saturating_sub(from.0).max(0));
        job.duration_seconds = ran.map(|ms| ms as f64 / 1000.0);
        if let (Some(price), Some(ms)) = (job.price_per_hour, ran) {
            job.cost = cost(price, ms);
        }
    }
}

/// Cost of a duration, rounded half to even.
fn cost(price: Dollars, milliseconds: i64) -> Dollars {
    let exact = i128::from(price.0) * i128::from(milliseconds);
    let (whole, rest) = (exact.div_euclid(HOUR_MS), exact.rem_euclid(HOUR_MS));
    let up = rest * 2 > HOUR_MS || (rest * 2 == HOUR_MS && whole % 2 == 1);
    Dollars(i64::try_from(whole + i128::from(up)).unwrap_or(i64::MAX))
}

pub(super) fn current<P: Borrow<Pod>>(pods: &[P]) -> BTreeMap<u32, &Pod> {
    let mut newest: BTreeMap<u32, &Pod> = BTreeMap::new();
    for pod in pods.iter().map(Borrow::borrow) {
        let held = newest.entry(number(pod, names::POD_TASK)).or_insert(pod);
        if attempt(pod) >= attempt(held) {
            *held = pod;
        }
    }
    newest
}

fn attempt(pod: &Pod) -> u32 {
    number(pod, names::POD_ATTEMPT).min(u32::MAX - 1)
}

fn number(pod: &Pod, label: &str) -> u32 {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|all| all.get(label)).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn named(metadata: &ObjectMeta, kind: Kind) -> Named {
    Named {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        kind,
        name: metadata.name.clone().unwrap_or_default(),
    }
}

/// Nodes and pods of the tasks; only nodes if the pods are gone.
fn tasks(pods: &BTreeMap<u32, &Pod>, nodes: Option<&str>, phase: WorkloadPhase) -> Vec<TaskPlace> {
    if pods.is_empty() {
        let nodes = nodes.unwrap_or_default().split(',').filter(|node| !node.is_empty());
        let place = |(task, node): (u32, &str)| TaskPlace {
            task,
            node_id: node.to_owned(),
            node_name: node.to_owned(),
            state: if phase == WorkloadPhase::Running {
                TaskState::Running
            } else {
                TaskState::Ended
            },
            ..TaskPlace::default()
        };
        return (0..).zip(nodes).map(place).collect();
    }
    let placed = pods.iter().filter_map(|(task, pod)| {
        let node = pod.spec.node_name.clone().filter(|node| !node.is_empty())?;
        let state = match pod.status.phase.as_deref() {
            Some("Running") => TaskState::Running,
            Some("Succeeded" | "Failed") => TaskState::Ended,
            _ => TaskState::Starting,
        };
        let gpus = gpus(pod);
        let exit_code = ending::of(pod).exit_code;
        Some(TaskPlace {
            task: *task,
            node_id: node.clone(),
            node_name: node,
            gpus,
            state,
            exit_code,
        })
    });
    placed.collect()
}

/// GPUs of a pod: assigned by the kubelet, otherwise chosen by the scheduler.
pub(super) fn gpus(pod: &Pod) -> Vec<String> {
    let annotations = pod.metadata.annotations.as_ref();
    let message = annotations
        .and_then(|all| all.get(names::POD_DEVICES).or_else(|| all.get(names::POD_ASSIGNED_GPU)));
    let listed = message.map(String::as_str).unwrap_or_default().split(',').map(str::trim);
    let listed = listed.filter(|gpu| !gpu.is_empty());
    listed.map(|gpu| gpu.rsplit_once('/').map_or(gpu, |(_, id)| id).to_owned()).collect()
}

fn of_phase(phase: WorkloadPhase) -> JobStatus {
    match phase {
        WorkloadPhase::Pending => JobStatus::Pending,
        WorkloadPhase::Scheduled => JobStatus::Scheduled,
        WorkloadPhase::Running => JobStatus::Running,
        WorkloadPhase::Succeeded => JobStatus::Completed,
        WorkloadPhase::Failed => JobStatus::Failed,
    }
}

fn failure(workload: &Workload, phase: WorkloadPhase, ending: &Ending) -> Option<String> {
    match phase {
        WorkloadPhase::Failed => workload.status.message.clone().or_else(|| ending.message.clone()),
        WorkloadPhase::Succeeded => None,
        _ => ending.message.clone(),
    }
}

fn exit_code(phase: WorkloadPhase, ending: &Ending) -> Option<i32> {
    match phase {
        WorkloadPhase::Succeeded => Some(0),
        WorkloadPhase::Failed => ending.exit_code,
        _ => None,
    }
}

fn end_reason(phase: WorkloadPhase, ending: &Ending) -> Option<EndReason> {
    match phase {
        WorkloadPhase::Succeeded => Some(EndReason::Exited),
        WorkloadPhase::Failed => ending.reason,
        _ => None,
    }
}

/// Condition with the pending reason of a workload.
fn unschedulable(conditions: &[Condition], phase: WorkloadPhase) -> Option<&Condition> {
    let waits = condition(conditions, "Schedulable")?;
    let text =
        phase == WorkloadPhase::Pending && waits.status != "True" && !waits.message.is_empty();
    text.then_some(waits)
}

fn pending_reason(condition: &Condition) -> PendingReason {
    PendingReason::Reported {
        reason: PendingCode::from_word(&condition.reason),
        note: condition.message.clone(),
    }
}

pub(super) fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

fn ended(pod: &Pod) -> Option<Stamp> {
    let statuses = pod.status.container_statuses.iter().flatten();
    let ends = statuses
        .filter_map(|status| status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref());
    ends.map(stamp).max()
}

fn price(text: &str) -> Option<Dollars> {
    let price = micro_dollars(text)?;
    Some(Dollars(i64::try_from(price.0).unwrap_or(i64::MAX)))
}

pub(super) fn stamp(time: &Time) -> Stamp {
    Stamp(time.0.as_millisecond())
}

fn of_spec(spec: &GpuWorkloadSpec) -> JobSpec {
    let wanted = &spec.gpu_requirements;
    let memory = spec.gpu_memory_required.max(wanted.min_gpu_memory.unwrap_or(0));
    let estimate = agentaflow_kube_core::gpu_workload::estimate(spec).ok().flatten();
    JobSpec {
        gpu_count: Some(wanted.gpu_count),
        gpu_memory_required: (memory > 0).then_some(memory),
        gpu_type: wanted.required_gpu_type.clone(),
        mig_profile: wanted.mig_profile.clone(),
        exclusive: Some(wanted.exclusive_access),
        priority: Some(spec.priority.into()),
        queue: spec.queue.clone(),
        replicas: Some(spec.gang_size),
        max_retries: Some(spec.retries),
        preemptible: spec.preemptible,
        estimated_duration_seconds: estimate.map(|span| span.0 / 1000),
        ..template::read(&spec.pod_template.value()["spec"])
    }
}

fn of_pod(spec: &Value, pod: &Pod) -> JobSpec {
    let annotation = |name| pod.metadata.annotations.as_ref().and_then(|all| all.get(name));
    JobSpec {
        priority: Some(pod.spec.priority.unwrap_or(0)),
        queue: annotation(names::QUEUE).cloned(),
        ..template::read(spec)
    }
}

#[cfg(test)]
#[path = "show_tests.rs"]
mod tests;
