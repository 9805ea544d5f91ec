//! The folder in which tasks have theirs: in the agent's own folder, or elsewhere when that is closed to the user
//! whom the tasks run as.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use tracing::{info, warn};

use super::trash::Trash;
use crate::guardian::TASKS;
use crate::identity::{random_name, write_private};
use crate::runtime::user::JobUser;

/// Where tasks have their folders when the agent's own folder is closed to the user whom they run as. Each agent has
/// a folder there, and beside it a file that names the agent's own.
const OPEN_ROOT: &str = "/var/lib/agentaflow-tasks";

/// How the name of the file ends that tells whose a folder is.
const OWNER: &str = ".owner";

/// The longest path that is believed.
const LONGEST_PATH: u64 = 4096;

/// Makes the folder in which tasks have theirs. It is `tasks` in the agent's folder; where the job's user cannot get
/// there, that is a link to a folder where they can.
pub(crate) fn prepare_root(state: &Path, user: Option<&JobUser>) -> io::Result<PathBuf> {
    let tasks = state.join(TASKS);
    let closed = user.is_some() && !is_open(state)?;
    if closed && tasks.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        // Of a time when it was open. With a task in it this fails, and so does the check below.
        let _ = fs::remove_dir(&tasks);
    }
    if !tasks.exists() {
        // A link that leads nowhere: somebody has tidied up too much.
        let _ = fs::remove_file(&tasks);
        if closed {
            link_to_open_folder(&tasks, state, Path::new(OPEN_ROOT))?;
        } else {
            DirBuilder::new().mode(0o700).create(&tasks)?;
        }
    }
    if user.is_some() {
        fs::set_permissions(&tasks, Permissions::from_mode(0o711))?;
        if !is_open(&fs::canonicalize(&tasks)?)? {
            let detail = format!("other users cannot get to `{}`", tasks.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, detail));
        }
    }
    Ok(tasks)
}

/// Everybody may pass through this folder and all above it.
fn is_open(dir: &Path) -> io::Result<bool> {
    for dir in dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
        if fs::metadata(dir)?.permissions().mode() & 0o001 == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn link_to_open_folder(tasks: &Path, state: &Path, root: &Path) -> io::Result<()> {
    let name = random_name()?;
    let own = root.join(&name);
    DirBuilder::new().recursive(true).mode(0o711).create(root)?;
    // Whose it is stands there before the folder does, so that no folder is ever without an owner.
    write_private(root, &format!("{name}{OWNER}"), state.as_os_str().as_bytes())?;
    DirBuilder::new().mode(0o711).create(&own)?;
    for dir in [root, &own] {
        // The mask of the process may have taken away what is needed.
        fs::set_permissions(dir, Permissions::from_mode(0o711))?;
    }
    std::os::unix::fs::symlink(own, tasks)
}

/// Removes a linked folder that is empty, so that nothing stays elsewhere when the agent's own folder is deleted.
pub(crate) fn tidy_root(tasks: &Path) {
    if let Ok(own) = fs::read_link(tasks)
        && fs::remove_dir(&own).is_ok()
    {
        let _ = fs::remove_file(tasks);
        let _ = fs::remove_file(owner_of(&own));
    }
}

/// Removes what agents left elsewhere that were killed and whose own folders were deleted since.
pub(crate) fn remove_orphans(trash: &Trash) {
    let root = Path::new(OPEN_ROOT);
    // Only root uses it, and nobody else may have a say in what is removed.
    let ours = |meta: fs::Metadata| meta.is_dir() && meta.uid() == 0 && meta.mode() & 0o022 == 0;
    if geteuid().is_root() && root.symlink_metadata().is_ok_and(ours) {
        trash.sweep(root);
        remove_orphans_in(root, trash);
    }
}

fn remove_orphans_in(root: &Path, trash: &Trash) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let Some(name) =
            entry.file_name().to_str().and_then(|name| name.strip_suffix(OWNER)).map(str::to_owned)
        else {
            continue;
        };
        let own = root.join(name);
        let Some(state) = read_owner(&entry.path()) else { continue };
        if is_used(&state, &own) {
            continue;
        }
        info!(folder = %own.display(), agent = %state.display(), "its agent is gone: removing it");
        if let Err(error) = throw_own(&own, trash) {
            warn!(folder = %own.display(), %error, "cannot remove the folder of an agent that is gone");
            continue;
        }
        let _ = fs::remove_file(entry.path());
    }
}

/// Throws a folder away if it is one, and ours.
fn throw_own(own: &Path, trash: &Trash) -> io::Result<()> {
    match own.symlink_metadata() {
        Ok(meta) if meta.is_dir() && meta.uid() == geteuid().as_raw() => trash.throw(own),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Its agent's folder is there and does not lead elsewhere. While in doubt, it is.
fn is_used(state: &Path, own: &Path) -> bool {
    let gone =
        matches!(state.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound);
    let elsewhere = fs::read_link(state.join(TASKS)).is_ok_and(|link| link != own);
    !gone && !elsewhere
}

/// The agent's folder that a file of ours names.
fn read_owner(path: &Path) -> Option<PathBuf> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.uid() != geteuid().as_raw() || meta.len() > LONGEST_PATH {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LONGEST_PATH).read_to_end(&mut bytes).ok()?;
    let state = PathBuf::from(std::ffi::OsString::from_vec(bytes));
    state.is_absolute().then_some(state)
}

fn owner_of(own: &Path) -> PathBuf {
    let mut name = own.as_os_str().to_owned();
    name.push(OWNER);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_agents_that_are_gone_are_removed_and_no_others() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("open");
        let link = |name: &str| {
            let state = place.path().join(name);
            fs::create_dir(&state).unwrap();
            link_to_open_folder(&state.join(TASKS), &state, &root).unwrap();
            (state.clone(), fs::read_link(state.join(TASKS)).unwrap())
        };
        let (_, kept) = link("kept");
        let (gone_state, gone) = link("gone");
        fs::create_dir_all(gone.join("1-1-0/out")).unwrap();
        fs::remove_dir_all(&gone_state).unwrap();
        // Nobody knows whose this is.
        let strange = root.join("strange");
        fs::create_dir(&strange).unwrap();
        // A link in the place of a name is not believed.
        std::os::unix::fs::symlink(owner_of(&gone), owner_of(&strange)).unwrap();
        remove_orphans_in(&root, &Trash::open());
        assert!(kept.is_dir() && owner_of(&kept).exists() && strange.is_dir());
        assert!(!gone.exists() && !owner_of(&gone).exists());
        tidy_root(&place.path().join("kept").join(TASKS));
        assert!(!kept.exists() && !owner_of(&kept).exists());
    }
}
