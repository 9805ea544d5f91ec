//! Detached process that outlives xtask and is found again by a later command.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Time between TERM and KILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A process, identified by its id and start time: the kernel reuses ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Clock ticks since boot.
    started: u64,
}

impl Process {
    /// Starts the command in a new session, out of reach of Ctrl-C and a closed terminal.
    pub(super) fn spawn(command: &Command, log: &Path) -> Result<Self> {
        let log = File::create(log).with_context(|| format!("cannot write `{}`", log.display()))?;
        let mut detached = Command::new("setsid");
        detached.arg(command.get_program()).args(command.get_args());
        detached.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        detached.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // `setsid` replaces itself with the program, so the process id stays.
        let child = detached.spawn().context("cannot start `setsid`")?;
        let pid = child.id();
        let started =
            started(pid).with_context(|| format!("process {pid} ended during its start"))?;
        Ok(Self { pid, started })
    }

    /// Parses the format of [`Self::record`].
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (pid, started) = text.split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }

    pub(super) fn record(self) -> String {
        format!("{} {}", self.pid, self.started)
    }

    /// Key for sorting by start time.
    pub(super) fn started(self) -> u64 {
        self.started
    }

    pub(super) fn runs(self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Sends TERM, and KILL after a timeout.
    pub(super) fn stop(self) -> Result<()> {
        for signal in ["TERM", "KILL"] {
            if !self.runs() {
                return Ok(());
            }
            // The process may end before the signal arrives.
            let pid = self.pid.to_string();
            let _ = Command::new("kill")
                .args(["-s", signal, "--", &pid])
                .stderr(Stdio::null())
                .status();
            let signalled = Instant::now();
            while self.runs() && signalled.elapsed() < STOP_TIMEOUT {
                thread::sleep(Duration::from_millis(20));
            }
        }
        if self.runs() {
            bail!("process {} does not end", self.pid);
        }
        Ok(())
    }
}

/// Start time of a process; `None` if the process does not exist or is a zombie.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may itself contain spaces and parentheses.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    // The 22nd field of the line; the state, which is the first here, is the third.
    fields.get(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_process_is_stopped_and_a_different_one_with_its_id_is_not() {
        let log = std::env::temp_dir().join(format!("agentaflow-xtask-{}", std::process::id()));
        let mut sleep = Command::new("sleep");
        sleep.arg("60");
        let process = Process::spawn(&sleep, &log).unwrap();
        fs::remove_file(log).unwrap();
        assert_eq!(Process::parse(&process.record()), Some(process));
        assert!(process.runs());
        let stranger = Process { started: process.started + 1, ..process };
        assert!(!stranger.runs());
        stranger.stop().unwrap();
        assert!(process.runs(), "a process with a different start time was stopped");
        process.stop().unwrap();
        assert!(!process.runs());
    }
}
