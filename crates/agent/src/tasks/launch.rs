//! Prepares an assignment for its runtime: task folder, environment and devices.

use std::collections::BTreeMap;
use std::io;

use agentaflow_api::job::Runtime as RuntimeKind;
use agentaflow_api::link::Assignment;

use super::{Host, folder};
use crate::gpus::{Mps, device_env};
use crate::guardian::{MARKER, record};
use crate::runtime::{Launch, Runtime};

const SIMULATED: &str = "Notice: the GPUs of this node are simulated; the job runs without a GPU";

pub(super) fn prepare(
    host: &Host,
    assignment: &Assignment,
    runtime: &dyn Runtime,
) -> io::Result<Launch> {
    let dir = record::folder(&host.dir, assignment.key);
    let user = host.user(assignment).map_err(io::Error::other)?;
    folder::create(&dir, assignment, user.as_ref(), &host.folder_remover)?;
    let mut env: BTreeMap<String, String> = assignment
        .env
        .iter()
        .map(|(name, value)| (name.clone(), value.expose().to_owned()))
        .collect();
    env.entry("API_ENDPOINT".to_owned()).or_insert_with(|| host.server.clone());
    let [result, data_file] = runtime.files(&dir)?;
    env.insert(MARKER.to_owned(), result);
    let data = serde_json::to_vec(&assignment.job_data)?;
    if data.len() > folder::INLINE_DATA {
        folder::write_data(&dir, &data, user.as_ref())?;
        env.insert("JOB_DATA_FILE".to_owned(), data_file);
    } else {
        env.insert("JOB_DATA".to_owned(), String::from_utf8_lossy(&data).into_owned());
    }
    if assignment.simulated && !assignment.gpus.is_empty() {
        folder::write_notice(&dir, SIMULATED)?;
    }
    let devices = devices(assignment);
    let mps = mps(assignment);
    env.extend(device_env(&assignment.gpus, assignment.simulated, mps.as_ref()));
    let mps_pipes = mps.map(Mps::into_pipes);
    let (assignment, env) = (assignment.clone(), env.into_iter().collect());
    Ok(Launch { assignment, env, dir, devices, user, mps_pipes })
}

/// UUIDs of the devices, without duplicates.
fn devices(assignment: &Assignment) -> Vec<String> {
    let mut devices: Vec<String> = Vec::new();
    for gpu in assignment.gpus.iter().filter(|_| !assignment.simulated) {
        if !devices.contains(&gpu.uuid) {
            devices.push(gpu.uuid.clone());
        }
    }
    devices
}

/// NVIDIA's Multi-Process Service, for processes that share a GPU; containers cannot reach it.
fn mps(assignment: &Assignment) -> Option<Mps> {
    let shares = assignment.gpus.iter().any(|gpu| gpu.shared);
    (shares && assignment.runtime == RuntimeKind::Process).then(Mps::find)?
}
