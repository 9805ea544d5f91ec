//! Places in the words of agents: the seat that a task gets, and everything that its agent has to know.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use agentaflow_api::job::OnNodeLost;
use agentaflow_api::link::{Assignment, GpuGrant, RegistryAuth, TaskKey};
use agentaflow_api::units::{Cores, Secret};
use agentaflow_engine::{GpuAllocation, GpuAssignment, GpuShare, Placement, Request};

use super::describe::{gpu_id, instances, price};
use super::jobs::{grace_ms, runtime};
use super::money;
use super::state::State;
use crate::store::{JobRow, Seat, SeatState};

/// The first port for the tasks of a gang to meet at.
const MASTER_PORT: i64 = 29_500;

impl State {
    /// A task's place, with all that its agent and the ledger need to know.
    pub(crate) fn seat(&self, request: &Request, placement: &Placement) -> Option<Seat> {
        let node = self.nodes.values().find(|node| node.row.node_id == placement.node.as_str())?;
        let GpuAssignment::Devices(parts) = &placement.gpus else { return None };
        let all = instances(&node.row.spec);
        let (mut grants, mut gpu_milli) = (Vec::new(), 0);
        for part in parts {
            let (position, gpu) = all
                .iter()
                .enumerate()
                .find(|(position, gpu)| gpu_id(gpu, *position) == part.gpu)?;
            let memory = gpu.gpu_memory.unwrap_or(0);
            let model =
                gpu.gpu_type.as_ref().or(gpu.gpu_name.as_ref()).or(node.row.spec.gpu_type.as_ref());
            let milli = money::share(part.share, request, model.map_or("", String::as_str), memory);
            gpu_milli += milli;
            grants.push(grant(gpu, position, part, milli, memory, request.exclusive));
        }
        Some(Seat {
            task: placement.task,
            node: node.row.id,
            gpus: parts.clone(),
            grants,
            price: price(&node.row.spec),
            gpu_milli,
            ..Seat::default()
        })
    }

    /// What the agent is told. None if the job or the task is gone.
    pub(crate) fn assignment(&self, id: i64, task: u32) -> Option<Assignment> {
        let job = self.jobs.get(&id)?;
        let seat = job.state.seats.iter().find(|seat| seat.task == task)?;
        let node = self.nodes.get(&seat.node)?;
        let spec = &job.spec;
        let (password, secret_env) = self.secrets_of(job);
        let mut env: BTreeMap<String, Secret> =
            spec.env.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        env.extend(secret_env);
        env.insert("JOB_ID".to_owned(), id.to_string().into());
        let tasks = job.state.seats.len();
        if tasks > 1 {
            let master = job.state.seats.iter().find(|seat| seat.task == 0)?;
            let port = MASTER_PORT + id % 1000;
            env.insert("MASTER_ADDR".to_owned(), self.address(master.node).into());
            env.insert("MASTER_PORT".to_owned(), port.to_string().into());
            env.insert("RANK".to_owned(), task.to_string().into());
            env.insert("WORLD_SIZE".to_owned(), tasks.to_string().into());
        }
        let user = self.directory.users.get(&job.user_id).map(|user| user.username.clone());
        Some(Assignment {
            key: TaskKey { job: id, epoch: job.state.epoch, task },
            job_name: spec.job_name.clone(),
            runtime: runtime(spec),
            image: image(job),
            registry_auth: password.map(|password| RegistryAuth {
                server: spec.docker_registry.clone(),
                username: spec.docker_username.clone().unwrap_or_default(),
                password,
            }),
            command: spec.command.clone(),
            working_dir: spec.working_dir.clone(),
            env,
            job_data: job_data(job),
            gpus: seat.grants.clone(),
            cpu: spec.cpu_cores_required.unwrap_or(Cores(0)),
            memory: spec.memory_required.unwrap_or(0),
            shm: spec.shm_size.unwrap_or(0),
            volumes: spec.volumes.clone(),
            read_only: spec.read_only,
            timeout_ms: spec.timeout_seconds.map(|seconds| seconds.saturating_mul(1000)),
            grace_ms: grace_ms(spec),
            leased: spec.on_node_lost.unwrap_or_default() == OnNodeLost::Requeue,
            simulated: node.row.spec.simulated,
            user: user.unwrap_or_default(),
            running: seat.state == SeatState::Running,
        })
    }

    /// Where the tasks of a gang find a node.
    fn address(&self, node: i64) -> String {
        let spec = self.nodes.get(&node).map(|node| &node.row.spec);
        let address =
            spec.and_then(|spec| spec.ip_address.clone().or_else(|| spec.hostname.clone()));
        address.unwrap_or_else(|| "127.0.0.1".to_owned())
    }

    fn secrets_of(&self, job: &JobRow) -> (Option<Secret>, BTreeMap<String, Secret>) {
        #[derive(Default, serde::Deserialize)]
        #[serde(default)]
        struct Plain {
            password: Option<Secret>,
            env: BTreeMap<String, Secret>,
        }
        let Some(sealed) = &job.state.sealed else { return Default::default() };
        let plain: Option<Plain> = match self.secrets.open(&format!("job:{}", job.id), sealed) {
            Ok(plain) => serde_json::from_slice(&plain).ok(),
            Err(error) => {
                tracing::error!(job = job.id, %error, "its secrets cannot be opened; it starts without them");
                None
            }
        };
        let plain = plain.unwrap_or_default();
        (plain.password, plain.env)
    }

    /// Seals all secrets anew that an older key sealed. Returns how many.
    pub(crate) fn reseal(&mut self) -> usize {
        let mut renewed = Vec::new();
        for job in self.jobs.values_mut() {
            let Some(sealed) =
                job.state.sealed.as_ref().filter(|sealed| !self.secrets.is_current(sealed))
            else {
                continue;
            };
            match self.secrets.reseal(&format!("job:{}", job.id), sealed) {
                Ok(sealed) => {
                    job.state.sealed = Some(sealed);
                    renewed.push(job.id);
                }
                Err(error) => {
                    tracing::error!(job = job.id, %error, "its secrets cannot be sealed anew");
                }
            }
        }
        for job in &renewed {
            self.touch(*job);
        }
        renewed.len()
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

/// The image with registry and tag. A digest stands instead of a tag.
pub(crate) fn image(job: &JobRow) -> Option<String> {
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

/// What a job finds in `JOB_DATA`.
pub(crate) fn job_data(job: &JobRow) -> Map<String, Value> {
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

/// What a job asked for, in the words of the documents.
pub(crate) fn requirements(job: &JobRow) -> Value {
    let spec = &job.spec;
    json!({
        "gpu_memory": spec.gpu_memory_required,
        "gpu_count": spec.gpu_count,
        "cpu_cores": spec.cpu_cores_required,
        "memory": spec.memory_required,
        "storage": spec.storage_required,
    })
}
