//! Processes of this machine, found by command line and environment.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

/// Processes whose command line and environment (NUL-terminated) match.
pub(crate) fn processes(test: impl Fn(&str, &str) -> bool) -> Vec<Pid> {
    let own = std::process::id().to_string();
    let read = |path: PathBuf| {
        let mut bytes = Vec::new();
        // A process may exit during the scan.
        let _ = fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(pid) = name.parse() else { continue };
        let (command, environment) =
            (read(entry.path().join("cmdline")), read(entry.path().join("environ")));
        if name != own && test(&command, &environment) {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}

pub(crate) fn kill_all(test: impl Fn(&str, &str) -> bool) {
    for pid in processes(test) {
        // The process may have exited.
        let _ = kill_process(pid, Signal::KILL);
    }
}
