//! A PostgreSQL server of the campaign, which kills it. Other tests use the shared one.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::{SOON, eventually, free_port};

pub(super) struct PostgresServer {
    programs: PathBuf,
    folder: TempDir,
    port: u16,
    server: Child,
}

impl PostgresServer {
    /// Folder of the server programs; none without them, or without root to run them as another user.
    pub(super) fn programs() -> Option<PathBuf> {
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
        let mut folders: Vec<PathBuf> =
            versions.map(|version| version.path().join("bin")).collect();
        folders.sort();
        let root = rustix::process::geteuid().is_root();
        folders.pop().filter(|folder| root && folder.join("initdb").exists())
    }

    pub(super) fn start(programs: &Path) -> Self {
        let folder = tempfile::Builder::new().prefix("agentaflow-postgres-").tempdir().unwrap();
        let id = |option| {
            let output = Command::new("id").args([option, "postgres"]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).trim().parse::<u32>().unwrap()
        };
        chown(folder.path(), Some(id("-u")), Some(id("-g"))).unwrap();
        let made = as_postgres(&programs.join("initdb"))
            .args(["--username=agentaflow", "--auth=trust", "--no-sync", "--pgdata"])
            .arg(folder.path().join("data"))
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let port = free_port();
        let server = spawn(programs, folder.path(), port);
        let mut this = Self { programs: programs.to_owned(), folder, port, server };
        this.wait_until_ready();
        this
    }

    pub(super) fn url(&self) -> String {
        format!("postgres://agentaflow@127.0.0.1:{}/postgres", self.port)
    }

    /// Kills all processes of the server.
    pub(super) fn kill(&mut self) {
        let data = self.folder.path().join("data");
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let mine = entries.filter(|entry| {
            fs::read_link(entry.path().join("cwd")).is_ok_and(|folder| folder == data)
        });
        for entry in mine {
            let pid = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            // The process may have exited.
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
        self.server.wait().unwrap();
    }

    pub(super) fn start_again(&mut self) {
        self.server = spawn(&self.programs, self.folder.path(), self.port);
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        eventually("PostgreSQL answers", SOON, || {
            if self.server.try_wait().unwrap().is_some() {
                // Processes of its predecessor still use the shared memory.
                self.server = spawn(&self.programs, self.folder.path(), self.port);
            }
            let mut probe = Command::new(self.programs.join("pg_isready"));
            probe.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
            probe.status().unwrap().success().then_some(())
        });
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(programs: &Path, folder: &Path, port: u16) -> Child {
    let mut command = as_postgres(&programs.join("postgres"));
    command.arg("-D").arg(folder.join("data")).args(["-p", &port.to_string(), "-h", "127.0.0.1"]);
    command.args(["-c", "unix_socket_directories=", "-c", "max_connections=50"]);
    let log = fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap()
}

fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
    command.current_dir("/");
    command
}
