//! Runs a program: its output is shown as it comes on a terminal, kept for later elsewhere.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How often a log that nobody watches is told that a long phase is still alive.
const SIGN_OF_LIFE: Duration = Duration::from_mins(1);

/// After this much silence we look whether the program is still there.
const SILENCE: Duration = Duration::from_secs(1);

/// What a program said and how it ended.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    /// Standard output and standard error, in the order in which they were written.
    pub(crate) output: String,
}

impl Finished {
    pub(crate) fn succeeded(&self) -> bool {
        self.status.success()
    }

    /// Shows the output of a failed program, unless it was streamed already.
    pub(crate) fn show_output(&self) {
        if !on_terminal() {
            print!("{}", self.output);
        }
    }
}

/// Runs the command to its end. An error means that it could not even be started.
pub(crate) fn run(command: &mut Command) -> Result<Finished> {
    let name = display(command);
    let (reader, writer) = std::io::pipe().context("cannot create a pipe")?;
    if on_terminal() && std::env::var_os("NO_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot start `{name}`"))?;
    // The command holds our copies of the pipe's writing end; the reader sees no end before they go.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let output = relay(&mut child, BufReader::new(reader))
        .with_context(|| format!("cannot read the output of `{name}`"))?;
    let status = child.wait().with_context(|| format!("cannot wait for `{name}`"))?;
    Ok(Finished { status, output })
}

/// Runs the command silently; false when it cannot be started, fails or takes longer than `limit`.
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
    // It may have ended in this very moment; then there is nothing left to stop.
    let _ = child.kill();
    let _ = child.wait();
    false
}

/// The command as one would type it.
pub(crate) fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

pub(crate) fn on_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Reads to the end. A terminal sees every line, a log one line a minute.
fn relay(child: &mut Child, reader: impl BufRead + Send + 'static) -> Result<String> {
    let lines = lines_of(reader);
    let streaming = on_terminal();
    let started = Instant::now();
    let mut last_sign = started;
    let mut output = String::new();
    loop {
        match lines.recv_timeout(SILENCE) {
            Ok(line) => {
                let line = line?;
                if streaming {
                    print!("{line}");
                    std::io::stdout().flush()?;
                }
                output.push_str(&line);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(output),
            // A server that a test forgot keeps the pipe open for ever: do not wait for it.
            Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => return Ok(output),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if !streaming && last_sign.elapsed() >= SIGN_OF_LIFE {
            last_sign = Instant::now();
            let last_line = output.lines().next_back().unwrap_or_default().trim();
            println!("   {} s: {last_line}", started.elapsed().as_secs());
        }
    }
}

/// The lines of the reader as they come, read aside so that waiting for them can end.
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
            // Nobody listens any more after an error.
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
    fn a_server_left_running_does_not_hold_us_up() {
        let started = Instant::now();
        let finished = run(Command::new("sh").args(["-c", "sleep 30 & echo done"])).unwrap();
        assert_eq!(finished.output, "done\n");
        assert!(started.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = run(&mut Command::new("no-such-program")).err().unwrap();
        assert_eq!(error.to_string(), "cannot start `no-such-program`");
    }

    #[test]
    fn a_silent_program_is_given_up_after_its_limit() {
        let limit = Duration::from_millis(100);
        assert!(!succeeds_within(Command::new("sleep").arg("30"), limit));
    }
}
