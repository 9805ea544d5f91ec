//! How an operator wants containers to be run.

use std::path::PathBuf;

/// How to use a Docker engine.
#[derive(Clone, Debug)]
pub struct DockerSettings {
    /// The engine's socket.
    pub socket: PathBuf,
    /// The agent's own folder; the folder of a task is `tasks/<key>` in it.
    pub state_dir: PathBuf,
    /// Folders of the host that containers may see, with all that lies in them.
    pub allowed_mounts: Vec<PathBuf>,
    /// How many processes a container may have.
    pub pids_limit: i64,
    /// Bytes of output that are kept of a task.
    pub log_limit: u64,
    /// When to fetch images.
    pub pull: Pull,
    /// A runtime of the engine for containers with GPUs, such as `nvidia`. It finds the devices in
    /// `NVIDIA_VISIBLE_DEVICES`. Without it, the engine itself is asked for the devices, by uuid.
    pub gpu_runtime: Option<String>,
}

impl DockerSettings {
    /// The usual settings: Docker's own socket, no mounts, images fetched when they are missing.
    pub fn new(state_dir: PathBuf) -> Self {
        Self {
            socket: PathBuf::from("/var/run/docker.sock"),
            state_dir,
            allowed_mounts: Vec::new(),
            pids_limit: 4096,
            log_limit: 64 << 20,
            pull: Pull::default(),
            gpu_runtime: None,
        }
    }
}

/// When to fetch images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pull {
    /// When the engine does not have them.
    #[default]
    Missing,
    /// Before every start.
    Always,
    /// Never; an image that the engine does not have is an error.
    Never,
}
