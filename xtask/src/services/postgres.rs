//! PostgreSQL on a free port. The server refuses to run as root, so root starts it as an unprivileged user.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::daemon::{self, Daemon};
use super::{RunningService, folder};
use crate::ports::free_port;
use crate::{process, tools};

/// Unprivileged users of Debian; the package creates the first.
const USERS: [&str; 2] = ["postgres", "nobody"];

pub(super) fn start() -> Result<RunningService> {
    let programs = tools::ensure_postgres()?;
    let user = if tools::is_root() { Some(User::find()?) } else { None };
    let folder = folder("postgres")?;
    if let Some(user) = &user {
        chown(&folder, Some(user.id), Some(user.group))?;
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
    let data = folder.join("data");
    daemon::prepare(&mut initdb(&programs, user.as_ref(), &data))
        .inspect_err(|_| drop(fs::remove_dir_all(&folder)))?;
    let port = free_port();
    let server = server(&programs, user.as_ref(), &data, port);
    let is_ready = || {
        let mut probe = Command::new(programs.join("pg_isready"));
        probe.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
        process::succeeds_within(&mut probe, Duration::from_secs(5))
    };
    // INT is a fast shutdown: the server disconnects its clients.
    let daemon = Daemon::start(&server, "INT", folder)?.until(is_ready)?;
    let address = format!("postgres://agentaflow@127.0.0.1:{port}/postgres");
    Ok(RunningService { address, more_variables: Vec::new(), daemon: Some(daemon) })
}

fn initdb(programs: &Path, user: Option<&User>, data: &Path) -> Command {
    let mut command = as_user(user, &programs.join("initdb"));
    command.args(["--username=agentaflow", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
    command.args(["--no-sync", "--pgdata"]).arg(data);
    command
}

fn server(programs: &Path, user: Option<&User>, data: &Path, port: u16) -> Command {
    let mut command = as_user(user, &programs.join("postgres"));
    command.arg("-D").arg(data).args(["-p", &port.to_string(), "-h", "127.0.0.1"]);
    command.args(["-c", "unix_socket_directories=", "-c", "max_connections=200"]);
    command
}

struct User {
    id: u32,
    group: u32,
}

impl User {
    fn find() -> Result<Self> {
        let number = |option: &str, name: &str| -> Option<u32> {
            let output = Command::new("id").args([option, name]).output().ok()?;
            String::from_utf8_lossy(&output.stdout).trim().parse().ok()
        };
        let known =
            |name: &&str| Some(Self { id: number("-u", name)?, group: number("-g", name)? });
        let found = USERS.iter().find_map(known);
        found.context(
            "PostgreSQL must not run as root, and the users `postgres` and `nobody` do not exist",
        )
    }
}

fn as_user(user: Option<&User>, program: &PathBuf) -> Command {
    let Some(user) = user else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={}", user.id)).arg(format!("--regid={}", user.group));
    command.args(["--clear-groups", "--"]).arg(program);
    command
}
