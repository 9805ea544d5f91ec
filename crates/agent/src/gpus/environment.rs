//! Environment variables that restrict a task to its GPUs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use agentaflow_api::link::GpuGrant;

/// Default pipe directory of NVIDIA's Multi-Process Service.
const MPS_DEFAULT: &str = "/tmp/nvidia-mps";

/// Minimum percentage of the multiprocessors of a shared task: a small memory share must not make the task slow. The
/// percentages of all tasks may sum to more than 100.
const MIN_PERCENT: u32 = 10;

/// NVIDIA's Multi-Process Service (MPS) on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mps {
    pipes: PathBuf,
}

impl Mps {
    /// Finds a running service by its pipe directory: `CUDA_MPS_PIPE_DIRECTORY`, else the default.
    pub fn find() -> Option<Self> {
        let set = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").filter(|dir| !dir.is_empty());
        let pipes = set.map_or_else(|| PathBuf::from(MPS_DEFAULT), PathBuf::from);
        Self::at(&pipes, Path::new("/proc"))
    }

    /// Pipe directory.
    pub fn into_pipes(self) -> PathBuf {
        self.pipes
    }

    /// Ignores a directory of another unprivileged user, and a directory whose service has ended.
    fn at(pipes: &Path, proc: &Path) -> Option<Self> {
        let owner = fs::metadata(pipes.join("control")).ok()?.uid();
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            return None;
        }
        let pid = fs::read_to_string(pipes.join("nvidia-cuda-mps-control.pid")).ok();
        let alive = |pid: &String| {
            pid.trim().parse::<u32>().is_ok_and(|pid| proc.join(pid.to_string()).exists())
        };
        pid.as_ref().is_none_or(alive).then(|| Self { pipes: pipes.to_owned() })
    }
}

/// Variables that select the GPUs of a task by UUID, since indexes depend on the process. A task without GPUs, or with
/// simulated GPUs, sees none. `mps` is only for tasks that can reach the service: processes of the host, not
/// containers.
pub fn device_env(
    grants: &[GpuGrant],
    simulated: bool,
    mps: Option<&Mps>,
) -> Vec<(String, String)> {
    let pair = |name: &str, value: String| (name.to_owned(), value);
    if simulated || grants.is_empty() {
        return vec![
            pair("CUDA_VISIBLE_DEVICES", String::new()),
            pair("NVIDIA_VISIBLE_DEVICES", "void".into()),
        ];
    }
    let uuids = uuids(grants).join(",");
    let mut env =
        vec![pair("CUDA_VISIBLE_DEVICES", uuids.clone()), pair("NVIDIA_VISIBLE_DEVICES", uuids)];
    let Some(mps) = mps else { return env };
    let shared: Vec<&GpuGrant> = grants.iter().filter(|grant| grant.shared).collect();
    if let Some(least) = shared.iter().map(|grant| grant.milli).min() {
        let percent = (least / 10).clamp(MIN_PERCENT, 100);
        env.push(pair("CUDA_MPS_PIPE_DIRECTORY", mps.pipes.to_string_lossy().into_owned()));
        env.push(pair("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent.to_string()));
        env.push(pair("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", memory_limits(grants)));
    }
    env
}

/// Without duplicates, in order.
fn uuids(grants: &[GpuGrant]) -> Vec<&str> {
    let mut uuids: Vec<&str> = Vec::new();
    for grant in grants {
        if !uuids.contains(&&*grant.uuid) {
            uuids.push(&grant.uuid);
        }
    }
    uuids
}

/// `0=8192M,1=4096M`: memory limits of the shared devices by index in `CUDA_VISIBLE_DEVICES`.
fn memory_limits(grants: &[GpuGrant]) -> String {
    let mut limits = Vec::new();
    for (number, uuid) in uuids(grants).into_iter().enumerate() {
        let mine = grants.iter().filter(|grant| grant.uuid == uuid && grant.shared);
        let memory = mine.map(|grant| grant.memory).fold(0, u64::saturating_add);
        if memory > 0 {
            limits.push(format!("{number}={memory}M"));
        }
    }
    limits.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(uuid: &str, milli: u32, memory: u64, shared: bool) -> GpuGrant {
        GpuGrant { index: 0, uuid: uuid.to_owned(), milli, memory, shared }
    }

    fn check(grants: &[GpuGrant], simulated: bool, mps: bool, expected: &[(&str, &str)]) {
        let mps = mps.then(|| Mps { pipes: "/run/mps".into() });
        let env = device_env(grants, simulated, mps.as_ref());
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(env, expected, "{grants:?}");
    }

    const NONE: [(&str, &str); 2] =
        [("CUDA_VISIBLE_DEVICES", ""), ("NVIDIA_VISIBLE_DEVICES", "void")];

    #[test]
    fn a_task_without_real_gpus_sees_none() {
        check(&[], false, true, &NONE);
        check(&[grant("SIM-1-0", 1000, 1, false)], true, true, &NONE);
    }

    #[test]
    fn a_task_sees_its_gpus_by_uuid() {
        let grants = [grant("GPU-b", 1000, 9, false), grant("GPU-a", 1000, 9, false)];
        let both = "GPU-b,GPU-a";
        let expected = [("CUDA_VISIBLE_DEVICES", both), ("NVIDIA_VISIBLE_DEVICES", both)];
        check(&grants, false, false, &expected);
        check(&grants, false, true, &expected);
    }

    #[test]
    fn a_shared_gpu_has_limits_on_a_host_with_mps() {
        let own = [("CUDA_VISIBLE_DEVICES", "GPU-a"), ("NVIDIA_VISIBLE_DEVICES", "GPU-a")];
        let limits = |percent: &'static str, memory: &'static str| {
            let mut all = own.to_vec();
            all.push(("CUDA_MPS_PIPE_DIRECTORY", "/run/mps"));
            all.push(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent));
            all.push(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", memory));
            all
        };
        check(&[grant("GPU-a", 250, 8192, true)], false, true, &limits("25", "0=8192M"));
        check(&[grant("GPU-a", 3, 500, true)], false, true, &limits("10", "0=500M"));
        check(&[grant("GPU-a", 250, 8192, true)], false, false, &own);
    }

    #[test]
    fn the_pipe_directory_of_an_ended_service_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let (pipes, proc) = (folder.path().join("mps"), folder.path().join("proc"));
        fs::create_dir_all(&pipes).unwrap();
        assert_eq!(Mps::at(&pipes, &proc), None);
        fs::write(pipes.join("control"), "").unwrap();
        assert!(Mps::at(&pipes, &proc).is_some());
        fs::write(pipes.join("nvidia-cuda-mps-control.pid"), "77\n").unwrap();
        assert_eq!(Mps::at(&pipes, &proc), None);
        fs::create_dir_all(proc.join("77")).unwrap();
        assert!(Mps::at(&pipes, &proc).is_some());
    }
}
