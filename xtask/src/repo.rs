//! The repository: where it is and which files belong to it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The root of the repository, independent of where `cargo xtask` was called.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root of the repository")
}

/// `cargo <arguments>`, run in the root with the cargo that runs us.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    // Not $CARGO: rustup's proxy keeps `cargo fmt` and `cargo clippy` on the same toolchain.
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(root());
    // What cargo told this program about itself: build scripts that watch it would run again whenever cargo is started
    // from here after it was started by hand, and most of what is built would be built anew.
    let of_xtask =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if of_xtask(&name) {
            command.env_remove(name);
        }
    }
    command
}

/// Every file that is tracked or would be by `git add .`, relative to the root, sorted.
pub(crate) fn files() -> Result<Vec<String>> {
    let output = Command::new("git")
        // A checkout made by another user, as in containers, may still be listed.
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
        // The index still lists what was just deleted.
        .filter(|file| !file.is_empty() && root().join(file).is_file())
        .map(str::to_owned)
        .collect();
    files.sort_unstable();
    files.dedup();
    Ok(files)
}
