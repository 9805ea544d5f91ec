//! Checks volumes: a container may mount only host directories below a root that the operator allows.

use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use agentaflow_api::job::Volume;
use bollard::models::{Mount, MountType};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};
use rustix::io::Errno;

use thiserror::Error;

/// Paths in a container that volumes may not cover.
const RESERVED: [&str; 4] = ["/agentaflow", "/dev", "/proc", "/sys"];

/// Reason for the rejection of a volume.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum VolumeError {
    #[error("Volume `{path}` rejected: the node allows no host directories in containers")]
    NoRoots { path: String },
    /// Also for missing directories: the message must not reveal files outside the roots.
    #[error("Volume `{path}` rejected: not an existing directory below an allowed root ({roots})")]
    Outside { path: String, roots: String },
    #[error(
        "Volume `{path}` rejected: its path contains a symbolic link; use the real path below an allowed root ({roots})"
    )]
    Link { path: String, roots: String },
    #[error("Volume `{path}` rejected: its path is not valid UTF-8")]
    NotUtf8 { path: String },
    #[error("Volume target `{target}` rejected: must be an absolute path without `..`")]
    RelativeTarget { target: String },
    #[error("Volume target `{target}` rejected: reserved in every container")]
    ReservedTarget { target: String },
}

/// Mount of a volume. Its source must not contain symbolic links below the allowed root: a user with write access
/// could point a link at any directory of the host.
///
/// Docker takes a path instead of an open directory, so a user with write access to an allowed root can still replace
/// a directory by a link between this check and the start. Roots should not be writable for untrusted users.
pub(super) fn volume(volume: &Volume, allowed: &[PathBuf]) -> Result<Mount, VolumeError> {
    let target = target(&volume.target)?;
    let source = source(&volume.source, allowed)?;
    Ok(bind(&source, &target, volume.read_only))
}

/// Bind mount of a host directory or file. The source must exist; Docker does not create it.
pub(super) fn bind(source: &str, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    }
}

fn source(source: &str, allowed: &[PathBuf]) -> Result<String, VolumeError> {
    let path = || source.to_owned();
    let roots: Vec<(&Path, PathBuf)> = allowed
        .iter()
        .filter_map(|root| Some((root.as_path(), root.canonicalize().ok()?)))
        .collect();
    if roots.is_empty() {
        return Err(VolumeError::NoRoots { path: path() });
    }
    let names: Vec<String> = allowed.iter().map(|root| format!("`{}`", root.display())).collect();
    let outside = || VolumeError::Outside { path: path(), roots: names.join(", ") };
    let linked = || VolumeError::Link { path: path(), roots: names.join(", ") };
    let below = roots.iter().find_map(|(named, real)| Some((real, below(source, named, real)?)));
    let (root, below) = below.ok_or_else(outside)?;
    match resolve(root, below) {
        Ok(()) => {}
        Err(Errno::LOOP) => return Err(linked()),
        Err(_) => return Err(outside()),
    }
    let real = root.join(below).components().collect::<PathBuf>().into_os_string().into_string();
    real.map_err(|_| VolumeError::NotUtf8 { path: path() })
}

/// Part of a path below a root, which may be given by the operator's path or by its canonical path.
fn below<'a>(source: &'a str, named: &Path, real: &Path) -> Option<&'a Path> {
    let source = Path::new(source);
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if !source.is_absolute() || !source.components().all(is_plain) {
        return None;
    }
    source.strip_prefix(named).or_else(|_| source.strip_prefix(real)).ok()
}

/// Checks that the path exists and contains no symbolic link.
fn resolve(root: &Path, below: &Path) -> rustix::io::Result<()> {
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let top = open(root, flags | OFlags::DIRECTORY, Mode::empty())?;
    let strict = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match openat2(&top, below, flags, Mode::empty(), strict) {
        // A kernel before 5.6, or a sandbox without `openat2`.
        Err(Errno::NOSYS | Errno::PERM) => resolve_by_parts(top, below),
        other => other.map(drop),
    }
}

/// Checks each path component in order.
fn resolve_by_parts(top: OwnedFd, below: &Path) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = top;
    for part in below.components() {
        at = openat(&at, part.as_os_str(), flags, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&at)?.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP);
        }
    }
    Ok(())
}

fn target(target: &str) -> Result<String, VolumeError> {
    let path = Path::new(target);
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || path == Path::new("/") || !path.components().all(is_plain) {
        return Err(VolumeError::RelativeTarget { target: target.to_owned() });
    }
    if RESERVED.iter().any(|reserved| path.starts_with(reserved)) {
        return Err(VolumeError::ReservedTarget { target: target.to_owned() });
    }
    Ok(target.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &Path, target: &str, root: &Path) -> Result<Mount, VolumeError> {
        let requested = Volume {
            source: source.display().to_string(),
            target: target.to_owned(),
            read_only: true,
        };
        volume(&requested, &[root.to_owned()])
    }

    #[test]
    fn a_directory_below_an_allowed_root_is_mounted_by_its_canonical_path() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().canonicalize().unwrap().join("real");
        std::fs::create_dir_all(real.join("data/set")).unwrap();
        // The operator may give the root as a link.
        let named = temp.path().join("named");
        std::os::unix::fs::symlink(&real, &named).unwrap();
        for source in [named.join("data/set"), real.join("data/set"), real.join("data//set/")] {
            let mount = check(&source, "/data", &named).unwrap();
            assert_eq!(mount.source.as_deref(), real.join("data/set").to_str());
            assert_eq!(mount.read_only, Some(true));
        }
        assert_eq!(check(&named, "/data", &named).unwrap().source.as_deref(), real.to_str());
    }

    #[test]
    fn a_link_below_the_root_is_rejected_whatever_its_target() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::os::unix::fs::symlink(&data, root.path().join("inside")).unwrap();
        std::os::unix::fs::symlink("/etc", root.path().join("outside")).unwrap();
        for source in ["inside", "outside", "outside/ssl"] {
            let error = check(&root.path().join(source), "/data", root.path()).unwrap_err();
            assert!(matches!(error, VolumeError::Link { .. }), "{error}");
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let top = open(root.path(), flags, Mode::empty()).unwrap();
            assert_eq!(resolve_by_parts(top, Path::new(source)), Err(Errno::LOOP));
        }
        let top = open(root.path(), OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(resolve_by_parts(top, Path::new("data")), Ok(()));
    }

    #[test]
    fn a_directory_outside_the_roots_is_rejected_even_through_a_link_or_dots() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", root.path().join("link")).unwrap();
        for source in [root.path().join("link"), root.path().join("../../etc"), "/etc".into()] {
            let error = check(&source, "/data", root.path()).unwrap_err();
            assert!(
                matches!(error, VolumeError::Link { .. } | VolumeError::Outside { .. }),
                "{error}"
            );
        }
        let missing = check(&root.path().join("none"), "/data", root.path()).unwrap_err();
        assert!(matches!(missing, VolumeError::Outside { .. }), "{missing}");
    }

    #[test]
    fn a_directory_whose_name_starts_with_the_name_of_the_root_is_rejected() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["data", "database"] {
            std::fs::create_dir(parent.path().join(name)).unwrap();
        }
        let requested = parent.path().join("database");
        assert!(check(&requested, "/data", &parent.path().join("data")).is_err());
    }

    #[test]
    fn a_volume_cannot_cover_reserved_paths() {
        let root = tempfile::tempdir().unwrap();
        for target in ["/", "data", "/a/../b", "/proc/1", "/agentaflow/out", "/dev"] {
            assert!(check(root.path(), target, root.path()).is_err(), "{target}");
        }
        assert!(check(root.path(), "/develop", root.path()).is_ok());
    }
}
