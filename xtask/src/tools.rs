//! Finds the tools that the checks need, installs what is missing and keeps it for the next time.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{process, repo};

/// Programs the checks call and the Debian packages that hold them.
const DEBIAN_PACKAGES: [(&str, &str); 7] = [
    ("containerd", "containerd"),
    ("curl", "curl"),
    ("dockerd", "docker.io"),
    ("git", "git"),
    ("ip", "iproute2"),
    ("openssl", "openssl"),
    ("runc", "runc"),
];

/// Where Debian puts the programs of a PostgreSQL server, and the package that holds them.
const POSTGRES: (&str, &str) = ("/usr/lib/postgresql/15/bin", "postgresql-15");

/// Runs in an image without any library.
pub(crate) const STATIC_BUSYBOX: &str = "/bin/busybox";

/// Changing this installs the new version beside the old one.
const CARGO_DENY: &str = "0.20.2";

/// Makes sure that a part of the Rust toolchain is there: `rustfmt` or `clippy`.
pub(crate) fn ensure_component(component: &str) -> Result<()> {
    let subcommand = component.trim_start_matches("rust");
    if answers(&mut repo::cargo(&[subcommand, "--version"])) {
        return Ok(());
    }
    println!("   installing the Rust component {component}");
    let advice = format!("`rustup component add {component}` installs it");
    let mut rustup = Command::new("rustup");
    rustup.args(["component", "add", component]);
    install(&mut rustup).with_context(|| format!("{component} is missing; {advice}"))
}

/// Makes sure that a program of [`DEBIAN_PACKAGES`] is there.
pub(crate) fn ensure_program(program: &str) -> Result<()> {
    if on_path(program).is_some() {
        return Ok(());
    }
    let known = DEBIAN_PACKAGES.iter().find(|(name, _)| *name == program);
    let (_, package) = known.with_context(|| format!("no package is known for `{program}`"))?;
    install_package(&format!("`{program}`"), package)
}

/// Makes sure that there is a PostgreSQL server; gives the folder of its programs.
pub(crate) fn ensure_postgres() -> Result<PathBuf> {
    let (folder, package) = POSTGRES;
    let has_all = |at: &PathBuf| {
        ["initdb", "pg_isready", "postgres"].iter().all(|name| is_executable(&at.join(name)))
    };
    let usual = || Some(PathBuf::from(folder)).filter(has_all);
    let elsewhere = || Some(on_path("postgres")?.parent()?.to_owned()).filter(has_all);
    if let Some(programs) = usual().or_else(elsewhere) {
        return Ok(programs);
    }
    install_package("PostgreSQL", package)?;
    usual().with_context(|| format!("`{package}` is installed, but `{folder}` is not there"))
}

/// Makes sure that there is a busybox that needs no library.
pub(crate) fn ensure_static_busybox() -> Result<()> {
    let is_there = is_executable(Path::new(STATIC_BUSYBOX));
    if is_there && !answers(Command::new("ldd").arg(STATIC_BUSYBOX)) {
        return Ok(());
    }
    install_package("a busybox that needs no library", "busybox-static")
}

/// Installs a Debian package where that is possible; elsewhere the error says what to install.
pub(crate) fn install_package(what: &str, package: &str) -> Result<()> {
    let missing =
        format!("{what} is missing; `sudo apt-get install {package}` installs it on Debian");
    if !is_root() || on_path("apt-get").is_none() {
        bail!(missing);
    }
    println!("   installing the Debian package {package}");
    let install = ["install", "-y", "--no-install-recommends", package];
    apt_get(&["update"]).and_then(|()| apt_get(&install)).context(missing)
}

/// The path of cargo-deny: the one on `PATH`, or our own, built once into the cache.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    if let Some(found) = on_path("cargo-deny") {
        return Ok(found);
    }
    let home = cache("tools")?.join(format!("cargo-deny-{CARGO_DENY}"));
    let program = home.join("bin/cargo-deny");
    if program.is_file() {
        return Ok(program);
    }
    println!("   building cargo-deny {CARGO_DENY}, once; this takes a few minutes");
    let mut cargo = repo::cargo(&["install", "--locked", "cargo-deny", "--version", CARGO_DENY]);
    cargo.arg("--root").arg(&home);
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

/// Where things of this kind are kept between runs and checkouts.
pub(crate) fn cache(kind: &str) -> Result<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let usual = || absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let base = absolute("AGENTAFLOW_CACHE").or_else(|| Some(usual()?.join("agentaflow")));
    let base =
        base.context("none of AGENTAFLOW_CACHE, XDG_CACHE_HOME and HOME says where to keep tools")?;
    Ok(base.join(kind))
}

/// True when the program can be called by its name.
pub(crate) fn is_on_path(program: &str) -> bool {
    on_path(program).is_some()
}

fn on_path(program: &str) -> Option<PathBuf> {
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
