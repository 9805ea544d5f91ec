//! Which folders of the host a container may see: those below a root that the operator allows.

use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use agentaflow_api::end::{EndReason, StartFailure};
use agentaflow_api::job::Volume;
use bollard::models::{Mount, MountType};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};
use rustix::io::Errno;

use super::super::StartError;

/// Places inside a container that volumes may not cover.
const RESERVED: [&str; 4] = ["/agentaflow", "/dev", "/proc", "/sys"];

/// The mount of a volume. Its source must not go through links below the root that allows it: a user who can write
/// there could lead one to any place of the host.
///
/// The engine takes a path and not an open folder, so the check is as good as the moment it is made in: whoever may
/// write to an allowed root can still replace a folder by a link between the check and the start. Roots should not
/// be writable for users who are not trusted.
pub(super) fn volume(volume: &Volume, allowed: &[PathBuf]) -> Result<Mount, StartError> {
    let target = target(&volume.target)?;
    let source = source(&volume.source, allowed)?;
    Ok(bind(&source, &target, volume.read_only))
}

/// A folder or file of the host, bound into the container. It must exist; the engine makes none.
pub(super) fn bind(source: &str, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    }
}

fn source(source: &str, allowed: &[PathBuf]) -> Result<String, StartError> {
    let roots: Vec<(&Path, PathBuf)> = allowed
        .iter()
        .filter_map(|root| Some((root.as_path(), root.canonicalize().ok()?)))
        .collect();
    if roots.is_empty() {
        return Err(refused(format!(
            "The volume `{source}` is refused: this node lets no folder into containers"
        )));
    }
    let names: Vec<String> = allowed.iter().map(|root| format!("`{}`", root.display())).collect();
    let names = names.join(", ");
    // One sentence for "is not there" and "is elsewhere": nobody learns what the host has outside the roots.
    let outside = || {
        refused(format!(
            "The volume `{source}` is refused: it is not an existing folder below one of the folders \
             that this node lets into containers: {names}"
        ))
    };
    let linked = || {
        refused(format!(
            "The volume `{source}` is refused: a part of its path is a link; name the real folder below one of \
             the folders that this node lets into containers: {names}"
        ))
    };
    let below = roots.iter().find_map(|(named, real)| Some((real, below(source, named, real)?)));
    let (root, below) = below.ok_or_else(outside)?;
    match resolve(root, below) {
        Ok(()) => {}
        Err(Errno::LOOP) => return Err(linked()),
        Err(_) => return Err(outside()),
    }
    let real = root.join(below).components().collect::<PathBuf>().into_os_string().into_string();
    real.map_err(|_| refused(format!("The path of the volume `{source}` is not readable text")))
}

/// The part of a path below a root, by the name that the operator gave it or by its real one.
fn below<'a>(source: &'a str, named: &Path, real: &Path) -> Option<&'a Path> {
    let source = Path::new(source);
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if !source.is_absolute() || !source.components().all(is_plain) {
        return None;
    }
    source.strip_prefix(named).or_else(|_| source.strip_prefix(real)).ok()
}

/// Looks whether something is there, without a link on the way.
fn resolve(root: &Path, below: &Path) -> rustix::io::Result<()> {
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let top = open(root, flags | OFlags::DIRECTORY, Mode::empty())?;
    let strict = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match openat2(&top, below, flags, Mode::empty(), strict) {
        // A kernel before 5.6, or a sandbox that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => resolve_by_parts(top, below),
        other => other.map(drop),
    }
}

/// The same, one part after the other.
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

fn target(target: &str) -> Result<String, StartError> {
    let path = Path::new(target);
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || path == Path::new("/") || !path.components().all(is_plain) {
        return Err(refused(format!(
            "A volume cannot be seen at `{target}`: give a full path inside the container, without `..`"
        )));
    }
    if RESERVED.iter().any(|reserved| path.starts_with(reserved)) {
        return Err(refused(format!(
            "A volume cannot be seen at `{target}`: this part of the container is not free"
        )));
    }
    Ok(target.to_owned())
}

fn refused(detail: String) -> StartError {
    StartError::Job(StartFailure::new(EndReason::StartFailed, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &Path, target: &str, root: &Path) -> Result<Mount, String> {
        let asked = Volume {
            source: source.display().to_string(),
            target: target.to_owned(),
            read_only: true,
        };
        volume(&asked, &[root.to_owned()]).map_err(|error| error.to_string())
    }

    #[test]
    fn a_folder_below_an_allowed_root_is_mounted_by_its_real_path() {
        let place = tempfile::tempdir().unwrap();
        let real = place.path().canonicalize().unwrap().join("real");
        std::fs::create_dir_all(real.join("data/set")).unwrap();
        // The operator may name the root by a link.
        let named = place.path().join("named");
        std::os::unix::fs::symlink(&real, &named).unwrap();
        for source in [named.join("data/set"), real.join("data/set"), real.join("data//set/")] {
            let mount = check(&source, "/data", &named).unwrap();
            assert_eq!(mount.source.as_deref(), real.join("data/set").to_str());
            assert_eq!(mount.read_only, Some(true));
        }
        assert_eq!(check(&named, "/data", &named).unwrap().source.as_deref(), real.to_str());
    }

    #[test]
    fn a_link_below_the_root_is_refused_in_words_wherever_it_leads() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::os::unix::fs::symlink(&data, root.path().join("inside")).unwrap();
        std::os::unix::fs::symlink("/etc", root.path().join("outside")).unwrap();
        for source in ["inside", "outside", "outside/ssl"] {
            let error = check(&root.path().join(source), "/data", root.path()).unwrap_err();
            assert!(error.contains("is a link"), "{error}");
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let top = open(root.path(), flags, Mode::empty()).unwrap();
            assert_eq!(resolve_by_parts(top, Path::new(source)), Err(Errno::LOOP));
        }
        let top = open(root.path(), OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(resolve_by_parts(top, Path::new("data")), Ok(()));
    }

    #[test]
    fn a_folder_elsewhere_is_refused_even_through_a_link_or_dots() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", root.path().join("link")).unwrap();
        for source in [root.path().join("link"), root.path().join("../../etc"), "/etc".into()] {
            let error = check(&source, "/data", root.path()).unwrap_err();
            assert!(error.contains(&format!("`{}`", root.path().display())), "{error}");
        }
        let missing = check(&root.path().join("none"), "/data", root.path()).unwrap_err();
        assert!(missing.contains("not an existing folder"), "{missing}");
    }

    #[test]
    fn a_root_is_not_mistaken_for_the_beginning_of_a_name() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["data", "database"] {
            std::fs::create_dir(parent.path().join(name)).unwrap();
        }
        let asked = parent.path().join("database");
        assert!(check(&asked, "/data", &parent.path().join("data")).is_err());
    }

    #[test]
    fn a_volume_cannot_cover_what_the_container_needs() {
        let root = tempfile::tempdir().unwrap();
        for target in ["/", "data", "/a/../b", "/proc/1", "/agentaflow/out", "/dev"] {
            assert!(check(root.path(), target, root.path()).is_err(), "{target}");
        }
        assert!(check(root.path(), "/develop", root.path()).is_ok());
    }
}
