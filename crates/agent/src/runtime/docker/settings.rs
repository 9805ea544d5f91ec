//! Settings of the Docker runtime.

use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct DockerSettings {
    pub socket: PathBuf,
    /// State directory of the agent; the folder of a task is `tasks/<key>` in it.
    pub state_dir: PathBuf,
    /// Host directories that volumes may mount, with their contents.
    pub allowed_mounts: Vec<PathBuf>,
    /// Maximum number of processes in a container.
    pub pids_limit: i64,
    /// Bytes of output kept per task.
    pub log_limit: u64,
    pub pull: PullPolicy,
    /// OCI runtime of containers with GPUs, such as `nvidia`, which reads `NVIDIA_VISIBLE_DEVICES`. Default: a device
    /// request by UUID.
    pub gpu_runtime: Option<String>,
}

impl DockerSettings {
    /// Defaults: Docker's standard socket, no mounts, pull missing images.
    pub fn new(state_dir: PathBuf) -> Self {
        Self {
            socket: PathBuf::from("/var/run/docker.sock"),
            state_dir,
            allowed_mounts: Vec::new(),
            pids_limit: 4096,
            log_limit: 64 << 20,
            pull: PullPolicy::default(),
            gpu_runtime: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullPolicy {
    #[default]
    Missing,
    /// Before every start.
    Always,
    /// A missing image is an error.
    Never,
}
