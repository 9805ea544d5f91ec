//! Which folders of the host a container may see: those below a root that the operator allows.

use std::path::{Component, Path, PathBuf};

use agentaflow_api::job::Volume;
use bollard::models::{Mount, MountType};

use super::super::StartError;

/// Places inside a container that volumes may not cover.
const RESERVED: [&str; 4] = ["/agentaflow", "/dev", "/proc", "/sys"];

/// The mount of a volume, with every link in its source resolved.
///
/// The check is as good as the moment it is made in: whoever may write to an allowed root can replace a folder
/// by a link between the check and the start. Roots should not be writable for users who are not trusted.
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
    let roots: Vec<PathBuf> = allowed.iter().filter_map(|root| root.canonicalize().ok()).collect();
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
    if !Path::new(source).is_absolute() {
        return Err(outside());
    }
    let real = Path::new(source).canonicalize().map_err(|_| outside())?;
    if !roots.iter().any(|root| real.starts_with(root)) {
        return Err(outside());
    }
    let real = real.into_os_string().into_string();
    real.map_err(|_| refused(format!("The path of the volume `{source}` is not readable text")))
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
    StartError::Job { word: "StartFailed", detail }
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
        let root = tempfile::tempdir().unwrap();
        let real = root.path().canonicalize().unwrap().join("data");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, root.path().join("link")).unwrap();
        let mount = check(&root.path().join("link"), "/data", root.path()).unwrap();
        assert_eq!(mount.source.as_deref(), real.to_str());
        assert_eq!(mount.read_only, Some(true));
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
