//! Parent directory of the task folders: in the agent's state directory, or in a shared root when the user of process
//! jobs cannot traverse the state directory.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use tracing::{info, warn};

use super::folder_remover::FolderRemover;
use crate::guardian::TASKS;
use crate::identity::{random_name, write_private};

/// Root for agents whose state directory is private. Each agent has one directory here, and a file beside the
/// directory with the path of the agent's state directory.
const SHARED_ROOT: &str = "/var/lib/agentaflow-tasks";

const OWNER_SUFFIX: &str = ".owner";

const MAX_PATH: u64 = 4096;

/// Creates `tasks` in the state directory: a directory, or a link into the shared root if jobs have `other_users`
/// that cannot traverse the state directory.
pub(crate) fn prepare_root(state: &Path, other_users: bool) -> io::Result<PathBuf> {
    let tasks = state.join(TASKS);
    let private = other_users && !is_traversable(state)?;
    if private && tasks.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        // Created while the state directory was traversable. Removal fails if the directory has a task; the check
        // below then fails too.
        let _ = fs::remove_dir(&tasks);
    }
    if !tasks.exists() {
        // A dangling link: its target was deleted by hand.
        let _ = fs::remove_file(&tasks);
        if private {
            link_to_shared_root(&tasks, state, Path::new(SHARED_ROOT))?;
        } else {
            DirBuilder::new().mode(0o700).create(&tasks)?;
        }
    }
    if other_users {
        fs::set_permissions(&tasks, Permissions::from_mode(0o711))?;
        if !is_traversable(&fs::canonicalize(&tasks)?)? {
            let detail = format!("other users cannot traverse `{}`", tasks.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, detail));
        }
    }
    Ok(tasks)
}

/// True if all users may traverse the directory and its ancestors.
fn is_traversable(dir: &Path) -> io::Result<bool> {
    for dir in dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
        if fs::metadata(dir)?.permissions().mode() & 0o001 == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn link_to_shared_root(tasks: &Path, state: &Path, root: &Path) -> io::Result<()> {
    let name = random_name()?;
    let own = root.join(&name);
    DirBuilder::new().recursive(true).mode(0o711).create(root)?;
    // The owner file comes first, so that no directory is ever without an owner.
    write_private(root, &format!("{name}{OWNER_SUFFIX}"), state.as_os_str().as_bytes())?;
    DirBuilder::new().mode(0o711).create(&own)?;
    for dir in [root, &own] {
        // The umask may have removed these bits.
        fs::set_permissions(dir, Permissions::from_mode(0o711))?;
    }
    std::os::unix::fs::symlink(own, tasks)
}

/// Removes an empty directory from the shared root, so that deleting the state directory leaves nothing behind.
pub(crate) fn tidy_root(tasks: &Path) {
    if let Ok(own) = fs::read_link(tasks)
        && fs::remove_dir(&own).is_ok()
    {
        let _ = fs::remove_file(tasks);
        let _ = fs::remove_file(owner_of(&own));
    }
}

/// Removes directories of killed agents from the shared root whose state directories were deleted since.
pub(crate) fn remove_orphans(remover: &FolderRemover) {
    let root = Path::new(SHARED_ROOT);
    // Only agents of root use the shared root; another owner could choose the directories to remove.
    let ours = |meta: fs::Metadata| meta.is_dir() && meta.uid() == 0 && meta.mode() & 0o022 == 0;
    if geteuid().is_root() && root.symlink_metadata().is_ok_and(ours) {
        remover.resume(root);
        remove_orphans_in(root, remover);
    }
}

fn remove_orphans_in(root: &Path, remover: &FolderRemover) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let Some(name) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_suffix(OWNER_SUFFIX))
            .map(str::to_owned)
        else {
            continue;
        };
        let own = root.join(name);
        let Some(state) = read_owner(&entry.path()) else { continue };
        if is_used(&state, &own) {
            continue;
        }
        info!(folder = %own.display(), agent = %state.display(), "removing the tasks of a deleted agent");
        if let Err(error) = remove_if_owned(&own, remover) {
            warn!(folder = %own.display(), %error, "cannot remove the tasks of a deleted agent");
            continue;
        }
        let _ = fs::remove_file(entry.path());
    }
}

/// Removes `own` if it is a directory of the agent's user.
fn remove_if_owned(own: &Path, remover: &FolderRemover) -> io::Result<()> {
    match own.symlink_metadata() {
        Ok(meta) if meta.is_dir() && meta.uid() == geteuid().as_raw() => remover.remove(own),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// True unless the agent's state directory is gone or links to another directory; true on errors.
fn is_used(state: &Path, own: &Path) -> bool {
    let gone =
        matches!(state.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound);
    let replaced = fs::read_link(state.join(TASKS)).is_ok_and(|link| link != own);
    !gone && !replaced
}

/// Path of the state directory in an owner file.
fn read_owner(path: &Path) -> Option<PathBuf> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.uid() != geteuid().as_raw() || meta.len() > MAX_PATH {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_PATH).read_to_end(&mut bytes).ok()?;
    let state = PathBuf::from(std::ffi::OsString::from_vec(bytes));
    state.is_absolute().then_some(state)
}

fn owner_of(own: &Path) -> PathBuf {
    let mut name = own.as_os_str().to_owned();
    name.push(OWNER_SUFFIX);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_deleted_agents_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("open");
        let link = |name: &str| {
            let state = temp.path().join(name);
            fs::create_dir(&state).unwrap();
            link_to_shared_root(&state.join(TASKS), &state, &root).unwrap();
            (state.clone(), fs::read_link(state.join(TASKS)).unwrap())
        };
        let (_, kept) = link("kept");
        let (gone_state, gone) = link("gone");
        fs::create_dir_all(gone.join("1-1-0/out")).unwrap();
        fs::remove_dir_all(&gone_state).unwrap();
        // A directory without an owner file.
        let strange = root.join("strange");
        fs::create_dir(&strange).unwrap();
        // A link instead of an owner file is ignored.
        std::os::unix::fs::symlink(owner_of(&gone), owner_of(&strange)).unwrap();
        remove_orphans_in(&root, &FolderRemover::start());
        assert!(kept.is_dir() && owner_of(&kept).exists() && strange.is_dir());
        assert!(!gone.exists() && !owner_of(&gone).exists());
        tidy_root(&temp.path().join("kept").join(TASKS));
        assert!(!kept.exists() && !owner_of(&kept).exists());
    }
}
