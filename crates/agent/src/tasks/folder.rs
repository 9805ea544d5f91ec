//! The folder of a task: made before it starts, read after it ends, removed when the server has everything.
//!
//! The folder itself belongs to the agent, so that a job cannot put another file in the place of its log or of
//! `assignment.json`. Inside it `out/` and `work/` belong to the job's user.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde_json::Value;

use agentaflow_api::link::Assignment;

use crate::guardian::TASKS;
use crate::guardian::record::read;
use crate::identity::{random_name, write_private};
use crate::runtime::process::WORK;
use crate::runtime::user::JobUser;

/// `JOB_DATA` above this goes into a file: programs cannot be started with more than 128 KiB in one variable.
pub(super) const INLINE_DATA: usize = 96 << 10;

/// The most that a job may give back as its result.
const OUTPUT_LIMIT: u64 = 256 << 10;

const ASSIGNMENT: &str = "assignment.json";
const RESULT: &str = "output.json";

/// Where tasks have their folders when the agent's own folder is closed to the user whom they run as.
const OPEN_ROOT: &str = "/var/lib/agentaflow-tasks";

/// Makes the folder in which tasks have theirs. It is `tasks` in the agent's folder; where the job's user cannot get
/// there, that is a link to a folder where they can.
pub(crate) fn prepare_root(state: &Path, user: Option<&JobUser>) -> io::Result<PathBuf> {
    let tasks = state.join(TASKS);
    if !tasks.exists() {
        // A link that leads nowhere: somebody has tidied up too much.
        let _ = fs::remove_file(&tasks);
        match user {
            Some(_) if !is_open(state)? => link_to_open_folder(&tasks)?,
            _ => DirBuilder::new().mode(0o700).create(&tasks)?,
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

fn link_to_open_folder(tasks: &Path) -> io::Result<()> {
    let own = Path::new(OPEN_ROOT).join(random_name()?);
    DirBuilder::new().recursive(true).mode(0o711).create(&own)?;
    for dir in [Path::new(OPEN_ROOT), &own] {
        // The mask of the process may have taken away what is needed.
        fs::set_permissions(dir, Permissions::from_mode(0o711))?;
    }
    std::os::unix::fs::symlink(own, tasks)
}

/// Removes a linked folder that is empty, so that nothing stays elsewhere when the agent's own folder is deleted.
pub(crate) fn tidy_root(tasks: &Path) {
    if let Ok(own) = fs::read_link(tasks)
        && fs::remove_dir(own).is_ok()
    {
        let _ = fs::remove_file(tasks);
    }
}

/// Makes the folder of a task, with nothing of an earlier attempt in it.
pub(super) fn make(dir: &Path, assignment: &Assignment, user: Option<&JobUser>) -> io::Result<()> {
    if let Err(error) = DirBuilder::new().mode(0o700).create(dir) {
        if error.kind() != io::ErrorKind::AlreadyExists {
            return Err(error);
        }
        fs::remove_dir_all(dir)?;
        DirBuilder::new().mode(0o700).create(dir)?;
    }
    write_private(dir, ASSIGNMENT, &serde_json::to_vec(assignment)?)?;
    for name in ["out", WORK] {
        let path = dir.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        if let Some(user) = user {
            chown(&path, Some(user.uid), Some(user.gid))?;
        }
    }
    if user.is_some() {
        fs::set_permissions(dir, Permissions::from_mode(0o711))?;
    }
    Ok(())
}

/// Writes the job's data beside it.
pub(super) fn write_data(dir: &Path, data: &[u8], user: Option<&JobUser>) -> io::Result<()> {
    write_private(dir, "data.json", data)?;
    match user {
        Some(user) => chown(dir.join("data.json"), Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}

/// Begins the output with a line of the agent's own.
pub(super) fn write_notice(dir: &Path, text: &str) -> io::Result<()> {
    let mut log =
        File::options().create(true).append(true).mode(0o600).open(dir.join("output.log"))?;
    writeln!(log, "[agentaflow] {text}")
}

/// The assignment that a folder was made for.
pub(super) fn assignment(dir: &Path) -> Option<Assignment> {
    read(&dir.join(ASSIGNMENT))
}

/// What the job wrote as its result, or what is wrong with it.
pub(super) fn result(dir: &Path) -> Result<Option<Value>, String> {
    // The job owns this folder and could put a link or a device there.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let opened = File::options().read(true).custom_flags(flags).open(dir.join("out").join(RESULT));
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) => return Err(format!("the result `{RESULT}` is not a plain file and was ignored")),
    };
    let plain = file.metadata().is_ok_and(|meta| meta.is_file() && meta.nlink() == 1);
    if !plain {
        return Err(format!("the result `{RESULT}` is not a plain file and was ignored"));
    }
    let mut bytes = Vec::new();
    if file.take(OUTPUT_LIMIT + 1).read_to_end(&mut bytes).is_err() {
        return Err(format!("the result `{RESULT}` could not be read"));
    }
    if bytes.len() as u64 > OUTPUT_LIMIT {
        return Err(format!("the result `{RESULT}` is larger than 256 KiB and was ignored"));
    }
    if bytes.trim_ascii().is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        format!(
            "the result `{RESULT}` is not JSON (line {}, column {}) and was ignored",
            error.line(),
            error.column()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(bytes: &[u8]) -> Result<Option<Value>, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("out")).unwrap();
        fs::write(dir.path().join("out").join(RESULT), bytes).unwrap();
        result(dir.path())
    }

    #[test]
    fn a_result_must_be_json_and_small() {
        assert_eq!(written(b"{\"loss\": 0.5}").unwrap().unwrap()["loss"], 0.5);
        assert_eq!(written(b" \n").unwrap(), None);
        assert!(written(b"{oops").unwrap_err().contains("not JSON"));
        assert!(written(&vec![b' '; 300 << 10]).unwrap_err().contains("larger than 256 KiB"));
    }

    #[test]
    fn a_result_cannot_be_a_link_to_a_file_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(result(dir.path()).unwrap(), None);
        fs::create_dir(dir.path().join("out")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("out").join(RESULT)).unwrap();
        assert!(result(dir.path()).unwrap_err().contains("not a plain file"));
    }
}
