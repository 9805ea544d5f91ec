//! The repository: its root, its files, and cargo inside it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Root of the repository, independent of the current folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the repository")
}

/// `cargo <arguments>` in the root of the repository.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    // Not $CARGO: rustup's proxy keeps `cargo fmt` and `cargo clippy` on the same toolchain.
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(root());
    // Cargo sets these variables for xtask. Build scripts that watch them would run again, and most crates with them,
    // each time cargo is started by xtask after a start by hand.
    let is_set_for_xtask =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if is_set_for_xtask(&name) {
            command.env_remove(name);
        }
    }
    command
}

/// Tracked and addable files, relative to the root, sorted.
pub(crate) fn files() -> Result<Vec<String>> {
    let output = Command::new("git")
        // Containers often mount a checkout that belongs to a different user.
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .args(["--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("cannot start `git ls-files`")?;
    if !output.status.success() {
        bail!("`git ls-files` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let listing = String::from_utf8_lossy(&output.stdout);
    let mut files: Vec<String> = listing
        .split('\0')
        // The index still lists deleted files.
        .filter(|file| !file.is_empty() && root().join(file).is_file())
        .map(str::to_owned)
        .collect();
    files.sort_unstable();
    files.dedup();
    Ok(files)
}
