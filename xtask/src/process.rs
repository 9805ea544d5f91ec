//! Runs programs. A terminal sees their output at once; otherwise the output is kept until a failure.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::output::out;

/// Interval of progress lines when standard output is not a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_mins(1);

/// Interval between checks for the end of a program that prints nothing.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    /// Standard output and standard error, in the order of writing.
    pub(crate) output: String,
}

impl Finished {
    pub(crate) fn succeeded(&self) -> bool {
        self.status.success()
    }

    /// Prints the output, unless a terminal has already shown it.
    pub(crate) fn show_output(&self) {
        if !on_terminal() {
            out!("{}", self.output.trim_end());
        }
    }
}

/// Runs the command to its end. `Err` means that the command could not start.
pub(crate) fn run(command: &mut Command) -> Result<Finished> {
    let name = display(command);
    let (reader, writer) = std::io::pipe().context("cannot create a pipe")?;
    if on_terminal() && std::env::var_os("NO_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot start `{name}`"))?;
    // The command holds the write ends of the pipe; the reader sees no end of file while they are open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let output = relay(&mut child, BufReader::new(reader))
        .with_context(|| format!("cannot read the output of `{name}`"))?;
    let status = child.wait().with_context(|| format!("cannot wait for `{name}`"))?;
    Ok(Finished { status, output })
}

/// Runs the command without output; false if it cannot start, fails or exceeds `limit`.
pub(crate) fn succeeds_within(command: &mut Command, limit: Duration) -> bool {
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = silent.spawn() else {
        return false;
    };
    let started = Instant::now();
    while started.elapsed() < limit {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => thread::sleep(Duration::from_millis(50)),
            Err(_) => break,
        }
    }
    // The program may have ended since the last poll, so errors do not matter.
    let _ = child.kill();
    let _ = child.wait();
    false
}

/// The command line, without quoting.
pub(crate) fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

pub(crate) fn on_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Reads to the end of file. A terminal sees every line, a log one progress line per minute.
fn relay(child: &mut Child, reader: impl BufRead + Send + 'static) -> Result<String> {
    let lines = lines_of(reader);
    let streaming = on_terminal();
    let started = Instant::now();
    let mut last_progress = started;
    let mut output = String::new();
    loop {
        match lines.recv_timeout(POLL_INTERVAL) {
            Ok(line) => {
                let line = line?;
                if streaming {
                    let mut stdout = std::io::stdout().lock();
                    // A closed pipe must not stop the program.
                    let _ = write!(stdout, "{line}").and_then(|()| stdout.flush());
                }
                output.push_str(&line);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(output),
            // A server left running by a test keeps the pipe open forever; the end of the child counts.
            Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => return Ok(output),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if !streaming && last_progress.elapsed() >= PROGRESS_INTERVAL {
            last_progress = Instant::now();
            let last_line = output.lines().next_back().unwrap_or_default().trim();
            out!("   {} s: {last_line}", started.elapsed().as_secs());
        }
    }
}

/// Lines from a reader thread, so that the receiver can time out.
fn lines_of(mut reader: impl BufRead + Send + 'static) -> mpsc::Receiver<std::io::Result<String>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        loop {
            let mut line = Vec::new();
            let read = reader.read_until(b'\n', &mut line);
            if matches!(read, Ok(0)) {
                return;
            }
            let text = read.map(|_| String::from_utf8_lossy(&line).into_owned());
            // The receiver is gone after an error.
            if sender.send(text).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_arrive_in_the_order_of_writing() {
        let script = "echo one; echo two >&2; echo three; exit 3";
        let finished = run(Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!(finished.output, "one\ntwo\nthree\n");
        assert_eq!(finished.status.code(), Some(3));
    }

    #[test]
    fn a_server_left_running_does_not_delay_the_end() {
        let started = Instant::now();
        let finished = run(Command::new("sh").args(["-c", "sleep 30 & echo done"])).unwrap();
        assert_eq!(finished.output, "done\n");
        assert!(started.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(&mut Command::new("no-such-program")).err().unwrap();
        assert_eq!(error.to_string(), "cannot start `no-such-program`");
    }

    #[test]
    fn a_program_is_killed_after_its_limit() {
        let limit = Duration::from_millis(100);
        assert!(!succeeds_within(Command::new("sleep").arg("30"), limit));
    }
}
