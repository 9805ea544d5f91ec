//! Runs a program of the driver with a time limit.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// A healthy `nvidia-smi` responds within two seconds, even if the driver has to wake the GPUs. A slower one hangs on
/// a broken GPU.
const LIMIT: Duration = Duration::from_secs(5);

/// Limit of the output in bytes: bounds the memory for a program that prints without end.
const MOST: u64 = 4 << 20;

/// Directories of `nvidia-smi` besides `PATH`: containers and WSL.
const PLACES: [&str; 4] = ["/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/opt/bin"];

/// Path of `nvidia-smi`, searched in `PATH` first.
pub(crate) fn find_smi() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|folder| folder.is_absolute())
        .chain(PLACES.iter().map(PathBuf::from))
        .map(|folder| folder.join("nvidia-smi"))
        .find(|file| file.is_file())
}

/// Output of the program, or the reason of its failure for the user.
pub(crate) fn run(program: &Path, args: &[&str]) -> Result<String, String> {
    run_within(program, args, LIMIT)
}

fn run_within(program: &Path, args: &[&str], limit: Duration) -> Result<String, String> {
    let name = program.display();
    let mut child = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("`{name}` could not be started: {error}"))?;
    let until = Instant::now() + limit;
    let out = child.stdout.take().map(collect);
    let err = child.stderr.take().map(collect);
    let out = out.and_then(|text| receive(&text, until));
    let err = err.and_then(|text| receive(&text, until)).unwrap_or_default();
    let (Some(out), Some(status)) = (out, wait(child, until)) else {
        return Err(format!(
            "`{name}` did not answer within {} seconds; a GPU may hang",
            limit.as_secs()
        ));
    };
    if status {
        return Ok(out);
    }
    // `nvidia-smi` prints some errors to the standard output.
    let message = if err.trim().is_empty() { out } else { err };
    Err(first_lines(&message).unwrap_or_else(|| format!("`{name}` failed without a message")))
}

/// Reads on a separate thread: a program that keeps the pipe open cannot block the caller.
fn collect(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // A broken pipe yields the output before the break.
        let _ = pipe.take(MOST).read_to_end(&mut bytes);
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receive
}

fn receive(text: &Receiver<String>, until: Instant) -> Option<String> {
    text.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
}

/// True on success; `None` if the process was killed at the limit.
fn wait(mut child: Child, until: Instant) -> Option<bool> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
            Ok(None) => break,
            Err(_) => return None,
        }
    }
    let _ = child.kill();
    // SIGKILL does not end a process that hangs in the driver: a thread reaps the process later.
    thread::spawn(move || child.wait());
    None
}

/// First two non-empty lines, joined.
fn first_lines(text: &str) -> Option<String> {
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).take(2).collect();
    let joined: String = lines.join(" ").chars().take(400).collect();
    (!joined.is_empty()).then_some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit_ms: u64) -> Result<String, String> {
        run_within(Path::new("/bin/sh"), &["-c", script], Duration::from_millis(limit_ms))
    }

    #[test]
    fn output_is_returned() {
        assert_eq!(shell("echo one; echo two", 5_000).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_failure_has_the_message_of_the_program() {
        let error = shell("echo; echo 'No devices were found'; exit 6", 5_000).unwrap_err();
        assert_eq!(error, "No devices were found");
        let error = shell("echo noise; echo 'Driver/library version mismatch' >&2; exit 18", 5_000);
        assert_eq!(error.unwrap_err(), "Driver/library version mismatch");
        assert!(shell("exit 3", 5_000).unwrap_err().contains("without a message"));
    }

    #[test]
    fn one_that_hangs_is_killed() {
        let begun = Instant::now();
        let error = shell("exec sleep 60", 100).unwrap_err();
        assert!(error.contains("did not answer"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_grandchild_that_keeps_the_pipe_open_does_not_block_the_caller() {
        let begun = Instant::now();
        assert!(shell("sleep 20 & exit 0", 200).is_err());
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn one_that_is_not_there_is_named() {
        let error = run(Path::new("/nowhere/nvidia-smi"), &[]).unwrap_err();
        assert!(error.contains("/nowhere/nvidia-smi"), "{error}");
    }
}
