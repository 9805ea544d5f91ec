//! GPU memory of jobs, read from a played `nvidia-smi`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::harness::{Cluster, SOON, eventually};
use crate::skip::skip;

const GPU: &str = "GPU-5a1e0000-0000-0000-0000-000000000000";

/// Traces of a real driver, which agents prefer.
const DRIVER: [&str; 2] = ["/proc/driver/nvidia/version", "/dev/nvidiactl"];

/// A GPU whose processes are the lines of the file `processes`.
struct PlayedDriver {
    folder: PathBuf,
}

impl PlayedDriver {
    fn new(folder: PathBuf) -> Self {
        fs::create_dir(&folder).unwrap();
        let (processes, program) = (folder.join("processes"), folder.join("nvidia-smi"));
        fs::write(&processes, "").unwrap();
        let row = "NVIDIA A100-SXM4-80GB, 81920, 6144, 75776, 00000000:00:1E.0, 400, 580.1, 0, 30, 60, 1000, 1000, 0";
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in\n*query-gpu=index*) echo '0, {GPU}, {row}';;\n\
             *query-gpu*) echo '{GPU}, 0, 0x0, [N/A]';;\n*compute-apps*) cat '{}';;\nesac\n",
            processes.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    /// Reports the memory in MiB of each process.
    fn report(&self, processes: &[(u32, u32)]) {
        let lines = processes.iter().map(|(pid, memory)| format!("{GPU}, {pid}, {memory}\n"));
        let unfinished = self.folder.join("unfinished");
        fs::write(&unfinished, lines.collect::<String>()).unwrap();
        fs::rename(unfinished, self.folder.join("processes")).unwrap();
    }
}

/// Process id that a job printed.
fn pid_of(cluster: &Cluster, id: i64) -> u32 {
    eventually("the job prints its process id", SOON, || cluster.logs(id).trim().parse().ok())
}

#[test]
fn a_job_without_gpus_that_uses_one_is_stopped_and_its_neighbour_keeps_running() {
    if DRIVER.iter().any(|sign| Path::new(sign).exists()) {
        skip!("needs a machine without an NVIDIA driver: the test plays `nvidia-smi`");
    }
    let mut cluster = Cluster::server(&[]);
    let driver = PlayedDriver::new(cluster.path("driver"));
    cluster.agent_with_driver("one", &driver.folder);
    cluster.wait_for_nodes(1);
    let script = "echo $$; exec sleep 300";
    let neighbour = cluster.submit(script, json!({"gpu_memory_required": 8192}));
    let culprit = cluster.submit(script, json!({"stop_grace_seconds": 1}));
    let (neighbour_pid, culprit_pid) = (pid_of(&cluster, neighbour), pid_of(&cluster, culprit));
    driver.report(&[(neighbour_pid, 4096), (culprit_pid, 2048)]);
    let job = cluster.wait_for_status(culprit, "failed");
    assert_eq!(job["end_reason"], "GpuMemoryExceeded", "{job:#}");
    let events = cluster.get(&format!("/gpu-workers/jobs/{culprit}/events")).ok();
    let warning = events.as_array().unwrap().iter().find(|event| event["kind"] == "Warning");
    let warning =
        warning.unwrap_or_else(|| panic!("no warning: {events:#}"))["message"].to_string();
    assert!(warning.contains("2048 MiB") && warning.contains(GPU), "{warning}");
    let job = cluster.job(neighbour);
    assert_eq!((&job["status"], &job["attempt"]), (&json!("running"), &json!(1)), "{job:#}");
    assert!(Path::new(&format!("/proc/{neighbour_pid}")).exists());
    assert!(!cluster.events(neighbour).contains(&"Warning".to_owned()));
}
