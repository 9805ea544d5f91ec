//! A program that goes on after we have ended, and is known again later.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a program may take to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process, known by its number and by the moment of its start: numbers are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Clock ticks after the start of the machine, as the kernel counts them.
    started: u64,
}

impl Process {
    /// Starts the command in a session of its own: neither Ctrl-C nor the end of the terminal reaches it.
    pub(super) fn spawn(command: &Command, log: &Path) -> Result<Self> {
        let log = File::create(log).with_context(|| format!("cannot write `{}`", log.display()))?;
        let mut detached = Command::new("setsid");
        detached.arg(command.get_program()).args(command.get_args());
        detached.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        detached.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // `setsid` becomes the program: the number stays. Nobody waits for it here, it outlives us.
        let child = detached.spawn().context("cannot start `setsid`")?;
        let pid = child.id();
        let started = started(pid).with_context(|| format!("process {pid} ended at once"))?;
        Ok(Self { pid, started })
    }

    /// Reads what [`Self::record`] wrote.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (pid, started) = text.split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }

    pub(super) fn record(self) -> String {
        format!("{} {}", self.pid, self.started)
    }

    /// Orders processes by their start.
    pub(super) fn started(self) -> u64 {
        self.started
    }

    pub(super) fn runs(self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Asks it to end, and kills it when it does not.
    pub(super) fn stop(self) -> Result<()> {
        for signal in ["TERM", "KILL"] {
            if !self.runs() {
                return Ok(());
            }
            // It may end before the signal arrives.
            let pid = self.pid.to_string();
            let _ = Command::new("kill")
                .args(["-s", signal, "--", &pid])
                .stderr(Stdio::null())
                .status();
            let asked = Instant::now();
            while self.runs() && asked.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(20));
            }
        }
        if self.runs() {
            bail!("process {} does not end", self.pid);
        }
        Ok(())
    }
}

/// When the process was started; None when there is none, or only its remains.
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
    fn a_program_is_known_again_and_stopped_and_another_one_with_its_number_is_not() {
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
        assert!(process.runs(), "a process that was not ours was stopped");
        process.stop().unwrap();
        assert!(!process.runs());
    }
}
