//! Finds the tools of the checks and installs missing ones into a cache.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::output::out;
use crate::{process, repo};

/// Programs and their Debian packages.
const DEBIAN_PACKAGES: [(&str, &str); 13] = [
    ("chromium", "chromium"),
    ("containerd", "containerd"),
    ("curl", "curl"),
    ("dockerd", "docker.io"),
    ("git", "git"),
    ("ip", "iproute2"),
    ("ipset", "ipset"),
    ("iptables", "iptables"),
    ("openssl", "openssl"),
    ("prometheus-alertmanager", "prometheus-alertmanager"),
    ("promtool", "prometheus"),
    ("runc", "runc"),
    ("script", "bsdutils"),
];

/// Debian keeps the PostgreSQL server programs in `VERSION/bin` here.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";

/// Statically linked, so that an image needs no library.
pub(crate) const STATIC_BUSYBOX: &str = "/bin/busybox";

/// A changed version is installed beside the old one.
const CARGO_DENY: &str = "0.20.2";

/// Installs `rustfmt` or `clippy` if missing.
pub(crate) fn ensure_component(component: &str) -> Result<()> {
    let subcommand = component.trim_start_matches("rust");
    if answers(&mut repo::cargo(&[subcommand, "--version"])) {
        return Ok(());
    }
    out!("   installing the Rust component {component}");
    let advice = format!("`rustup component add {component}` installs it");
    let mut rustup = Command::new("rustup");
    rustup.args(["component", "add", component]);
    install(&mut rustup).with_context(|| format!("{component} is missing; {advice}"))
}

/// Installs a program of [`DEBIAN_PACKAGES`] if missing.
pub(crate) fn ensure_program(program: &str) -> Result<()> {
    if on_path(program).is_some() {
        return Ok(());
    }
    install_package(&format!("`{program}`"), package_of(program)?)
}

/// Debian package of a program.
pub(crate) fn package_of(program: &str) -> Result<&'static str> {
    let known = DEBIAN_PACKAGES.iter().find(|(name, _)| *name == program);
    let (_, package) = known.with_context(|| format!("no package is known for `{program}`"))?;
    Ok(package)
}

/// Installs libfaketime, which sets the wall clock of a program, if missing.
pub(crate) fn ensure_faketime() -> Result<()> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().filter_map(Result::ok);
    let mut libraries = folders.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    if libraries.any(|library| library.is_file()) {
        return Ok(());
    }
    install_package("libfaketime", "libfaketime")
}

/// Installs PostgreSQL if missing; returns the folder of its programs.
pub(crate) fn ensure_postgres() -> Result<PathBuf> {
    if let Some(programs) = postgres() {
        return Ok(programs);
    }
    install_package("PostgreSQL", "postgresql")?;
    postgres().with_context(|| format!("no server programs in `{POSTGRES_VERSIONS}/*/bin`"))
}

/// Folder of the newest PostgreSQL server.
fn postgres() -> Option<PathBuf> {
    let is_complete = |folder: &PathBuf| {
        ["initdb", "pg_isready", "postgres"].iter().all(|name| is_executable(&folder.join(name)))
    };
    let versions = fs::read_dir(POSTGRES_VERSIONS).into_iter().flatten().filter_map(Result::ok);
    let mut folders: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    folders.sort_unstable();
    folders.extend(on_path("postgres").and_then(|program| Some(program.parent()?.to_owned())));
    folders.into_iter().rfind(is_complete)
}

/// Installs a statically linked busybox if missing.
pub(crate) fn ensure_static_busybox() -> Result<()> {
    let exists = is_executable(Path::new(STATIC_BUSYBOX));
    if exists && !answers(Command::new("ldd").arg(STATIC_BUSYBOX)) {
        return Ok(());
    }
    install_package("a static busybox", "busybox-static")
}

/// Installs a Debian package as root; otherwise the error names the command.
pub(crate) fn install_package(what: &str, package: &str) -> Result<()> {
    let missing =
        format!("{what} is missing; `sudo apt-get install {package}` installs it on Debian");
    if !is_root() || on_path("apt-get").is_none() {
        bail!(missing);
    }
    out!("   installing the Debian package {package}");
    let install = ["install", "-y", "--no-install-recommends", package];
    apt_get(&["update"]).and_then(|()| apt_get(&install)).context(missing)
}

/// Path of cargo-deny: from `PATH`, or built once into the cache.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    if let Some(found) = on_path("cargo-deny") {
        return Ok(found);
    }
    let home = cache("tools")?.join(format!("cargo-deny-{CARGO_DENY}"));
    let program = home.join("bin/cargo-deny");
    if program.is_file() {
        return Ok(program);
    }
    out!("   building cargo-deny {CARGO_DENY}, once; this takes a few minutes");
    let mut cargo = repo::cargo(&["install", "--locked", "cargo-deny", "--version", CARGO_DENY]);
    cargo.arg("--root").arg(&home);
    // Its own release profile links for minutes to save seconds here.
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    install(&mut cargo).context(
        "cargo-deny is missing and could not be built; `cargo install --locked cargo-deny` installs it",
    )?;
    Ok(program)
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    install(&mut command)
}

fn install(command: &mut Command) -> Result<()> {
    let finished = process::run(command)?;
    if finished.succeeded() {
        return Ok(());
    }
    finished.show_output();
    bail!("`{}` failed", process::display(command))
}

/// Cache folder that survives runs and is shared by checkouts.
pub(crate) fn cache(kind: &str) -> Result<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let usual = || absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let base = absolute("AGENTAFLOW_CACHE").or_else(|| Some(usual()?.join("agentaflow")));
    let base =
        base.context("set AGENTAFLOW_CACHE, XDG_CACHE_HOME or HOME to place the tool cache")?;
    Ok(base.join(kind))
}

pub(crate) fn is_on_path(program: &str) -> bool {
    on_path(program).is_some()
}

pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn answers(command: &mut Command) -> bool {
    let silent = command.stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}
