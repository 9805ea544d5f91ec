//! Processes that a test run left running.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::repo;

/// Environment variable that marks all processes of a test run.
const MARK: &str = "AGENTAFLOW_TEST_RUN";

/// Killed processes need a moment to exit.
const PATIENCE: Duration = Duration::from_secs(5);

/// Processes that ran before the tests, and the mark of the tests.
pub(crate) struct TestRun {
    before: BTreeSet<u32>,
    mark: String,
}

impl TestRun {
    pub(crate) fn begin() -> Self {
        let mark = format!("{MARK}={}", std::process::id());
        Self { before: processes().collect(), mark }
    }

    /// Marks a command that runs tests.
    pub(crate) fn mark(&self, command: &mut Command) {
        if let Some((name, value)) = self.mark.split_once('=') {
            command.env(name, value);
        }
    }

    /// Command lines of processes that still run: commands with the mark, and programs of this checkout, which may have
    /// cleared their environment.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let started = Instant::now();
        loop {
            let found: Vec<String> = processes()
                .filter(|pid| !self.before.contains(pid) && *pid != std::process::id())
                .filter(|pid| self.is_marked(*pid) || is_built_here(*pid))
                .filter_map(command_line)
                .collect();
            if found.is_empty() || started.elapsed() > PATIENCE {
                return found;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn is_marked(&self, pid: u32) -> bool {
        let environment = fs::read(path(pid, "environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == self.mark.as_bytes())
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// In another mount namespace the same path is another file.
fn is_built_here(pid: u32) -> bool {
    let namespace = |name: &str| fs::read_link(Path::new("/proc").join(name).join("ns/mnt")).ok();
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repo::root().join("target"), PathBuf::from);
    fs::read_link(path(pid, "exe")).is_ok_and(|program| program.starts_with(target))
        && namespace(&pid.to_string()) == namespace("self")
}

/// None for a zombie, which has no command line.
fn command_line(pid: u32) -> Option<String> {
    let line = fs::read(path(pid, "cmdline")).ok().filter(|line| !line.is_empty())?;
    let words = String::from_utf8_lossy(&line).replace('\0', " ");
    Some(format!("{} (process {pid})", words.trim().chars().take(120).collect::<String>()))
}

fn path(pid: u32, file: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_process_is_found_until_it_ends() {
        let run =
            TestRun { mark: format!("{MARK}=test-{}", std::process::id()), ..TestRun::begin() };
        let marked = |run: &TestRun| processes().filter(|pid| run.is_marked(*pid)).count();
        let mut command = Command::new("sleep");
        run.mark(&mut command);
        let mut child = command.arg("60").spawn().unwrap();
        // A process has its environment a moment after `spawn` returns.
        let started = Instant::now();
        while marked(&run) == 0 && started.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(marked(&run), 1);
        assert!(run.leftovers().iter().any(|line| line.starts_with("sleep 60 (process")));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(marked(&run), 0);
    }
}
