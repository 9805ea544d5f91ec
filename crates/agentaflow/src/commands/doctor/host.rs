//! This machine: driver, containers, limits, ports, disk.

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
use crate::failure::numberless;

/// Less free space than this is worth a word, in MiB.
const LITTLE_SPACE: u64 = 5 * 1024;

/// `server` is the port of a server of ours that runs here.
pub(super) fn checks(server: Option<u16>) -> Vec<Check> {
    let mut checks = driver();
    checks.extend(docker());
    checks.push(cgroups());
    let port = |number: u16, whose| match server {
        Some(own) if own == number => Check::ok(port_name(number), "our server has it"),
        _ => port(number, whose),
    };
    checks.extend([port(8000, "the server"), port(8080, "the agent")]);
    checks.extend(disk());
    checks
}

/// GPU not visible: no device, no driver, or a driver that its library does not fit.
fn driver() -> Vec<Check> {
    let devices = Path::new("/dev/nvidiactl").exists();
    let module = fs::read_to_string("/proc/driver/nvidia/version").ok();
    match agentaflow_gpu::NvmlSource::open() {
        Ok(source) => match source.devices() {
            Ok(gpus) if gpus.is_empty() => vec![Check::warn(
                "gpu",
                "the driver is there and finds no GPU",
                "`lspci | grep -i nvidia` shows whether one is plugged in; `dmesg | grep -i nvrm` says what the driver \
                 thinks of it",
            )],
            Ok(gpus) => {
                let names: Vec<_> = gpus.iter().map(|gpu| gpu.name.clone()).collect();
                vec![Check::ok("gpu", format!("{} by NVML: {}", gpus.len(), names.join(", ")))]
            }
            Err(error) => vec![Check::fail(
                "gpu",
                error.to_string(),
                "reset it: `nvidia-smi --gpu-reset`, or reboot",
            )],
        },
        Err(_) if !devices && module.is_none() => vec![Check::skip(
            "gpu",
            "no NVIDIA driver here; `agentaflow up --sim-gpus 2` and remote servers work all the same",
        )],
        Err(error) => vec![Check::fail(
            "gpu",
            format!("there is a driver, and NVML does not answer: {error}"),
            "the library and the kernel module must be of the same version: reboot after an update of the driver, or \
             reinstall it (`nvidia-smi` says which versions differ)",
        )],
    }
}

fn docker() -> Vec<Check> {
    let socket = match std::env::var("DOCKER_HOST") {
        Ok(host) if host.starts_with("unix://") => host.trim_start_matches("unix://").to_owned(),
        Ok(host) => {
            return vec![Check::skip("docker", format!("DOCKER_HOST is {host}: not looked at"))];
        }
        Err(_) => "/var/run/docker.sock".to_owned(),
    };
    if !Path::new(&socket).exists() {
        return vec![Check::skip(
            "docker",
            format!("no engine at {socket}: jobs can run as plain processes, not in containers"),
        )];
    }
    let info = match ask(&socket, "/info") {
        Ok(info) => info,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return vec![Check::fail(
                "docker",
                format!("you may not use {socket}"),
                "add yourself to the group `docker` (`sudo usermod -aG docker $USER`, then log in again)",
            )];
        }
        Err(error) => {
            let fix = "start it: `sudo systemctl start docker`";
            return vec![Check::fail(
                "docker",
                format!("{socket} does not answer: {}", numberless(&error.to_string())),
                fix,
            )];
        }
    };
    let version = info["ServerVersion"].as_str().unwrap_or("of an unknown version");
    let mut checks = vec![Check::ok("docker", format!("engine {version}"))];
    let runtime = info["Runtimes"].get("nvidia").is_some();
    let cdi = Path::new("/etc/cdi/nvidia.yaml").exists()
        || Path::new("/var/run/cdi/nvidia.yaml").exists();
    if Path::new("/dev/nvidiactl").exists() && !runtime && !cdi {
        checks.push(Check::fail(
            "gpu runtime",
            "Docker cannot give GPUs to containers",
            "install the NVIDIA container toolkit, then `sudo nvidia-ctk runtime configure --runtime=docker` and \
             restart Docker",
        ));
    } else if runtime || cdi {
        checks.push(Check::ok("gpu runtime", "Docker can give GPUs to containers"));
    }
    checks
}

/// Asks the engine over its socket.
fn ask(socket: &str, path: &str) -> std::io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(8 << 20).read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let json = body.find('{').map_or("", |start| &body[start..]);
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
    values
        .next()
        .and_then(Result::ok)
        .ok_or_else(|| std::io::Error::other("an answer that is not JSON"))
}

fn cgroups() -> Check {
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let has = |name: &str| controllers.split_whitespace().any(|word| word == name);
    if has("memory") && has("cpu") {
        return Check::ok("cgroups", "version 2 with memory and cpu");
    }
    Check::warn(
        "cgroups",
        "no control groups of version 2 with memory and cpu",
        "plain processes then run without limits; boot with `systemd.unified_cgroup_hierarchy=1`, or run jobs in \
         containers",
    )
}

fn port_name(number: u16) -> &'static str {
    if number == 8000 { "port 8000" } else { "port 8080" }
}

fn port(number: u16, whose: &str) -> Check {
    let name = port_name(number);
    match TcpListener::bind(("127.0.0.1", number)) {
        Ok(_) => Check::ok(name, format!("free for {whose}")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Check::warn(
            name,
            "in use",
            format!(
                "if that is not {whose} of agentaflow, give another address with --listen; `ss -ltnp` says who it is"
            ),
        ),
        Err(error) => Check::warn(name, error.to_string(), "give another address with --listen"),
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
    Some(if free < LITTLE_SPACE {
        Check::warn(
            "disk",
            found,
            "make room: logs and the database live there, and a full disk stops new jobs",
        )
    } else {
        Check::ok("disk", found)
    })
}
