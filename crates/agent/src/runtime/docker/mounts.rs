//! Opens volumes: a container may mount only host directories below a root that the operator allows.
//!
//! A job with write access to a root can replace a directory by a link at any time. So the agent opens the directory
//! without following links, and the daemon mounts the open directory through `/proc/PID/fd/N` of the agent. Only a volume
//! of the `local` driver can do that: the daemon mounts it in its own mount namespace, whereas `runc` mounts a bind in the
//! namespace of the container, where the kernel rejects directories that were opened outside.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use agentaflow_api::job::Volume;
use bollard::models::{
    Mount, MountType, MountVolumeOptions, MountVolumeOptionsDriverConfig as DriverConfig,
};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};
use rustix::io::Errno;
use thiserror::Error;

use super::MountRoot;

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
    #[error(
        "Volume `{path}` rejected: the node allows `{root}` read-only; set `read_only`, or ask its operator for \
         `--allow-mount {root}:rw`"
    )]
    ReadOnlyRoot { path: String, root: String },
    #[error("Volume target `{target}` rejected: must be an absolute path without `..`")]
    RelativeTarget { target: String },
    #[error("Volume target `{target}` rejected: reserved in every container")]
    ReservedTarget { target: String },
}

/// Directory of a volume. Stays open until the container has started.
#[derive(Debug)]
pub(super) struct OpenVolume {
    directory: OwnedFd,
    target: String,
    read_only: bool,
}

impl OpenVolume {
    /// Opens the directory of a job's volume.
    pub(super) fn open(
        volume: &Volume,
        user: &str,
        allowed: &[MountRoot],
    ) -> Result<Self, VolumeError> {
        let target = target(&volume.target)?;
        let directory = source(volume, user, allowed)?;
        Ok(Self { directory, target, read_only: volume.read_only })
    }

    /// Anonymous volume, which the daemon removes together with the container.
    pub(super) fn mount(&self) -> Mount {
        let option = |name: &str, value: String| (name.to_owned(), value);
        let device = format!("/proc/{}/fd/{}", std::process::id(), self.directory.as_raw_fd());
        // Without file systems that are mounted below the directory: they would be writable.
        let flags = if self.read_only { "bind,private,ro" } else { "bind,private" };
        let options = HashMap::from([
            option("type", "none".to_owned()),
            option("o", flags.to_owned()),
            option("device", device),
        ]);
        Mount {
            typ: Some(MountType::VOLUME),
            target: Some(self.target.clone()),
            volume_options: Some(MountVolumeOptions {
                // Otherwise the daemon copies files of the image into an empty host directory.
                no_copy: Some(true),
                driver_config: Some(DriverConfig {
                    name: Some("local".to_owned()),
                    options: Some(options),
                }),
                ..MountVolumeOptions::default()
            }),
            ..Mount::default()
        }
    }
}

/// Bind mount of a directory or file of the agent. The source must exist; Docker does not create it.
pub(super) fn bind(source: &str, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    }
}

fn source(volume: &Volume, user: &str, allowed: &[MountRoot]) -> Result<OwnedFd, VolumeError> {
    let path = || volume.source.clone();
    let roots: Vec<(&MountRoot, PathBuf, PathBuf)> = allowed
        .iter()
        .filter_map(|root| {
            let named = root.of_user(user)?;
            let real = named.canonicalize().ok()?;
            Some((root, named, real))
        })
        .collect();
    if roots.is_empty() {
        return Err(VolumeError::NoRoots { path: path() });
    }
    let names: Vec<String> =
        allowed.iter().map(|root| format!("`{}`", root.path.display())).collect();
    let outside = || VolumeError::Outside { path: path(), roots: names.join(", ") };
    let linked = || VolumeError::Link { path: path(), roots: names.join(", ") };
    let candidates: Vec<_> = roots
        .iter()
        .filter_map(|(root, named, real)| Some((root, real, below(&volume.source, named, real)?)))
        .collect();
    // A directory below several roots is writable if one of them is.
    let best = candidates.iter().max_by_key(|(root, ..)| root.writable);
    let (root, real, below) = best.ok_or_else(outside)?;
    if !root.writable && !volume.read_only {
        let root = root.path.display().to_string();
        return Err(VolumeError::ReadOnlyRoot { path: path(), root });
    }
    resolve(real, below).map_err(|error| match error {
        Errno::LOOP => linked(),
        _ => outside(),
    })
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

/// Opens a directory without following symbolic links below the root.
fn resolve(root: &Path, below: &Path) -> rustix::io::Result<OwnedFd> {
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = open(root, flags, Mode::empty())?;
    let strict = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match openat2(&top, below, flags, Mode::empty(), strict) {
        // A kernel before 5.6, or a sandbox without `openat2`.
        Err(Errno::NOSYS | Errno::PERM) => resolve_by_parts(top, below),
        other => other,
    }
}

/// Opens each path component in order.
fn resolve_by_parts(top: OwnedFd, below: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = top;
    for part in below.components() {
        at = openat(&at, part.as_os_str(), flags, Mode::empty())?;
        match FileType::from_raw_mode(fstat(&at)?.st_mode) {
            FileType::Directory => {}
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::NOTDIR),
        }
    }
    Ok(at)
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
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn root(path: &Path) -> MountRoot {
        MountRoot { path: path.to_owned(), writable: false }
    }

    fn requested(source: &Path, target: &str) -> Volume {
        let source = source.display().to_string();
        Volume { source, target: target.to_owned(), read_only: true }
    }

    fn check(source: &Path, target: &str, allowed: &Path) -> Result<OpenVolume, VolumeError> {
        OpenVolume::open(&requested(source, target), "ada", &[root(allowed)])
    }

    fn options(volume: &OpenVolume) -> HashMap<String, String> {
        volume.mount().volume_options.unwrap().driver_config.unwrap().options.unwrap()
    }

    /// Directory that the daemon mounts.
    fn mounted(volume: &OpenVolume) -> PathBuf {
        fs::read_link(&options(volume)["device"]).unwrap()
    }

    #[test]
    fn a_directory_below_an_allowed_root_is_opened_under_both_names_of_the_root() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().canonicalize().unwrap().join("real");
        fs::create_dir_all(real.join("data/set")).unwrap();
        // The operator may give the root as a link.
        let named = temp.path().join("named");
        symlink(&real, &named).unwrap();
        for source in [named.join("data/set"), real.join("data/set"), real.join("data//set/")] {
            let volume = check(&source, "/data", &named).unwrap();
            assert_eq!(mounted(&volume), real.join("data/set"));
            assert_eq!(options(&volume)["o"], "bind,private,ro");
        }
        assert_eq!(mounted(&check(&named, "/data", &named).unwrap()), real);
    }

    #[test]
    fn a_directory_replaced_by_a_link_after_the_check_is_mounted_itself() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().canonicalize().unwrap();
        fs::create_dir(top.join("data")).unwrap();
        let volume = check(&top.join("data"), "/data", &top).unwrap();
        fs::rename(top.join("data"), top.join("moved")).unwrap();
        symlink("/etc", top.join("data")).unwrap();
        assert_eq!(mounted(&volume), top.join("moved"));
    }

    #[test]
    fn a_link_below_the_root_is_rejected_for_any_target() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        fs::create_dir(&data).unwrap();
        symlink(&data, root.path().join("inside")).unwrap();
        symlink("/etc", root.path().join("outside")).unwrap();
        for source in ["inside", "outside", "outside/ssl"] {
            let error = check(&root.path().join(source), "/data", root.path()).unwrap_err();
            assert!(matches!(error, VolumeError::Link { .. }), "{error}");
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let top = open(root.path(), flags, Mode::empty()).unwrap();
            assert_eq!(resolve_by_parts(top, Path::new(source)).unwrap_err(), Errno::LOOP);
        }
        let top = open(root.path(), OFlags::PATH, Mode::empty()).unwrap();
        assert!(resolve_by_parts(top, Path::new("data")).is_ok());
    }

    #[test]
    fn a_directory_outside_the_roots_is_rejected_even_through_a_link_or_dots() {
        let root = tempfile::tempdir().unwrap();
        symlink("/etc", root.path().join("link")).unwrap();
        for source in [root.path().join("link"), root.path().join("../../etc"), "/etc".into()] {
            let error = check(&source, "/data", root.path()).unwrap_err();
            assert!(
                matches!(error, VolumeError::Link { .. } | VolumeError::Outside { .. }),
                "{error}"
            );
        }
        fs::write(root.path().join("file"), "").unwrap();
        for source in ["none", "file"] {
            let missing = check(&root.path().join(source), "/data", root.path()).unwrap_err();
            assert!(matches!(missing, VolumeError::Outside { .. }), "{missing}");
        }
    }

    #[test]
    fn a_directory_that_shares_a_prefix_with_the_root_is_rejected() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["data", "database"] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        let requested = parent.path().join("database");
        assert!(check(&requested, "/data", &parent.path().join("data")).is_err());
    }

    #[test]
    fn a_root_is_read_only_unless_the_operator_allows_writes() {
        let temp = tempfile::tempdir().unwrap();
        let mut volume = requested(temp.path(), "/data");
        volume.read_only = false;
        let mut allowed = root(temp.path());
        let error = OpenVolume::open(&volume, "ada", &[allowed.clone()]).unwrap_err();
        assert!(matches!(error, VolumeError::ReadOnlyRoot { .. }), "{error}");
        allowed.writable = true;
        let opened = OpenVolume::open(&volume, "ada", &[root(temp.path()), allowed]).unwrap();
        assert_eq!(options(&opened)["o"], "bind,private");
    }

    #[test]
    fn a_user_cannot_mount_the_directory_of_another_user() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["ada", "bob"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        let allowed = [root(&temp.path().join("{user}"))];
        let open = |user: &str, source: &str| {
            OpenVolume::open(&requested(&temp.path().join(source), "/data"), user, &allowed)
        };
        assert!(open("ada", "ada").is_ok());
        for (user, source) in [("ada", "bob"), ("ada", ""), ("..", "ada"), ("a/b", "ada")] {
            assert!(open(user, source).is_err(), "{user} {source}");
        }
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
