//! Checks of this machine: driver, Docker, cgroups, ports, disk.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use agentaflow_console::format;
use agentaflow_gpu::GpuSource as _;
use serde_json::Value;

use super::Check;
use crate::context;
use crate::failure::without_os_code;

/// Free space in MiB below which the check warns.
const MIN_FREE_MIB: u64 = 5 * 1024;

/// `server` is the port of a local agentaflow server.
pub(super) fn checks(server: Option<u16>) -> Vec<Check> {
    let mut checks = driver();
    checks.extend(docker());
    checks.push(cgroups());
    let port = |number: u16, user| match server {
        Some(own) if own == number => Check::ok(port_name(number), "used by the agentaflow server"),
        _ => port(number, user),
    };
    checks.extend([port(8000, "the server"), port(8080, "the agent")]);
    checks.extend(disk());
    checks
}

/// Distinguishes a missing driver, a missing device, and a version mismatch of driver and library.
fn driver() -> Vec<Check> {
    let devices = Path::new("/dev/nvidiactl").exists();
    let module = fs::read_to_string("/proc/driver/nvidia/version").ok();
    match agentaflow_gpu::NvmlSource::open() {
        Ok(source) => match source.devices() {
            Ok(gpus) if gpus.is_empty() => vec![Check::warn(
                "gpu",
                "driver installed, no GPU found",
                "run `lspci | grep -i nvidia` to list devices, and `dmesg | grep -i nvrm` for driver messages",
            )],
            Ok(gpus) => {
                let names: Vec<_> = gpus.iter().map(|gpu| gpu.name.clone()).collect();
                vec![Check::ok(
                    "gpu",
                    format!("{} found by NVML: {}", gpus.len(), names.join(", ")),
                )]
            }
            Err(error) => vec![Check::fail(
                "gpu",
                error.to_string(),
                "run `nvidia-smi --gpu-reset`, or reboot",
            )],
        },
        Err(_) if !devices && module.is_none() => vec![Check::skip(
            "gpu",
            "no NVIDIA driver; simulated GPUs (`agentaflow up --sim-gpus 2`) and remote servers work without one",
        )],
        Err(error) => vec![Check::fail(
            "gpu",
            format!("NVML failed: {error}"),
            "driver library and kernel module must have the same version: reboot after a driver update, or reinstall \
             the driver (`nvidia-smi` shows both versions)",
        )],
    }
}

fn docker() -> Vec<Check> {
    let socket = match std::env::var("DOCKER_HOST") {
        Ok(host) if host.starts_with("unix://") => host.trim_start_matches("unix://").to_owned(),
        Ok(host) => {
            return vec![Check::skip("docker", format!("not checked: DOCKER_HOST is {host}"))];
        }
        Err(_) => "/var/run/docker.sock".to_owned(),
    };
    if !Path::new(&socket).exists() {
        return vec![Check::skip(
            "docker",
            format!("no Docker at {socket}: jobs can run as processes, not in containers"),
        )];
    }
    let info = match docker_get(&socket, "/info") {
        Ok(info) => info,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return vec![Check::fail(
                "docker",
                format!("permission denied: {socket}"),
                "run `sudo usermod -aG docker $USER` and log in again",
            )];
        }
        Err(error) => {
            let fix = "run `sudo systemctl start docker`";
            return vec![Check::fail(
                "docker",
                format!("no response from {socket}: {}", without_os_code(&error.to_string())),
                fix,
            )];
        }
    };
    let version = info["ServerVersion"].as_str().unwrap_or("of unknown version");
    let mut checks = vec![Check::ok("docker", format!("Docker {version}"))];
    let runtime = info["Runtimes"].get("nvidia").is_some();
    let cdi = Path::new("/etc/cdi/nvidia.yaml").exists()
        || Path::new("/var/run/cdi/nvidia.yaml").exists();
    if Path::new("/dev/nvidiactl").exists() && !runtime && !cdi {
        checks.push(Check::fail(
            "gpu runtime",
            "Docker has no NVIDIA runtime",
            "install the NVIDIA container toolkit, run `sudo nvidia-ctk runtime configure --runtime=docker`, and \
             restart Docker",
        ));
    } else if runtime || cdi {
        checks.push(Check::ok("gpu runtime", "NVIDIA runtime available"));
    }
    checks
}

/// Sends a request to the Docker socket.
fn docker_get(socket: &str, path: &str) -> std::io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n")?;
    let mut response = Vec::new();
    stream.take(8 << 20).read_to_end(&mut response)?;
    let text = String::from_utf8_lossy(&response);
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let json = body.find('{').map_or("", |start| &body[start..]);
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
    values.next().and_then(Result::ok).ok_or_else(|| std::io::Error::other("response is not JSON"))
}

fn cgroups() -> Check {
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let has = |name: &str| controllers.split_whitespace().any(|word| word == name);
    if has("memory") && has("cpu") {
        return Check::ok("cgroups", "cgroup v2 with memory and cpu controllers");
    }
    Check::warn(
        "cgroups",
        "no cgroup v2 with memory and cpu controllers",
        "processes run without limits; boot with `systemd.unified_cgroup_hierarchy=1`, or run jobs in containers",
    )
}

fn port_name(number: u16) -> &'static str {
    if number == 8000 { "port 8000" } else { "port 8080" }
}

fn port(number: u16, user: &str) -> Check {
    let name = port_name(number);
    match TcpListener::bind(("127.0.0.1", number)) {
        Ok(_) => Check::ok(name, format!("free for {user}")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Check::warn(
            name,
            "in use",
            format!(
                "unless this is {user} of agentaflow, use another address with --listen; run `ss -ltnp` to find the process"
            ),
        ),
        Err(error) => Check::warn(name, error.to_string(), "use another address with --listen"),
    }
}

fn disk() -> Option<Check> {
    let mut dir = context::default_data_dir().ok()?;
    while !dir.exists() {
        dir = dir.parent()?.to_owned();
    }
    let space = rustix::fs::statvfs(&dir).ok()?;
    let free = space.f_bavail.saturating_mul(space.f_frsize) >> 20;
    let found = format!("{} free at {}", format::memory(free), dir.display());
    Some(if free < MIN_FREE_MIB {
        Check::warn("disk", found, "free disk space: a full disk prevents new jobs")
    } else {
        Check::ok("disk", found)
    })
}
