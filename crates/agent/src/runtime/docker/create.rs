//! What a container is made of: its limits, its rights, its devices and the folders that it sees.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{fs, io};

use bollard::models::{ContainerCreateBody, DeviceRequest, HostConfig, HostConfigLogConfig, Mount};

use agentaflow_api::link::Assignment;

use super::super::{CAPABILITIES, Launch, StartError};
use super::{AGENT, DockerSettings, GRACE, KEY, LEASED, mounts};

/// Where a container sees the folder for its results.
pub const OUT_FOLDER: &str = "/agentaflow/out";

/// Where a container sees its data, when they are too large for the environment.
pub const DATA_FILE: &str = "/agentaflow/data.json";

/// The engine's own copy of the output, which `output.log` is made from: so many files of this size. A job that
/// writes faster than the engine can read may be ahead of `output.log` by so much before lines are lost.
const LOG_SIZE: &str = "128m";
const LOG_FILES: &str = "4";

/// The kernel gives out CPU time in no smaller parts: a hundredth of a core.
const LEAST_NANO_CPUS: i64 = 10_000_000;

const MIB: u64 = 1 << 20;

/// Makes the folder for results, writable for whatever user the image has: the agent's own folder keeps
/// everybody else on the host away from it.
pub(super) fn prepare_folder(launch: &Launch, folder: &Path) -> Result<(), StartError> {
    if launch.dir != folder {
        let (is, should) = (launch.dir.display(), folder.display());
        return Err(StartError::Node(format!("the task's folder is `{is}` instead of `{should}`")));
    }
    let prepare = || -> io::Result<()> {
        let out = folder.join("out");
        fs::create_dir_all(&out)?;
        fs::set_permissions(&out, fs::Permissions::from_mode(0o777))?;
        let data = folder.join("data.json");
        if data.exists() {
            fs::set_permissions(&data, fs::Permissions::from_mode(0o644))?;
        }
        Ok(())
    };
    prepare().map_err(|error| {
        StartError::Node(format!("cannot prepare the folder `{}`: {error}", folder.display()))
    })
}

/// The whole request for a container.
pub(super) fn body(
    settings: &DockerSettings,
    agent: &str,
    launch: &Launch,
    image: &str,
) -> Result<ContainerCreateBody, StartError> {
    let assignment = &launch.assignment;
    Ok(ContainerCreateBody {
        image: Some(image.to_owned()),
        // In place of the image's entry point, not after it: a line for the shell must reach a shell.
        entrypoint: assignment.command.clone().filter(|command| !command.is_empty()),
        working_dir: assignment.working_dir.clone(),
        env: Some(launch.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        labels: Some(labels(assignment, agent)),
        host_config: Some(host_config(settings, launch)?),
        ..ContainerCreateBody::default()
    })
}

fn labels(assignment: &Assignment, agent: &str) -> HashMap<String, String> {
    let mut labels = HashMap::from([
        (KEY.to_owned(), assignment.key.to_string()),
        (AGENT.to_owned(), agent.to_owned()),
        (LEASED.to_owned(), assignment.leased.to_string()),
        (GRACE.to_owned(), assignment.grace_ms.to_string()),
        ("agentaflow.user".to_owned(), assignment.user.clone()),
    ]);
    if let Some(name) = &assignment.job_name {
        labels.insert("agentaflow.job".to_owned(), name.clone());
    }
    labels
}

fn host_config(settings: &DockerSettings, launch: &Launch) -> Result<HostConfig, StartError> {
    let assignment = &launch.assignment;
    let memory = some_bytes(assignment.memory);
    let tmp = || HashMap::from([("/tmp".to_owned(), "rw,exec,nosuid,nodev,mode=1777".to_owned())]);
    let has_gpus = !launch.devices.is_empty();
    Ok(HostConfig {
        nano_cpus: nano_cpus(assignment.cpu.0),
        memory,
        // Equal to the memory: no swap.
        memory_swap: memory,
        shm_size: some_bytes(assignment.shm),
        pids_limit: Some(settings.pids_limit),
        device_requests: device_requests(settings, &launch.devices),
        runtime: settings.gpu_runtime.clone().filter(|_| has_gpus),
        readonly_rootfs: Some(assignment.read_only),
        tmpfs: assignment.read_only.then(tmp),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(CAPABILITIES.map(str::to_owned).to_vec()),
        // Reaps what the job leaves behind, and lets TERM end a first process that does not handle it.
        init: Some(true),
        mounts: Some(all_mounts(settings, launch)?),
        log_config: Some(log_config()),
        ..HostConfig::default()
    })
}

fn nano_cpus(milli: u64) -> Option<i64> {
    let nano = i64::try_from(milli.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
    (nano > 0).then_some(nano.max(LEAST_NANO_CPUS))
}

fn some_bytes(mebibytes: u64) -> Option<i64> {
    let bytes = i64::try_from(mebibytes.saturating_mul(MIB)).unwrap_or(i64::MAX);
    (bytes > 0).then_some(bytes)
}

fn device_requests(settings: &DockerSettings, devices: &[String]) -> Option<Vec<DeviceRequest>> {
    if devices.is_empty() || settings.gpu_runtime.is_some() {
        return None;
    }
    Some(vec![DeviceRequest {
        driver: Some("nvidia".to_owned()),
        device_ids: Some(devices.to_vec()),
        capabilities: Some(vec![vec!["gpu".to_owned()]]),
        ..DeviceRequest::default()
    }])
}

fn all_mounts(settings: &DockerSettings, launch: &Launch) -> Result<Vec<Mount>, StartError> {
    let volumes = launch.assignment.volumes.iter();
    let volumes = volumes.map(|volume| mounts::volume(volume, &settings.allowed_mounts));
    let mut all = volumes.collect::<Result<Vec<Mount>, StartError>>()?;
    all.push(own_mount(launch, "out", OUT_FOLDER, false)?);
    if launch.dir.join("data.json").exists() {
        all.push(own_mount(launch, "data.json", DATA_FILE, true)?);
    }
    Ok(all)
}

fn own_mount(
    launch: &Launch,
    name: &str,
    target: &str,
    read_only: bool,
) -> Result<Mount, StartError> {
    // The engine has another working directory than we have.
    let source = launch.dir.join(name);
    let full = source.canonicalize().ok().and_then(|path| path.into_os_string().into_string().ok());
    let full = full.ok_or_else(|| {
        StartError::Node(format!("`{}` cannot be handed to the container", source.display()))
    })?;
    Ok(mounts::bind(&full, target, read_only))
}

fn log_config() -> HostConfigLogConfig {
    let option = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    HostConfigLogConfig {
        typ: Some("json-file".to_owned()),
        config: Some(HashMap::from([option("max-size", LOG_SIZE), option("max-file", LOG_FILES)])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_asked_for_by_uuid() {
        let settings = DockerSettings::new("/nowhere".into());
        let requests = device_requests(&settings, &["GPU-1".to_owned(), "MIG-2".to_owned()]);
        let sent = serde_json::to_value(requests).unwrap();
        assert_eq!(
            sent,
            serde_json::json!([{
                "Driver": "nvidia",
                "DeviceIDs": ["GPU-1", "MIG-2"],
                "Capabilities": [["gpu"]],
            }])
        );
        assert_eq!(device_requests(&settings, &[]), None);
    }

    #[test]
    fn a_runtime_for_gpus_takes_the_place_of_the_request() {
        let settings = DockerSettings {
            gpu_runtime: Some("nvidia".to_owned()),
            ..DockerSettings::new("/nowhere".into())
        };
        assert_eq!(device_requests(&settings, &["GPU-1".to_owned()]), None);
    }

    #[test]
    fn nothing_asked_for_is_no_limit_and_huge_amounts_do_not_wrap() {
        assert_eq!((nano_cpus(0), some_bytes(0)), (None, None));
        assert_eq!(nano_cpus(1500), Some(1_500_000_000));
        assert_eq!(nano_cpus(1), Some(LEAST_NANO_CPUS));
        assert_eq!((nano_cpus(u64::MAX), some_bytes(u64::MAX)), (Some(i64::MAX), Some(i64::MAX)));
    }
}
