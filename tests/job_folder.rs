//! Folders for jobs of tests. Jobs of an agent that runs as root have a `/tmp` of their own.

use std::path::PathBuf;

use tempfile::TempDir;

/// A folder that process jobs see too.
pub(crate) fn job_folder() -> TempDir {
    let is_root = rustix::process::geteuid().is_root();
    let parent = if is_root { PathBuf::from("/var/lib") } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("agentaflow-test-").tempdir_in(parent).unwrap()
}
