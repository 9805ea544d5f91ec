//! A control plane: its folder, its components, start and stop.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::binaries::Binaries;
use super::certificates::{self, CLIENTS, files};
use super::command_lines::{Layout, Ports};
use super::detached::Process;
use super::node;
use super::options::Options;
use crate::ports::free_port;
use crate::process;

/// Marks the folder of a control plane; contains the path of the programs.
const MARKER: &str = "agentaflow-kube";

/// Longest start of one component on a busy machine.
const START_TIMEOUT: Duration = Duration::from_mins(2);

/// A started control plane. Some components may have ended since.
pub(super) struct ControlPlane {
    dir: PathBuf,
    programs: PathBuf,
    components: Vec<Component>,
}

/// A program of the control plane.
pub(super) struct Component {
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) process: Process,
}

const FOLDER_GONE: &str = "the folder of the control plane is gone";

impl ControlPlane {
    /// Reads the control plane of a folder; `None` if the folder has none.
    pub(super) fn open(dir: &Path) -> Result<Option<Self>> {
        let Ok(programs) = fs::read_to_string(dir.join(MARKER)) else { return Ok(None) };
        let mut components = Vec::new();
        for entry in fs::read_dir(dir.join("components"))? {
            let entry = entry?;
            let text = fs::read_to_string(entry.path())?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let component = Component::parse(name, &text);
            components.push(
                component.with_context(|| format!("`{}` is damaged", entry.path().display()))?,
            );
        }
        // In the order of start.
        components.sort_by_key(|component| (component.process.started(), component.process.pid));
        Ok(Some(Self { dir: dir.to_owned(), programs: programs.trim().into(), components }))
    }

    pub(super) fn components(&self) -> &[Component] {
        &self.components
    }

    pub(super) fn is_complete(&self) -> bool {
        self.components.len() > 1
            && self.components.iter().all(|component| component.process.runs())
    }

    pub(super) fn programs(&self) -> &Path {
        &self.programs
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        kubeconfig_in(&self.dir)
    }

    pub(super) fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// URL of the API server.
    pub(super) fn server(&self) -> String {
        let is_server = |component: &&Component| component.name == "kube-apiserver";
        let server = self.components.iter().find(is_server);
        format!("https://127.0.0.1:{}", server.map_or(0, |server| server.port))
    }

    /// `kubectl` for this control plane, independent of the environment.
    pub(super) fn kubectl(&self) -> impl Fn() -> Command + use<> {
        let (program, kubeconfig) = (self.programs.join("kubectl"), self.kubeconfig());
        move || {
            let mut command = Command::new(&program);
            command.arg("--kubeconfig").arg(&kubeconfig).env_remove("KUBECONFIG");
            command
        }
    }

    /// Version reported by the API server.
    pub(super) fn version(&self) -> Result<String> {
        let output = self.kubectl()().arg("version").output().context("cannot start kubectl")?;
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = output.lines().find_map(|line| line.strip_prefix("Server Version: "));
        Ok(line.context("`kubectl version` prints no server version")?.to_owned())
    }
}

impl Component {
    /// `ok` or a problem, for the user.
    pub(super) fn health(&self, plane: &ControlPlane) -> &'static str {
        if !self.process.runs() {
            return "has ended";
        }
        let responds = match self.name.as_str() {
            "etcd" | "coredns" => is_ok(self.port, "/health"),
            "kwok" | "kubelet" => is_ok(self.port, "/healthz"),
            "containerd" => {
                UnixStream::connect(node::folder(&plane.dir).join("containerd.sock")).is_ok()
            }
            name => {
                let path = if name == "kube-apiserver" { "/readyz" } else { "/healthz" };
                let mut get = plane.kubectl()();
                get.arg(format!("--server=https://127.0.0.1:{}", self.port));
                get.args(["get", "--raw", path]);
                process::succeeds_within(&mut get, Duration::from_secs(10))
            }
        };
        if responds { "ok" } else { "does not respond" }
    }

    fn parse(name: String, text: &str) -> Option<Self> {
        let (port, process) = text.split_once(' ')?;
        Some(Self { name, port: port.parse().ok()?, process: Process::parse(process.trim())? })
    }
}

/// Kubeconfig of the administrator of the control plane in this folder.
pub(crate) fn kubeconfig_in(dir: &Path) -> PathBuf {
    dir.join("admin.kubeconfig")
}

/// Starts all components; a failed start stops the components started before.
pub(super) fn start(options: &Options, binaries: &Binaries) -> Result<ControlPlane> {
    let dir = &options.dir;
    fs::create_dir_all(dir).with_context(|| format!("cannot create `{}`", dir.display()))?;
    fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    fs::create_dir_all(dir.join("components"))?;
    fs::create_dir_all(dir.join("logs"))?;
    fs::write(dir.join(MARKER), binaries.folder.display().to_string())?;
    let layout = Layout { programs: &binaries.folder, dir, ports: free_ports(), options };
    certificates::create(&layout.certificates())?;
    for client in &CLIENTS {
        write_kubeconfig(&layout, client.name)?;
    }
    start_components(&layout).inspect_err(|_| {
        // The start error is the one to report; the logs stay.
        let _ = stop_components(dir);
    })?;
    ControlPlane::open(dir)?.context(FOLDER_GONE)
}

/// Stops all components and removes the folder; returns the number of components.
pub(super) fn remove(dir: &Path) -> Result<usize> {
    if !dir.exists() {
        return Ok(0);
    }
    let is_empty = fs::read_dir(dir)?.next().is_none();
    if !is_empty && !dir.join(MARKER).is_file() {
        bail!("`{}` is not the folder of a control plane; not removed", dir.display());
    }
    let components = stop_components(dir)?;
    node::clear(dir)?;
    fs::remove_dir_all(dir).with_context(|| format!("cannot remove `{}`", dir.display()))?;
    Ok(components)
}

fn stop_components(dir: &Path) -> Result<usize> {
    let Some(plane) = ControlPlane::open(dir)? else { return Ok(0) };
    for component in plane.components.iter().rev() {
        component.process.stop().with_context(|| format!("cannot stop {}", component.name))?;
    }
    Ok(plane.components.len())
}

/// Stops these components in this order and removes their records.
pub(super) fn stop_components_named(dir: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let Ok(process) = process_of(dir, name) else { continue };
        process.stop().with_context(|| format!("cannot stop {name}"))?;
        fs::remove_file(dir.join("components").join(name))?;
    }
    Ok(())
}

/// Process of a started component.
pub(super) fn process_of(dir: &Path, name: &str) -> Result<Process> {
    let plane = ControlPlane::open(dir)?.context(FOLDER_GONE)?;
    let component = plane.components.iter().find(|component| component.name == name);
    Ok(component.with_context(|| format!("{name} was not started"))?.process)
}

fn start_components(layout: &Layout<'_>) -> Result<()> {
    let ports = layout.ports;
    start_component(layout.dir, "etcd", ports.etcd, &layout.etcd())?;
    wait_for(layout.dir, "etcd")?;
    start_component(layout.dir, "kube-apiserver", ports.server, &layout.server())?;
    wait_for(layout.dir, "kube-apiserver")?;
    start_component(
        layout.dir,
        "kube-controller-manager",
        ports.controllers,
        &layout.controllers(),
    )?;
    if layout.options.scheduler {
        start_component(layout.dir, "kube-scheduler", ports.scheduler, &layout.scheduler())?;
    }
    start_component(layout.dir, "kwok", ports.kwok, &layout.kwok())?;
    wait_for(layout.dir, "kube-controller-manager")?;
    if layout.options.scheduler {
        wait_for(layout.dir, "kube-scheduler")?;
    }
    wait_for(layout.dir, "kwok")?;
    wait_for_accounts(layout)
}

pub(super) fn start_component(dir: &Path, name: &str, port: u16, command: &Command) -> Result<()> {
    let process =
        Process::spawn(command, &log(dir, name)).with_context(|| format!("cannot start {name}"))?;
    let record = format!("{port} {}", process.record());
    Ok(fs::write(dir.join("components").join(name), record)?)
}

pub(super) fn wait_for(dir: &Path, name: &str) -> Result<()> {
    let plane = ControlPlane::open(dir)?.context(FOLDER_GONE)?;
    let component = plane.components.iter().find(|component| component.name == name);
    let component = component.with_context(|| format!("{name} was not started"))?;
    let started = Instant::now();
    loop {
        match component.health(&plane) {
            "ok" => return Ok(()),
            _ if started.elapsed() < START_TIMEOUT && component.process.runs() => {
                thread::sleep(Duration::from_millis(100));
            }
            problem => bail!("{name} {problem}: {}", log_tail(&log(dir, name))),
        }
    }
}

/// Waits for the default service account: pods need it, and the controllers create it.
fn wait_for_accounts(layout: &Layout<'_>) -> Result<()> {
    let plane = ControlPlane::open(layout.dir)?.context(FOLDER_GONE)?;
    let started = Instant::now();
    let mut get = plane.kubectl()();
    get.args(["--namespace=default", "get", "serviceaccount", "default"]);
    while !process::succeeds_within(&mut get, Duration::from_secs(10)) {
        if started.elapsed() > START_TIMEOUT {
            let log = log(layout.dir, "kube-controller-manager");
            bail!("no default service account: {}", log_tail(&log));
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Writes JSON, which is valid YAML and needs no quoting rules.
fn write_kubeconfig(layout: &Layout<'_>, client: &str) -> Result<()> {
    let (certificate, key) = files(&layout.certificates(), client);
    let (authority, _) = files(&layout.certificates(), "ca");
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "agentaflow", "cluster": {
            "server": format!("https://127.0.0.1:{}", layout.ports.server),
            "certificate-authority": authority,
        }}],
        "users": [{"name": client, "user": {"client-certificate": certificate, "client-key": key}}],
        "contexts": [{"name": "agentaflow", "context": {"cluster": "agentaflow", "user": client}}],
        "current-context": "agentaflow",
    });
    Ok(fs::write(layout.kubeconfig(client), serde_json::to_vec_pretty(&config)?)?)
}

pub(super) fn log(dir: &Path, component: &str) -> PathBuf {
    dir.join("logs").join(format!("{component}.log"))
}

pub(super) fn log_tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(3)..].join(" / ");
    format!("{last} (more in {})", log.display())
}

fn free_ports() -> Ports {
    Ports {
        etcd: free_port(),
        etcd_peers: free_port(),
        server: free_port(),
        controllers: free_port(),
        scheduler: free_port(),
        kwok: free_port(),
    }
}

/// True if an HTTP server on the loopback responds with 200.
fn is_ok(port: u16, path: &str) -> bool {
    let get = || -> std::io::Result<bool> {
        let limit = Duration::from_secs(5);
        let mut stream =
            TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), limit)?;
        stream.set_read_timeout(Some(limit))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut response = Vec::new();
        stream.take(64).read_to_end(&mut response)?;
        let line = String::from_utf8_lossy(&response);
        Ok(line.split(' ').nth(1) == Some("200"))
    };
    get().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_the_marker_is_never_removed() {
        let folder =
            std::env::temp_dir().join(format!("agentaflow-foreign-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("letters"), "dear").unwrap();
        let error = remove(&folder).unwrap_err();
        assert!(error.to_string().contains("not removed"), "{error}");
        assert!(folder.join("letters").is_file());
        fs::remove_file(folder.join("letters")).unwrap();
        assert_eq!(remove(&folder).unwrap(), 0);
        assert!(!folder.exists());
    }
}
