//! The folder of a task: made before it starts, read after it ends, removed when the server has everything.
//!
//! The folder itself belongs to the agent, so that a job cannot put another file in the place of its log or of
//! `assignment.json`. Inside it `out/` and `work/` belong to the job's user.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::OFlags;
use serde_json::{Map, Value};

use agentaflow_api::link::Assignment;

use super::trash::Trash;
use crate::guardian::record::read;
use crate::identity::write_private;
use crate::runtime::process::WORK;
use crate::runtime::user::JobUser;

/// `JOB_DATA` above this goes into a file: programs cannot be started with more than 128 KiB in one variable.
pub(super) const INLINE_DATA: usize = 96 << 10;

/// So many lists and objects of a result may be nested in each other: parsers, the server's too, have a limit.
const DEEPEST: usize = 64;

/// The most that a job may give back as its result.
const OUTPUT_LIMIT: u64 = 256 << 10;

const ASSIGNMENT: &str = "assignment.json";
const RESULT: &str = "output.json";

/// Makes the folder of a task, with nothing of an earlier attempt in it.
pub(super) fn make(
    dir: &Path,
    assignment: &Assignment,
    user: Option<&JobUser>,
    trash: &Trash,
) -> io::Result<()> {
    if let Err(error) = DirBuilder::new().mode(0o700).create(dir) {
        if error.kind() != io::ErrorKind::AlreadyExists {
            return Err(error);
        }
        trash.throw(dir)?;
        DirBuilder::new().mode(0o700).create(dir)?;
    }
    write_private(dir, ASSIGNMENT, &serde_json::to_vec(&without_secrets(assignment))?)?;
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

/// What the next agent needs to adopt the task, and nothing that is secret: a started task has its variables, its
/// data and its image already.
fn without_secrets(assignment: &Assignment) -> Assignment {
    Assignment {
        env: BTreeMap::new(),
        job_data: Map::new(),
        registry_auth: None,
        ..assignment.clone()
    }
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
    let value = serde_json::from_slice(&bytes).map_err(|error| {
        format!(
            "the result `{RESULT}` is not JSON (line {}, column {}) and was ignored",
            error.line(),
            error.column()
        )
    })?;
    if is_deeper(&value, DEEPEST) {
        return Err(format!(
            "the result `{RESULT}` is nested more than {DEEPEST} levels deep and was ignored"
        ));
    }
    Ok(Some(value))
}

/// More levels than this are nested in each other. The parser has refused what is too deep to be looked at.
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

    fn written(bytes: &[u8]) -> Result<Option<Value>, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("out")).unwrap();
        fs::write(dir.path().join("out").join(RESULT), bytes).unwrap();
        result(dir.path())
    }

    #[test]
    fn nothing_secret_is_written_down_and_a_task_can_still_be_adopted() {
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
        // What an earlier attempt left is not in the way.
        fs::create_dir_all(dir.join("out/old")).unwrap();
        make(&dir, &given, None, &Trash::open()).unwrap();
        assert!(!dir.join("out/old").exists());
        let text = fs::read_to_string(dir.join(ASSIGNMENT)).unwrap();
        assert!(!text.contains("hidden"), "{text}");
        let found = assignment(&dir).unwrap();
        assert_eq!((found.key, found.timeout_ms, found.leased), (given.key, Some(77), true));
    }

    #[test]
    fn a_result_must_be_json_and_small() {
        assert_eq!(written(b"{\"loss\": 0.5}").unwrap().unwrap()["loss"], 0.5);
        assert_eq!(written(b" \n").unwrap(), None);
        assert!(written(b"{oops").unwrap_err().contains("not JSON"));
        assert!(written(&vec![b' '; 300 << 10]).unwrap_err().contains("larger than 256 KiB"));
    }

    #[test]
    fn a_result_must_not_be_nested_too_deep() {
        let nested = |levels: usize| written(&[vec![b'['; levels], vec![b']'; levels]].concat());
        assert!(nested(64).unwrap().is_some());
        assert!(nested(65).unwrap_err().contains("more than 64 levels"));
        assert!(nested(127).unwrap_err().contains("more than 64 levels"));
        assert!(nested(100_000).unwrap_err().contains("not JSON"));
        assert!(written(b"{\"a\": [1, {\"b\": null}]}").unwrap().is_some());
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
