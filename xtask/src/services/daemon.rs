//! Background program that never outlives xtask.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Starts the program and reads its own standard input to the end. The input ends when xtask closes the pipe or dies in
/// any way. Then the script signals the program, kills it after 20 seconds, and removes its folder.
///
/// The program starts before the script ignores signals, because ignored signals are inherited. `$1` is the stop signal,
/// `$2` the folder, the rest is the command line. Shells start background programs with INT ignored; a program that is
/// stopped with INT must install a handler, as servers do.
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

/// Longest time from start to readiness.
const START_TIMEOUT: Duration = Duration::from_mins(2);

/// A background program. Drop stops the program and removes its folder.
#[derive(Debug)]
pub(super) struct Daemon {
    keeper: Child,
    program: u32,
    folder: PathBuf,
}

impl Daemon {
    /// Starts `command`; drop sends `signal` (`TERM`). `folder` holds its log and data.
    pub(super) fn start(command: &Command, signal: &str, folder: PathBuf) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", KEEPER, "keeper", signal]).arg(&folder);
        shell.arg(command.get_program()).args(command.get_args());
        // A separate process group: Ctrl-C in the terminal reaches only xtask.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = shell.spawn().context("cannot start `sh`")?;
        let mut line = String::new();
        let stdout = keeper.stdout.take().context("`sh` has no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let program = line.trim().parse().context("`sh` did not start the program")?;
        Ok(Self { keeper, program, folder })
    }

    /// Waits until `is_ready`; the error contains the end of the log.
    pub(super) fn until(self, is_ready: impl Fn() -> bool) -> Result<Self> {
        let started = Instant::now();
        while !is_ready() {
            if !self.runs() {
                bail!("the program ended during its start: {}", self.log_tail());
            }
            if started.elapsed() > START_TIMEOUT {
                bail!("not ready within {} s: {}", START_TIMEOUT.as_secs(), self.log_tail());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(self)
    }

    /// False for a zombie too: its process id still exists.
    fn runs(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", self.program));
        status.is_ok_and(|status| !status.contains(") Z"))
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.folder.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join(" / ")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Closes the pipe: the keeper script stops the program.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Runs a program that prepares a service; the error contains its output.
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
    fn drop_stops_the_program_with_its_signal_and_removes_the_folder() {
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
    fn a_closed_pipe_stops_the_daemon() {
        let folder = folder("orphan");
        let mut daemon = Daemon::start(&shell("exec sleep 60"), "TERM", folder.clone()).unwrap();
        // The kernel does the same when xtask is killed.
        drop(daemon.keeper.stdin.take());
        let started = Instant::now();
        while folder.exists() {
            assert!(started.elapsed() < Duration::from_secs(10));
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn the_error_of_a_daemon_that_ends_at_once_contains_its_log() {
        let daemon =
            Daemon::start(&shell("echo no such option >&2"), "TERM", folder("dead")).unwrap();
        let error = daemon.until(|| false).unwrap_err();
        assert_eq!(error.to_string(), "the program ended during its start: no such option");
    }
}
