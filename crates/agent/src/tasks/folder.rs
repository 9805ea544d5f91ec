//! Folder of a task: created before the start, read after the end, removed when the server has the logs and the end.
//!
//! The agent owns the folder, so that a job cannot replace its log or `assignment.json`. The job's user owns the
//! subfolders `out/`, `work/` and `tmp/`.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::OFlags;
use serde_json::{Map, Value};
use thiserror::Error;

use agentaflow_api::link::Assignment;

use super::folder_remover::FolderRemover;
use crate::guardian::record::read;
use crate::identity::write_private;
use crate::runtime::process::{TMP, WORK};
use crate::runtime::user::JobUser;

/// Larger `JOB_DATA` is written to a file: Linux limits one environment variable to 128 KiB.
pub(super) const INLINE_DATA: usize = 96 << 10;

/// Maximum nesting depth of a result; JSON parsers, the server's included, have a limit.
const MAX_DEPTH: usize = 64;

/// Maximum size of a result in bytes.
const RESULT_LIMIT: u64 = 256 << 10;

const ASSIGNMENT: &str = "assignment.json";
const RESULT: &str = "output.json";

/// Creates the folder of a task; moves a folder of an earlier attempt away first.
pub(super) fn create(
    dir: &Path,
    assignment: &Assignment,
    user: Option<&JobUser>,
    remover: &FolderRemover,
) -> io::Result<()> {
    if let Err(error) = DirBuilder::new().mode(0o700).create(dir) {
        if error.kind() != io::ErrorKind::AlreadyExists {
            return Err(error);
        }
        remover.remove(dir)?;
        DirBuilder::new().mode(0o700).create(dir)?;
    }
    write_private(dir, ASSIGNMENT, &serde_json::to_vec(&without_secrets(assignment))?)?;
    for name in ["out", WORK, TMP] {
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

/// Fields that the next agent needs to adopt the task. A started task already has its environment, data and image.
fn without_secrets(assignment: &Assignment) -> Assignment {
    Assignment {
        env: BTreeMap::new(),
        job_data: Map::new(),
        registry_auth: None,
        ..assignment.clone()
    }
}

/// Writes `data.json` for the job's user.
pub(super) fn write_data(dir: &Path, data: &[u8], user: Option<&JobUser>) -> io::Result<()> {
    write_private(dir, "data.json", data)?;
    match user {
        Some(user) => chown(dir.join("data.json"), Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}

/// Appends a line of the agent to the output.
pub(super) fn write_notice(dir: &Path, text: &str) -> io::Result<()> {
    let mut log =
        File::options().create(true).append(true).mode(0o600).open(dir.join("output.log"))?;
    writeln!(log, "[agentaflow] {text}")
}

pub(super) fn assignment(dir: &Path) -> Option<Assignment> {
    read(&dir.join(ASSIGNMENT))
}

/// Reason for which the agent ignores a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum ResultError {
    #[error("Result `{RESULT}` ignored: not a regular file")]
    NotRegular,
    #[error("Result `{RESULT}` ignored: cannot be read")]
    Unreadable,
    #[error("Result `{RESULT}` ignored: larger than 256 KiB")]
    TooLarge,
    #[error("Result `{RESULT}` ignored: not JSON (line {line}, column {column})")]
    NotJson { line: usize, column: usize },
    #[error("Result `{RESULT}` ignored: nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
}

/// Reads the result that the job wrote; `None` if the job wrote nothing.
pub(super) fn result(dir: &Path) -> Result<Option<Value>, ResultError> {
    // The job owns this folder and could create a link or a device in it.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let opened = File::options().read(true).custom_flags(flags).open(dir.join("out").join(RESULT));
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) => return Err(ResultError::NotRegular),
    };
    let regular = file.metadata().is_ok_and(|meta| meta.is_file() && meta.nlink() == 1);
    if !regular {
        return Err(ResultError::NotRegular);
    }
    let mut bytes = Vec::new();
    if file.take(RESULT_LIMIT + 1).read_to_end(&mut bytes).is_err() {
        return Err(ResultError::Unreadable);
    }
    if bytes.len() as u64 > RESULT_LIMIT {
        return Err(ResultError::TooLarge);
    }
    if bytes.trim_ascii().is_empty() {
        return Ok(None);
    }
    let value = serde_json::from_slice(&bytes)
        .map_err(|error| ResultError::NotJson { line: error.line(), column: error.column() })?;
    if is_deeper(&value, MAX_DEPTH) {
        return Err(ResultError::TooDeep);
    }
    Ok(Some(value))
}

/// Recursion is safe: the JSON parser rejects deeper values.
fn is_deeper(value: &Value, levels: usize) -> bool {
    let inside = |value: &Value| levels == 0 || is_deeper(value, levels - 1);
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(inside),
        Value::Object(fields) => levels == 0 || fields.values().any(inside),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_result(bytes: &[u8]) -> Result<Option<Value>, ResultError> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("out")).unwrap();
        fs::write(dir.path().join("out").join(RESULT), bytes).unwrap();
        result(dir.path())
    }

    #[test]
    fn the_saved_assignment_has_no_secrets_and_is_enough_to_adopt_the_task() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("1-1-0");
        let given = serde_json::json!({
            "job": 1, "epoch": 1, "task": 0, "runtime": "docker", "image": "busybox",
            "env": {"TOKEN": "hidden-in-env"},
            "registry_auth": {"username": "ada", "password": "hidden-password"},
            "job_data": {"input_data": "hidden-in-data"}, "gpus": [], "cpu": 0, "memory": 0,
            "shm": 0, "volumes": [], "read_only": false, "timeout_ms": 77, "grace_ms": 1000,
            "leased": true, "simulated": false, "user": "ada",
        });
        let given: Assignment = serde_json::from_value(given).unwrap();
        fs::create_dir_all(dir.join("out/old")).unwrap();
        create(&dir, &given, None, &FolderRemover::start()).unwrap();
        assert!(!dir.join("out/old").exists());
        let text = fs::read_to_string(dir.join(ASSIGNMENT)).unwrap();
        assert!(!text.contains("hidden"), "{text}");
        let found = assignment(&dir).unwrap();
        assert_eq!((found.key, found.timeout_ms, found.leased), (given.key, Some(77), true));
    }

    #[test]
    fn a_result_must_be_json_and_small() {
        assert_eq!(read_result(b"{\"loss\": 0.5}").unwrap().unwrap()["loss"], 0.5);
        assert_eq!(read_result(b" \n").unwrap(), None);
        assert!(matches!(read_result(b"{oops"), Err(ResultError::NotJson { line: 1, .. })));
        assert_eq!(read_result(&vec![b' '; 300 << 10]), Err(ResultError::TooLarge));
    }

    #[test]
    fn a_result_has_at_most_64_levels() {
        let nested =
            |levels: usize| read_result(&[vec![b'['; levels], vec![b']'; levels]].concat());
        assert!(nested(64).unwrap().is_some());
        assert_eq!(nested(65), Err(ResultError::TooDeep));
        assert_eq!(nested(127), Err(ResultError::TooDeep));
        assert!(matches!(nested(100_000), Err(ResultError::NotJson { .. })));
        assert!(read_result(b"{\"a\": [1, {\"b\": null}]}").unwrap().is_some());
    }

    #[test]
    fn a_result_cannot_be_a_link_to_a_file_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(result(dir.path()).unwrap(), None);
        fs::create_dir(dir.path().join("out")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("out").join(RESULT)).unwrap();
        assert_eq!(result(dir.path()), Err(ResultError::NotRegular));
    }
}
