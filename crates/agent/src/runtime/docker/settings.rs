//! Settings of the Docker runtime.

use std::convert::Infallible;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use super::network::range;

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
    pub network: NetworkMode,
    /// Addresses of the networks of jobs.
    pub subnets: Subnets,
    /// Containers may reach services of this host and the metadata address of a cloud.
    pub allow_host_access: bool,
    /// Images may come from registries on this host.
    pub allow_local_registry: bool,
    /// Images of the host need no check, except images that this agent pulled with credentials.
    pub trust_local_images: bool,
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
            network: NetworkMode::default(),
            subnets: Subnets::default(),
            allow_host_access: false,
            allow_local_registry: false,
            trust_local_images: false,
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// One network per job.
    #[default]
    Job,
    /// The network of the host, without isolation.
    Host,
}

/// Addresses of the networks of jobs; each network has 32 of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnets {
    first: u32,
    count: u32,
}

/// Addresses per network.
const NETWORK_SIZE: u32 = 32;

impl Subnets {
    /// Subnets that overlap with none of `used`, beginning at a position that depends on `start`.
    pub(super) fn free(&self, used: &[String], start: u64) -> Vec<String> {
        let used: Vec<(u32, u32)> = used.iter().filter_map(|subnet| range(subnet)).collect();
        let start = (start % u64::from(self.count)) as u32;
        let order = (0..self.count).map(|step| (start + step) % self.count);
        let address = order.map(|index| self.first + index * NETWORK_SIZE);
        let is_free = |first: &u32| {
            let last = first + (NETWORK_SIZE - 1);
            used.iter().all(|(low, high)| last < *low || *first > *high)
        };
        address.filter(is_free).map(|first| format!("{}/27", Ipv4Addr::from(first))).collect()
    }
}

impl Default for Subnets {
    fn default() -> Self {
        Self { first: u32::from(Ipv4Addr::new(10, 213, 0, 0)), count: 2048 }
    }
}

impl fmt::Display for Subnets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = 27 - self.count.ilog2();
        write!(f, "{}/{bits}", Ipv4Addr::from(self.first))
    }
}

impl FromStr for Subnets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wide = range(text).filter(|(first, last)| (31..1 << 24).contains(&(last - first)));
        let (first, last) = wide
            .ok_or_else(|| "use an IPv4 subnet of /8 to /27, such as 10.213.0.0/16".to_owned())?;
        Ok(Self { first, count: (last - first + 1) / NETWORK_SIZE })
    }
}

/// Placeholder for the owner of a job in the path of a [`MountRoot`].
const USER: &str = "{user}";

/// Host directory that volumes may mount. A path such as `/srv/users/{user}` gives every user another directory.
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
