//! A program in the background that never outlives us.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Runs the program and waits for the end of its own input: that comes when we close the pipe, and also when we
/// are ended in any other way. Then it stops the program, politely first, and removes its folder.
///
/// The program is started before signals are ignored: one that comes while it is being started would be lost on it.
/// `$1` is the signal to stop with, `$2` the folder, the rest is the program. Shells start what runs in the
/// background with INT ignored; a program that is stopped with it must ask for it, as servers do.
const KEEPER: &str = r#"
signal=$1 folder=$2
shift 2
"$@" </dev/null >"$folder/log" 2>&1 &
program=$!
trap '' HUP INT TERM
echo $program
exec >/dev/null 2>&1
cat
kill -"$signal" $program
tries=0
while kill -0 $program && [ $tries -lt 200 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
kill -KILL $program
wait
rm -rf "$folder"
"#;

/// How long a service may take until it can be used.
const PATIENCE: Duration = Duration::from_mins(2);

/// A program in the background; stopped, with its folder removed, when this is dropped.
#[derive(Debug)]
pub(super) struct Daemon {
    keeper: Child,
    program: u32,
    folder: PathBuf,
}

impl Daemon {
    /// Starts `command`, to be stopped with `signal` (`TERM`), with `folder` for all that it writes.
    pub(super) fn start(command: &Command, signal: &str, folder: PathBuf) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", KEEPER, "keeper", signal]).arg(&folder);
        shell.arg(command.get_program()).args(command.get_args());
        // A group of its own: Ctrl-C in our terminal is meant for us.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = shell.spawn().context("cannot start `sh`")?;
        let mut line = String::new();
        let stdout = keeper.stdout.take().context("`sh` has no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let program = line.trim().parse().context("`sh` did not start the program")?;
        Ok(Self { keeper, program, folder })
    }

    /// Waits until `is_ready`; when the program ends first or takes too long, its last words are the error.
    pub(super) fn until(self, is_ready: impl Fn() -> bool) -> Result<Self> {
        let started = Instant::now();
        while !is_ready() {
            if !self.runs() {
                bail!("it ended at once: {}", self.last_words());
            }
            if started.elapsed() > PATIENCE {
                bail!("it was not ready within {} s: {}", PATIENCE.as_secs(), self.last_words());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(self)
    }

    /// A program that ended but was not waited for yet still has its number.
    fn runs(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", self.program));
        status.is_ok_and(|status| !status.contains(") Z"))
    }

    fn last_words(&self) -> String {
        let log = fs::read(self.folder.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join(" / ")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Closes the pipe; the keeper does the rest.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Runs a program that prepares a service; its words are the error.
pub(super) fn prepare(command: &mut Command) -> Result<()> {
    let name = Path::new(command.get_program()).display().to_string();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start `{name}`"))?;
    if output.status.success() {
        return Ok(());
    }
    bail!("`{name}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let name = format!("agentaflow-xtask-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_dropped_daemon_is_stopped_by_its_signal_and_leaves_nothing() {
        let folder = folder("stop");
        let witness = folder.with_extension("witness");
        let script = format!(
            "trap 'echo bye > {}; exit' TERM; echo up; while :; do sleep 0.05; done",
            witness.display()
        );
        let daemon = Daemon::start(&shell(&script), "TERM", folder.clone()).unwrap();
        let is_up = || fs::read_to_string(folder.join("log")).is_ok_and(|log| log == "up\n");
        let daemon = daemon.until(is_up).unwrap();
        let program = daemon.program;
        assert!(daemon.runs());
        drop(daemon);
        assert!(!Path::new(&format!("/proc/{program}")).exists());
        assert!(!folder.exists());
        assert_eq!(fs::read_to_string(&witness).unwrap(), "bye\n");
        fs::remove_file(witness).unwrap();
    }

    #[test]
    fn a_daemon_outlives_neither_us_nor_a_kill_of_us() {
        let folder = folder("orphan");
        let mut daemon = Daemon::start(&shell("exec sleep 60"), "TERM", folder.clone()).unwrap();
        // What the kernel does with our end of the pipe when we are ended.
        drop(daemon.keeper.stdin.take());
        let started = Instant::now();
        while folder.exists() {
            assert!(started.elapsed() < Duration::from_secs(10));
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_daemon_that_ends_at_once_is_told_with_its_last_words() {
        let daemon =
            Daemon::start(&shell("echo no such option >&2"), "TERM", folder("dead")).unwrap();
        let error = daemon.until(|| false).unwrap_err();
        assert_eq!(error.to_string(), "it ended at once: no such option");
    }
}
