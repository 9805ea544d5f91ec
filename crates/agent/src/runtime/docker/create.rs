//! Builds the create request of a container: limits, capabilities, devices and mounts.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{fs, io};

use bollard::models::{ContainerCreateBody, DeviceRequest, HostConfig, HostConfigLogConfig, Mount};

use agentaflow_api::end::EndReason;
use agentaflow_api::link::Assignment;

use super::super::{CAPABILITIES, Launch, StartError};
use super::mounts::{OpenVolume, VolumeError};
use super::network::{ContainerNetwork, MASTER_ADDR};
use super::{AGENT, DockerSettings, GRACE, KEY, LEASED, mounts};

/// Path of the result directory in a container.
pub const OUT_FOLDER: &str = "/agentaflow/out";

/// Path of the job data in a container, if they are too large for the environment.
pub const DATA_FILE: &str = "/agentaflow/data.json";

/// Size and number of Docker's own log files, from which the agent copies `output.log`. A job may be ahead of
/// `output.log` by this amount before lines are lost.
const LOG_SIZE: &str = "128m";
const LOG_FILES: &str = "4";

/// Smallest CPU limit of the kernel: a hundredth of a core.
const MIN_NANO_CPUS: i64 = 10_000_000;

const MIB: u64 = 1 << 20;

/// Creates the result directory with write access for any user of the image. The private state directory above it
/// keeps other users of the host away.
pub(super) fn prepare_folder(launch: &Launch, folder: &Path) -> Result<(), StartError> {
    if launch.dir != folder {
        let (is, should) = (launch.dir.display(), folder.display());
        return Err(StartError::Node(format!("the task folder is `{is}` instead of `{should}`")));
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
        StartError::Node(format!("cannot prepare the task folder `{}`: {error}", folder.display()))
    })
}

/// Parts of the host that a container uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContainerResources<'a> {
    pub(super) volumes: &'a [OpenVolume],
    pub(super) network: &'a ContainerNetwork,
}

/// Opens the volumes of a task. Called after the image pull: a job of the same user could change them meanwhile.
pub(super) fn open_volumes(
    settings: &DockerSettings,
    launch: &Launch,
) -> Result<Vec<OpenVolume>, StartError> {
    let Assignment { volumes, user, .. } = &launch.assignment;
    let opened = volumes.iter().map(|one| OpenVolume::open(one, user, &settings.allowed_mounts));
    let opened: Result<_, VolumeError> = opened.collect();
    opened.map_err(|error| StartError::job(EndReason::StartFailed, error.to_string()))
}

pub(super) fn body(
    settings: &DockerSettings,
    agent: &str,
    launch: &Launch,
    image: &str,
    resources: &ContainerResources<'_>,
) -> Result<ContainerCreateBody, StartError> {
    // Names every field, so that a new field does not compile before it reaches the container or is listed here.
    let Assignment {
        command,
        working_dir,
        // Read by `labels`.
        key: _,
        job_name: _,
        grace_ms: _,
        leased: _,
        user: _,
        // Read by `host_config`.
        cpu: _,
        memory: _,
        storage: _,
        shm: _,
        read_only: _,
        // Opened by `open_volumes`.
        volumes: _,
        // Read by `network.rs`.
        gang: _,
        // Read by `pull.rs`.
        image: _,
        registry_auth: _,
        // `launch` has the environment and the devices made of these fields.
        env: _,
        job_data: _,
        gpus: _,
        simulated: _,
        // Read by `crate::tasks`.
        runtime: _,
        timeout_ms: _,
        running: _,
        // For processes only.
        user_id: _,
    } = &launch.assignment;
    let mut host = host_config(settings, launch, resources.volumes)?;
    let network = resources.network;
    let address = launch.env.iter().find(|(name, _)| name == MASTER_ADDR);
    let address = address.and_then(|(_, address)| address.parse().ok());
    let (networking_config, exposed_ports) =
        network.configure(&launch.assignment, address, &mut host);
    let mut labels = labels(&launch.assignment, agent);
    labels.extend(network.label());
    Ok(ContainerCreateBody {
        image: Some(image.to_owned()),
        // Replaces the image's entry point: a shell command must reach a shell.
        entrypoint: command.clone().filter(|command| !command.is_empty()),
        working_dir: working_dir.clone(),
        env: Some(environment(launch, network)),
        labels: Some(labels),
        host_config: Some(host),
        networking_config,
        exposed_ports,
        ..ContainerCreateBody::default()
    })
}

fn environment(launch: &Launch, network: &ContainerNetwork) -> Vec<String> {
    let master = network.master_address(&launch.assignment);
    let value = |name: &str, value: &str| match master {
        Some(master) if name == MASTER_ADDR => format!("{name}={master}"),
        _ => format!("{name}={value}"),
    };
    launch.env.iter().map(|(name, given)| value(name, given)).collect()
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

fn host_config(
    settings: &DockerSettings,
    launch: &Launch,
    volumes: &[OpenVolume],
) -> Result<HostConfig, StartError> {
    let assignment = &launch.assignment;
    let memory = some_bytes(assignment.memory);
    let tmp = || HashMap::from([("/tmp".to_owned(), "rw,exec,nosuid,nodev,mode=1777".to_owned())]);
    let has_gpus = !launch.devices.is_empty();
    Ok(HostConfig {
        nano_cpus: nano_cpus(assignment.cpu.0),
        memory,
        // Equal to `memory`: no swap.
        memory_swap: memory,
        shm_size: some_bytes(assignment.shm),
        pids_limit: Some(settings.pids_limit),
        device_requests: device_requests(settings, &launch.devices),
        runtime: settings.gpu_runtime.clone().filter(|_| has_gpus),
        storage_opt: storage_options(assignment.storage),
        readonly_rootfs: Some(assignment.read_only),
        tmpfs: assignment.read_only.then(tmp),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(CAPABILITIES.map(str::to_owned).to_vec()),
        // Reaps orphaned processes, and makes TERM end a first process that does not handle it.
        init: Some(true),
        mounts: Some(all_mounts(launch, volumes)?),
        log_config: Some(log_config()),
        ..HostConfig::default()
    })
}

fn nano_cpus(milli: u64) -> Option<i64> {
    let nano = i64::try_from(milli.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
    (nano > 0).then_some(nano.max(MIN_NANO_CPUS))
}

fn some_bytes(mebibytes: u64) -> Option<i64> {
    let bytes = i64::try_from(mebibytes.saturating_mul(MIB)).unwrap_or(i64::MAX);
    (bytes > 0).then_some(bytes)
}

fn storage_options(mebibytes: u64) -> Option<HashMap<String, String>> {
    (mebibytes > 0).then(|| HashMap::from([("size".to_owned(), format!("{mebibytes}M"))]))
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

fn all_mounts(launch: &Launch, volumes: &[OpenVolume]) -> Result<Vec<Mount>, StartError> {
    let mut all: Vec<Mount> = volumes.iter().map(OpenVolume::mount).collect();
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
    // Docker needs an absolute path: its working directory differs from the agent's.
    let source = launch.dir.join(name);
    let full = source.canonicalize().ok().and_then(|path| path.into_os_string().into_string().ok());
    let full = full.ok_or_else(|| {
        StartError::Node(format!("cannot mount `{}` into the container", source.display()))
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
    fn devices_are_requested_by_uuid() {
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
    fn a_gpu_runtime_replaces_the_device_request() {
        let settings = DockerSettings {
            gpu_runtime: Some("nvidia".to_owned()),
            ..DockerSettings::new("/nowhere".into())
        };
        assert_eq!(device_requests(&settings, &["GPU-1".to_owned()]), None);
    }

    #[test]
    fn zero_means_no_limit_and_large_amounts_do_not_overflow() {
        assert_eq!((nano_cpus(0), some_bytes(0)), (None, None));
        assert_eq!(nano_cpus(1500), Some(1_500_000_000));
        assert_eq!(nano_cpus(1), Some(MIN_NANO_CPUS));
        assert_eq!((nano_cpus(u64::MAX), some_bytes(u64::MAX)), (Some(i64::MAX), Some(i64::MAX)));
    }
}
