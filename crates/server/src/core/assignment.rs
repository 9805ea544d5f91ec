//! Assignments of tasks: from a placement of the engine to the message for the agent.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use agentaflow_api::ids::NodeId;
use agentaflow_api::job::{JobSpec, OnNodeLost, TaskState};
use agentaflow_api::link::{Assignment, Gang, GpuGrant, RegistryAuth, TaskKey};
use agentaflow_api::node::NodeSpec;
use agentaflow_api::trace::TRACEPARENT;
use agentaflow_api::units::{Cores, Secret};
use agentaflow_engine::{GpuAllocation, GpuAssignment, GpuShare, Placement, Request};

use super::job::workload::grace_ms;
use super::node::{gpu_id, instances, price};
use super::pricing;
use super::state::State;
use crate::secrets::SecretError;
use crate::store::{JobRow, TaskAssignment};
use crate::traces::traceparent;

/// First of 1,000 ports at which the tasks of a gang meet.
const MASTER_PORT: u16 = 29_500;

/// Distance between the ports of two attempts. Without a divisor in common with 1,000, and far from neighboring jobs.
const PORT_STRIDE: i64 = 389;

/// Secrets of a job, opened.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct JobSecrets {
    password: Option<Secret>,
    env: BTreeMap<String, Secret>,
}

/// Assignment of a task that is placed on this node; none if a GPU is unknown.
pub(super) fn assign_task(
    node: NodeId,
    spec: &NodeSpec,
    request: &Request,
    placement: &Placement,
) -> Option<TaskAssignment> {
    let GpuAssignment::Devices(parts) = &placement.gpus else { return None };
    let all = instances(spec);
    let mut grants = Vec::new();
    let mut gpu_milli = 0;
    for part in parts {
        let mut known = all.iter().enumerate();
        let (position, gpu) = known.find(|(position, gpu)| gpu_id(gpu, *position) == part.gpu)?;
        let memory = gpu.gpu_memory.unwrap_or(0);
        let model = gpu.gpu_type.as_ref().or(gpu.gpu_name.as_ref()).or(spec.gpu_type.as_ref());
        let model = model.map_or("", String::as_str);
        let milli = pricing::share(part.share, request, model, memory);
        gpu_milli += milli;
        grants.push(grant(gpu, position, part, milli, memory, request.exclusive));
    }
    Some(TaskAssignment {
        task: placement.task,
        node,
        gpus: parts.clone(),
        grants,
        price: price(spec),
        gpu_milli,
        ..TaskAssignment::default()
    })
}

impl State {
    /// Assignment of a placed task; none if the node or a GPU is unknown.
    pub(super) fn assign_task(
        &self,
        request: &Request,
        placement: &Placement,
    ) -> Option<TaskAssignment> {
        let node = self.nodes.named(placement.node.as_str())?.row();
        assign_task(node.id, &node.spec, request, placement)
    }

    /// Message for the agent of a task; none if the node is gone.
    pub(super) fn assignment(&self, job: &JobRow, assigned: &TaskAssignment) -> Option<Assignment> {
        let node = self.nodes.get(assigned.node)?;
        let task = assigned.task;
        let spec = &job.spec;
        // Names every field, so that a new field does not compile before it reaches the agent or is listed here.
        let JobSpec {
            job_name,
            docker_registry,
            docker_username,
            command,
            env: plain_env,
            working_dir,
            cpu_cores_required,
            memory_required,
            storage_required,
            shm_size,
            max_retries,
            volumes,
            read_only,
            timeout_seconds,
            on_node_lost,
            // Read by `effective_runtime` and `image`.
            runtime: _,
            docker_image: _,
            docker_tag: _,
            // Read by `job_data`.
            job_config: _,
            input_data: _,
            // Read by `grace_ms`.
            stop_grace_seconds: _,
            // The server alone decides on these fields; `gpus` has the granted devices.
            job_type: _,
            endpoint_id: _,
            gpu_count: _,
            gpu_type: _,
            gpu_fraction: _,
            gpu_memory_required: _,
            mig_profile: _,
            exclusive: _,
            replicas: _,
            priority: _,
            queue: _,
            estimated_duration_seconds: _,
            preemptible: _,
        } = spec;
        let JobSecrets { password, env: secret_env } = match self.open_secrets(job) {
            Ok(secrets) => secrets,
            // The agent received the secrets with the start of the task.
            Err(_) if assigned.state != TaskState::Scheduled => JobSecrets::default(),
            Err(error) => {
                tracing::error!(job = %job.id, %error, "Cannot decrypt the secrets of an assigned job; it is not sent");
                return None;
            }
        };
        let mut env = environment(job, plain_env, secret_env);
        let tasks = job.state.tasks.len();
        let mut gang = None;
        if tasks > 1 {
            let master = job.state.tasks.iter().find(|task| task.task == 0)?;
            let port = master_port(job.task_key(task));
            gang = Some(Gang {
                master_port: port,
                master_here: master.node == assigned.node,
                spans_nodes: job.state.tasks.iter().any(|task| task.node != master.node),
            });
            env.insert("MASTER_ADDR".to_owned(), self.address(master.node).into());
            env.insert("MASTER_PORT".to_owned(), port.to_string().into());
            env.insert("RANK".to_owned(), task.to_string().into());
            env.insert("WORLD_SIZE".to_owned(), tasks.to_string().into());
        }
        let directory = self.directory.read();
        let user = directory.users.get(&job.user_id).map(|user| user.username.clone());
        Some(Assignment {
            key: job.task_key(task),
            job_name: job_name.clone(),
            runtime: spec.effective_runtime(),
            image: image(job),
            registry_auth: password.map(|password| RegistryAuth {
                server: docker_registry.clone(),
                username: docker_username.clone().unwrap_or_default(),
                password,
            }),
            command: command.clone(),
            working_dir: working_dir.clone(),
            env,
            job_data: job_data(job),
            gpus: assigned.grants.clone(),
            cpu: cpu_cores_required.unwrap_or(Cores(0)),
            memory: memory_required.unwrap_or(0),
            // GiB to MiB.
            storage: storage_required.unwrap_or(0).saturating_mul(1024),
            shm: shm_size.unwrap_or(0),
            volumes: volumes.clone(),
            read_only: *read_only,
            gang,
            timeout_ms: timeout_seconds.map(|seconds| seconds.saturating_mul(1000)),
            grace_ms: grace_ms(spec),
            restart_on_gpu_error: job.state.retries_used < max_retries.unwrap_or(0),
            leased: on_node_lost.unwrap_or_default() == OnNodeLost::Requeue,
            simulated: node.row().spec.simulated,
            user: user.unwrap_or_default(),
            user_id: Some(job.user_id),
            running: assigned.state == TaskState::Running,
            trace_id: job.trace.map(|trace| trace.trace_id),
        })
    }

    /// Address at which the tasks of a gang reach a node.
    fn address(&self, node: NodeId) -> String {
        let spec = self.nodes.get(node).map(|node| &node.row().spec);
        let address =
            spec.and_then(|spec| spec.ip_address.clone().or_else(|| spec.hostname.clone()));
        address.unwrap_or_else(|| "127.0.0.1".to_owned())
    }

    pub(super) fn open_secrets(&self, job: &JobRow) -> Result<JobSecrets, SecretError> {
        let Some(sealed) = &job.state.sealed else { return Ok(JobSecrets::default()) };
        let plain = self.secrets.open(&format!("job:{}", job.id), sealed)?;
        serde_json::from_slice(&plain).map_err(|_| SecretError::Broken)
    }

    /// Seals every secret with the current key. Returns the number of jobs that had an older one.
    pub(super) fn reseal_secrets(&mut self) -> usize {
        let mut resealed = Vec::new();
        for job in self.jobs.iter() {
            let Some(sealed) = &job.state.sealed else { continue };
            if self.secrets.is_current(sealed) {
                continue;
            }
            match self.secrets.reseal(&format!("job:{}", job.id), sealed) {
                Ok(sealed) => resealed.push((job.id, sealed)),
                Err(error) => {
                    tracing::error!(job = %job.id, %error, "Cannot reseal the secrets of a job");
                }
            }
        }
        let count = resealed.len();
        for (job, sealed) in resealed {
            self.jobs.update(job, |state| state.sealed = Some(sealed));
        }
        count
    }
}

fn grant(
    gpu: &agentaflow_api::node::GpuInstance,
    position: usize,
    part: &GpuAllocation,
    milli: u64,
    memory: u64,
    exclusive: bool,
) -> GpuGrant {
    let index = gpu.gpu_index.unwrap_or(position as u32);
    let uuid = gpu.gpu_uuid.clone().unwrap_or_else(|| index.to_string());
    let (uuid, memory, shared) = match part.share {
        GpuShare::Whole => (uuid, memory, false),
        GpuShare::Fraction { mib, .. } => (uuid, mib.0, !exclusive),
        GpuShare::MigSlice { profile, start } => {
            let slices = gpu.mig.iter().flatten();
            let slice = slices.filter(|slice| slice.start == start).find(|slice| {
                agentaflow_engine::MigProfile::new(&slice.profile)
                    .is_ok_and(|known| known == profile)
            });
            (slice.map_or(uuid, |slice| slice.uuid.clone()), memory * milli / 1000, false)
        }
    };
    GpuGrant { index, uuid, milli: milli as u32, memory, shared }
}

/// Port at which the tasks of a gang meet. Another attempt uses another port: the first one may be in use on the host.
fn master_port(key: TaskKey) -> u16 {
    let attempt = i64::from(key.epoch.saturating_sub(1));
    let offset = key.job.0.wrapping_add(attempt.wrapping_mul(PORT_STRIDE)).rem_euclid(1000);
    MASTER_PORT + u16::try_from(offset).unwrap_or(0)
}

/// Variables of every task of a job.
fn environment(
    job: &JobRow,
    plain: &BTreeMap<String, String>,
    secret: BTreeMap<String, Secret>,
) -> BTreeMap<String, Secret> {
    let mut env: BTreeMap<String, Secret> =
        plain.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    env.extend(secret);
    env.insert("JOB_ID".to_owned(), job.id.to_string().into());
    if let Some(parent) = traceparent(job) {
        env.entry(TRACEPARENT.to_ascii_uppercase()).or_insert_with(|| parent.into());
    }
    env
}

/// Image with registry and tag; a digest replaces the tag.
fn image(job: &JobRow) -> Option<String> {
    let image = job.spec.docker_image.as_deref()?;
    let tag = job.spec.docker_tag.as_deref().unwrap_or("latest");
    let registry = job.spec.docker_registry.as_deref().map(|registry| {
        let bare = registry.trim_start_matches("https://").trim_start_matches("http://");
        format!("{}/", bare.trim_end_matches('/'))
    });
    let last = image.rsplit('/').next().unwrap_or(image);
    let tag =
        if last.contains(':') || image.contains('@') { String::new() } else { format!(":{tag}") };
    Some(format!("{}{image}{tag}", registry.unwrap_or_default()))
}

/// Content of `JOB_DATA`.
fn job_data(job: &JobRow) -> Map<String, Value> {
    let spec = &job.spec;
    let data = json!({
        "job_id": job.id,
        "input_data": if spec.input_data.is_null() { json!({}) } else { spec.input_data.clone() },
        "config": spec.job_config,
        "resource_requirements": requirements(job),
    });
    match data {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Requested resources, with the field names of the documented worker protocol.
pub(super) fn requirements(job: &JobRow) -> Value {
    let spec = &job.spec;
    json!({
        "gpu_memory": spec.gpu_memory_required,
        "gpu_count": spec.gpu_count,
        "cpu_cores": spec.cpu_cores_required,
        "memory": spec.memory_required,
        "storage": spec.storage_required,
    })
}

#[cfg(test)]
mod tests {
    use agentaflow_api::ids::JobId;

    use super::*;

    #[test]
    fn every_attempt_of_a_gang_meets_at_another_port() {
        let port =
            |job, epoch| master_port(TaskKey { job: JobId(job), epoch, incarnation: 0, task: 0 });
        assert_eq!((port(1_007, 1), port(1_007, 2)), (29_507, 29_896));
        let all: std::collections::BTreeSet<u16> =
            (1..=1_000).map(|epoch| port(7, epoch)).collect();
        assert_eq!(all.len(), 1_000);
        assert!(all.iter().all(|port| (29_500..30_500).contains(port)));
    }
}
