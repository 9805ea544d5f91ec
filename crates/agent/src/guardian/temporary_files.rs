//! Temporary files of a task: its own folder in place of `/tmp` and `/var/tmp`, and its own `/dev/shm`. They end with the
//! task, and the folder counts into its disk limit.
//!
//! Requires the right to create mount namespaces. Without it, tasks have only `TMPDIR`.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

use tracing::info;

use agentaflow_linux::process::Mounts;

use super::wire::{ProcessSpec, TemporaryFiles};

/// Folders of the host that the folder of the task replaces.
const REPLACED: [&str; 2] = ["/tmp", "/var/tmp"];

const SHARED_MEMORY: &str = "/dev/shm";

/// True if tasks can have their own temporary files.
pub(super) fn are_supported() -> bool {
    match Mounts::probe() {
        Ok(()) => true,
        Err(error) => {
            info!(%error, "cannot create mount namespaces; process jobs share `/tmp` and `/dev/shm`");
            false
        }
    }
}

/// Mounts for a task. Folders of the host that it needs stay visible: the folder of the task, the pipes of MPS and the
/// working directory, which the user chooses and must be able to reach.
pub(super) fn mounts(spec: &ProcessSpec, dir: &Path, files: &TemporaryFiles) -> io::Result<Mounts> {
    let mut mounts = Mounts::default();
    let replaced = || REPLACED.map(Path::new).into_iter().filter(|folder| folder.is_dir());
    for folder in replaced() {
        mounts.add(&files.folder, folder)?;
    }
    for kept in files.mps_pipes.iter().map(|pipes| &**pipes).chain([dir]) {
        if make_mount_point(kept, &files.folder)? {
            mounts.add(kept, kept)?;
        }
    }
    let working_dir = &spec.working_dir;
    if !working_dir.starts_with(dir) && make_mount_point(working_dir, &files.folder)? {
        mounts.keep(working_dir)?;
    }
    if files.mps_pipes.is_none() && Path::new(SHARED_MEMORY).is_dir() {
        mounts.add_shared_memory(files.shared_memory)?;
    }
    Ok(mounts)
}

/// Creates a folder in the folder of the task for a path below a replaced one. Returns false for another path. The task does
/// not run yet, so it cannot have replaced a part of the path.
fn make_mount_point(path: &Path, folder: &Path) -> io::Result<bool> {
    let below = REPLACED.iter().find_map(|replaced| path.strip_prefix(replaced).ok());
    let Some(below) = below.filter(|below| below.components().next().is_some()) else {
        return Ok(false);
    };
    if below.components().any(|part| !matches!(part, Component::Normal(_))) {
        return Ok(false);
    }
    let mut point = folder.to_owned();
    for part in below.components() {
        point.push(part);
        if !point.is_dir() {
            fs::create_dir(&point)?;
            // The umask may have removed bits that the user of the task needs.
            fs::set_permissions(&point, Permissions::from_mode(0o711))?;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_replaced_folders_get_a_mount_point() {
        let folder = tempfile::tempdir().unwrap();
        let check = |path: &str, point: Option<&str>| {
            let made = make_mount_point(Path::new(path), folder.path()).unwrap();
            assert_eq!(made, point.is_some(), "{path}");
            assert!(point.is_none_or(|point| folder.path().join(point).is_dir()), "{path}");
        };
        check("/tmp/a/b", Some("a/b"));
        check("/tmp/a/c", Some("a/c"));
        check("/var/tmp/d", Some("d"));
        for path in ["/tmp", "/tmp/", "/tmpx/y", "/srv/a", "/tmp/../etc", "/var"] {
            check(path, None);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
