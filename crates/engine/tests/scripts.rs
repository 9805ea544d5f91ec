//! Golden scripts: each file in `tests/scripts` sends commands to the engine, one per line, and contains the
//! output below each command, in lines that begin with `> `.
//!
//! `UPDATE=1 cargo test -p agentaflow-engine --test scripts` rewrites the output; read the difference. All
//! invariants are checked after every command.

#![allow(
    clippy::disallowed_methods,
    reason = "a test may read files and its environment; the engine may not"
)]

mod script;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use script::ScriptRun;
use similar::TextDiff;

#[test]
fn every_script_matches_its_recorded_output() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut failures = Vec::new();
    for file in scripts() {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let written = fs::read_to_string(&file).expect("a script can be read");
        let Ok(actual) = catch_unwind(|| played(&name, &written)) else {
            failures.push(format!("{name}: broken off, see above"));
            continue;
        };
        if actual == written {
            continue;
        }
        if update {
            fs::write(&file, actual).expect("a script can be written");
        } else {
            let diff = TextDiff::from_lines(&*written, &*actual);
            failures.push(diff.unified_diff().header(&name, &name).to_string());
        }
    }
    let hint = "UPDATE=1 writes the new answers";
    assert!(failures.is_empty(), "{}\n{hint}", failures.join("\n"));
}

#[test]
fn every_script_begins_with_a_comment() {
    let bare = |file: &PathBuf| {
        let text = fs::read_to_string(file).expect("a script can be read");
        !text.starts_with("# ")
    };
    let without: Vec<_> = scripts().into_iter().filter(bare).collect();
    assert!(without.is_empty(), "no comment in the first line of {without:?}");
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let entries = fs::read_dir(folder).expect("there is a folder of scripts");
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("an entry can be read").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    files
}

/// The script with its actual output.
fn played(name: &str, written: &str) -> String {
    let mut run = ScriptRun::default();
    let mut text = String::new();
    for (number, line) in written.lines().enumerate() {
        if line.starts_with('>') {
            continue;
        }
        text.push_str(line);
        text.push('\n');
        let command = line.split('#').next().unwrap_or_default().trim();
        if command.is_empty() {
            continue;
        }
        for answer in run.run(&format!("{name}:{}", number + 1), command) {
            text.push_str("> ");
            text.push_str(&answer);
            text.push('\n');
        }
    }
    text
}
