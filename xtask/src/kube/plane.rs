//! One control plane: its folder, its parts, its beginning and its end.

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
use super::node;
use super::options::Options;
use super::parts::{Layout, Ports};
use super::running::Process;
use crate::ports::free_port;
use crate::process;

/// Shows that a folder is ours, and says where the programs lie.
const MARK: &str = "agentaflow-kube";

/// How long a part may take until it can be used, on a machine that does much else.
const PATIENCE: Duration = Duration::from_mins(2);

/// A control plane that was started, whether all of it still runs or not.
pub(super) struct Plane {
    dir: PathBuf,
    programs: PathBuf,
    parts: Vec<Part>,
}

/// A program of the control plane.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) process: Process,
}

impl Plane {
    /// Finds the control plane of a folder.
    pub(super) fn open(dir: &Path) -> Result<Option<Self>> {
        let Ok(programs) = fs::read_to_string(dir.join(MARK)) else { return Ok(None) };
        let mut parts = Vec::new();
        for entry in fs::read_dir(dir.join("parts"))? {
            let entry = entry?;
            let text = fs::read_to_string(entry.path())?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let part = Part::parse(name, &text);
            parts.push(part.with_context(|| format!("`{}` is damaged", entry.path().display()))?);
        }
        // In the order of their start, which their names do not tell.
        parts.sort_by_key(|part| (part.process.started(), part.process.pid));
        Ok(Some(Self { dir: dir.to_owned(), programs: programs.trim().into(), parts }))
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub(super) fn runs_whole(&self) -> bool {
        self.parts.len() > 1 && self.parts.iter().all(|part| part.process.runs())
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

    /// The address of the API server.
    pub(super) fn server(&self) -> String {
        let server = self.parts.iter().find(|part| part.name == "kube-apiserver");
        format!("https://127.0.0.1:{}", server.map_or(0, |part| part.port))
    }

    /// `kubectl` for this control plane, whatever the environment says.
    pub(super) fn kubectl(&self) -> impl Fn() -> Command + use<> {
        let (program, kubeconfig) = (self.programs.join("kubectl"), self.kubeconfig());
        move || {
            let mut command = Command::new(&program);
            command.arg("--kubeconfig").arg(&kubeconfig).env_remove("KUBECONFIG");
            command
        }
    }

    /// Of the API server, as it says itself.
    pub(super) fn version(&self) -> Result<String> {
        let output = self.kubectl()().arg("version").output().context("cannot start kubectl")?;
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = output.lines().find_map(|line| line.strip_prefix("Server Version: "));
        Ok(line.context("the API server does not tell its version")?.to_owned())
    }
}

impl Part {
    /// `ok`, or what is wrong.
    pub(super) fn health(&self, plane: &Plane) -> &'static str {
        if !self.process.runs() {
            return "has ended";
        }
        let answers = match self.name.as_str() {
            "etcd" => says_ok(self.port, "/health"),
            "kwok" | "kubelet" => says_ok(self.port, "/healthz"),
            "containerd" => {
                UnixStream::connect(node::folder(&plane.dir).join("containerd.sock")).is_ok()
            }
            name => {
                let path = if name == "kube-apiserver" { "/readyz" } else { "/healthz" };
                let mut ask = plane.kubectl()();
                ask.arg(format!("--server=https://127.0.0.1:{}", self.port));
                ask.args(["get", "--raw", path]);
                process::succeeds_within(&mut ask, Duration::from_secs(10))
            }
        };
        if answers { "ok" } else { "does not answer" }
    }

    fn parse(name: String, text: &str) -> Option<Self> {
        let (port, process) = text.split_once(' ')?;
        Some(Self { name, port: port.parse().ok()?, process: Process::parse(process.trim())? })
    }
}

/// The file with which an administrator reaches the control plane of a folder.
pub(crate) fn kubeconfig_in(dir: &Path) -> PathBuf {
    dir.join("admin.kubeconfig")
}

/// Starts everything; when one part does not start, those before it are stopped again.
pub(super) fn start(options: &Options, binaries: &Binaries) -> Result<Plane> {
    let dir = &options.dir;
    fs::create_dir_all(dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
    fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    fs::create_dir_all(dir.join("parts"))?;
    fs::create_dir_all(dir.join("logs"))?;
    fs::write(dir.join(MARK), binaries.folder.display().to_string())?;
    let layout = Layout { programs: &binaries.folder, dir, ports: free_ports(), options };
    certificates::make(&layout.certificates())?;
    for client in &CLIENTS {
        write_kubeconfig(&layout, client.name)?;
    }
    start_parts(&layout).inspect_err(|_| {
        // The error that matters is the first one; the logs stay for whoever looks for its reason.
        let _ = stop_parts(dir);
    })?;
    Plane::open(dir)?.context("it vanished")
}

/// Stops what runs and removes the folder; gives the number of parts that were there.
pub(super) fn remove(dir: &Path) -> Result<usize> {
    if !dir.exists() {
        return Ok(0);
    }
    let is_empty = fs::read_dir(dir)?.next().is_none();
    if !is_empty && !dir.join(MARK).is_file() {
        bail!("`{}` is not the folder of a control plane: it is left alone", dir.display());
    }
    let parts = stop_parts(dir)?;
    node::clear(dir)?;
    fs::remove_dir_all(dir).with_context(|| format!("cannot remove `{}`", dir.display()))?;
    Ok(parts)
}

fn stop_parts(dir: &Path) -> Result<usize> {
    let Some(plane) = Plane::open(dir)? else { return Ok(0) };
    for part in plane.parts.iter().rev() {
        part.process.stop().with_context(|| format!("cannot stop {}", part.name))?;
    }
    Ok(plane.parts.len())
}

/// Stops these parts alone, in this order, and forgets them.
pub(super) fn stop_parts_named(dir: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let Ok(process) = process_of(dir, name) else { continue };
        process.stop().with_context(|| format!("cannot stop {name}"))?;
        fs::remove_file(dir.join("parts").join(name))?;
    }
    Ok(())
}

/// The process of a part that was started.
pub(super) fn process_of(dir: &Path, name: &str) -> Result<Process> {
    let plane = Plane::open(dir)?.context("its folder vanished")?;
    let part = plane.parts.iter().find(|part| part.name == name);
    Ok(part.with_context(|| format!("{name} was not started"))?.process)
}

fn start_parts(layout: &Layout<'_>) -> Result<()> {
    let ports = layout.ports;
    start_part(layout.dir, "etcd", ports.etcd, &layout.etcd())?;
    wait_for(layout.dir, "etcd")?;
    start_part(layout.dir, "kube-apiserver", ports.server, &layout.server())?;
    wait_for(layout.dir, "kube-apiserver")?;
    start_part(layout.dir, "kube-controller-manager", ports.controllers, &layout.controllers())?;
    if layout.options.scheduler {
        start_part(layout.dir, "kube-scheduler", ports.scheduler, &layout.scheduler())?;
    }
    start_part(layout.dir, "kwok", ports.kwok, &layout.kwok())?;
    wait_for(layout.dir, "kube-controller-manager")?;
    if layout.options.scheduler {
        wait_for(layout.dir, "kube-scheduler")?;
    }
    wait_for(layout.dir, "kwok")?;
    wait_for_accounts(layout)
}

pub(super) fn start_part(dir: &Path, name: &str, port: u16, command: &Command) -> Result<()> {
    let process =
        Process::spawn(command, &log(dir, name)).with_context(|| format!("cannot start {name}"))?;
    let record = format!("{port} {}", process.record());
    Ok(fs::write(dir.join("parts").join(name), record)?)
}

pub(super) fn wait_for(dir: &Path, name: &str) -> Result<()> {
    let plane = Plane::open(dir)?.context("its folder vanished")?;
    let part = plane.parts.iter().find(|part| part.name == name).context("it was not started")?;
    let started = Instant::now();
    loop {
        match part.health(&plane) {
            "ok" => return Ok(()),
            _ if started.elapsed() < PATIENCE && part.process.runs() => {
                thread::sleep(Duration::from_millis(100));
            }
            problem => bail!("{name} {problem}: {}", last_words(&log(dir, name))),
        }
    }
}

/// Pods can be created once there is an account for them: that shows that the controllers work.
fn wait_for_accounts(layout: &Layout<'_>) -> Result<()> {
    let plane = Plane::open(layout.dir)?.context("its folder vanished")?;
    let started = Instant::now();
    let mut ask = plane.kubectl()();
    ask.args(["--namespace=default", "get", "serviceaccount", "default"]);
    while !process::succeeds_within(&mut ask, Duration::from_secs(10)) {
        if started.elapsed() > PATIENCE {
            let log = log(layout.dir, "kube-controller-manager");
            bail!("the controllers make no accounts: {}", last_words(&log));
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// JSON is YAML too, and needs no care with quotes.
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

pub(super) fn log(dir: &Path, part: &str) -> PathBuf {
    dir.join("logs").join(format!("{part}.log"))
}

pub(super) fn last_words(log: &Path) -> String {
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

/// True when a plain HTTP server on the loopback answers with 200.
fn says_ok(port: u16, path: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let limit = Duration::from_secs(5);
        let mut stream =
            TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), limit)?;
        stream.set_read_timeout(Some(limit))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.take(64).read_to_end(&mut answer)?;
        let line = String::from_utf8_lossy(&answer);
        Ok(line.split(' ').nth(1) == Some("200"))
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_ours_is_never_removed() {
        let folder =
            std::env::temp_dir().join(format!("agentaflow-foreign-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("letters"), "dear").unwrap();
        let error = remove(&folder).unwrap_err();
        assert!(error.to_string().contains("left alone"), "{error}");
        assert!(folder.join("letters").is_file());
        fs::remove_file(folder.join("letters")).unwrap();
        assert_eq!(remove(&folder).unwrap(), 0);
        assert!(!folder.exists());
    }
}
