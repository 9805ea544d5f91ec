//! Settings of the Docker runtime.

use std::convert::Infallible;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

#[derive(Clone, Debug)]
pub struct DockerSettings {
    pub socket: PathBuf,
    /// State directory of the agent; the folder of a task is `tasks/<key>` in it.
    pub state_dir: PathBuf,
    /// Host directories that volumes may mount, with their contents.
    pub allowed_mounts: Vec<MountRoot>,
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

/// Placeholder for the owner of a job in the path of a [`MountRoot`].
const USER: &str = "{user}";

/// Host directory that volumes may mount. A path such as `/home/{user}` gives every user another directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountRoot {
    pub path: PathBuf,
    pub writable: bool,
}

impl MountRoot {
    /// Path of the directory for the jobs of a user; `None` if the name of the user is not a file name.
    pub(super) fn of_user(&self, user: &str) -> Option<PathBuf> {
        let Some(path) = self.path.to_str().filter(|path| path.contains(USER)) else {
            return Some(self.path.clone());
        };
        let mut parts = Path::new(user).components();
        let plain = matches!(parts.next(), Some(Component::Normal(name)) if name == user);
        plain.then(|| PathBuf::from(path.replace(USER, user)))
    }
}

impl FromStr for MountRoot {
    type Err = Infallible;

    /// Parses `DIR`, `DIR:ro` and `DIR:rw`.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let (path, writable) = match text.rsplit_once(':') {
            Some((path, "rw")) => (path, true),
            Some((path, "ro")) => (path, false),
            _ => (text, false),
        };
        Ok(Self { path: path.into(), writable })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_suffix_rw_makes_a_root_writable() {
        for (text, path, writable) in
            [("/data", "/data", false), ("/data:ro", "/data", false), ("/a:b:rw", "/a:b", true)]
        {
            let root: MountRoot = text.parse().unwrap();
            assert_eq!(root, MountRoot { path: path.into(), writable });
        }
    }
}
