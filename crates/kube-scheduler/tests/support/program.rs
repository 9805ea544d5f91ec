//! A program under test with its log.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::wait::{SOON, wait_for};

/// A child process with its output in a file. A failed test prints the end of the output.
pub(crate) struct Program {
    command: Command,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts the command; stdout and stderr are written to `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Self {
        command.stdin(Stdio::null());
        let child = spawn(&mut command, log);
        Self { command, child, log: log.to_owned() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Output of all runs.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits for a text in the output.
    pub(crate) async fn says(&mut self, words: &str) {
        wait_for(&format!("the program says `{words}`"), async || {
            let log = self.log();
            log.contains(words).then_some(()).ok_or(log)
        })
        .await;
    }

    pub(crate) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the process ends by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        wait_for("the program ends", async || {
            let ended = self.child.try_wait().expect("a child of ours");
            ended.ok_or_else(|| self.log())
        })
        .await
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        // The process may have exited; the test detects that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGTERM and waits for the end.
    #[track_caller]
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        let asked = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                return status;
            }
            assert!(asked.elapsed() < SOON, "it does not end after SIGTERM:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal; `STOP` and `CONT` simulate a long pause.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", signal, "--", &pid]).status();
        assert!(sent.expect("`kill` can be started").success(), "SIG{signal} was not sent");
    }

    /// Kills the process if it runs, and starts it again with the same command.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = spawn(&mut self.command, &self.log);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(60)..].join("\n");
            eprintln!("the end of {}:\n{last}", self.log.display());
        }
    }
}

fn spawn(command: &mut Command, log: &Path) -> Child {
    let file = OpenOptions::new().create(true).append(true).open(log).expect("a log");
    command.stdout(file.try_clone().expect("a log")).stderr(file);
    let spawned = command.spawn();
    spawned.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
}
