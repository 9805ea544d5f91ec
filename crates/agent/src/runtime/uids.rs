//! uids of process jobs: one per owner, from a range that no other program of the host uses.
//!
//! All agents of a host share one directory with a file per uid, so that two agents never give one uid to two owners. The
//! file contains the owner and the state directory of the agent; a uid is free again when that directory is gone.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use rustix::process::geteuid;

use super::user::JobUser;
use crate::identity::{random_name, write_private};

const SHARED_DIR: &str = "/var/lib/agentaflow-uids";

/// First and last uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UidRange {
    first: u32,
    last: u32,
}

impl Default for UidRange {
    /// Ten thousand uids that neither distributions nor systemd nor container tools use.
    fn default() -> Self {
        Self { first: 1_900_000_000, last: 1_900_009_999 }
    }
}

impl fmt::Display for UidRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for UidRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('-').and_then(|(first, last)| {
            Some(Self { first: first.trim().parse().ok()?, last: last.trim().parse().ok()? })
        });
        // The largest number means \"no user\" to the kernel.
        parts
            .filter(|range| range.first > 0 && range.first <= range.last && range.last < u32::MAX)
            .ok_or_else(|| "use FIRST-LAST, such as 1900000000-1900009999, without 0".to_owned())
    }
}

#[derive(Debug)]
pub struct UidTable {
    range: UidRange,
    dir: PathBuf,
    state: PathBuf,
    known: Mutex<HashMap<String, u32>>,
}

impl UidTable {
    pub(super) fn new(range: UidRange, state: &Path) -> Self {
        Self::at(PathBuf::from(SHARED_DIR), range, state)
    }

    fn at(dir: PathBuf, range: UidRange, state: &Path) -> Self {
        Self { range, dir, state: state.to_owned(), known: Mutex::default() }
    }

    /// User of an owner's jobs: the same in each call, also after a restart of the agent.
    pub(super) fn user(&self, owner: &str) -> Result<JobUser, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = match known.get(owner) {
            Some(uid) => *uid,
            None => {
                let failed = |error| format!("cannot use `{}`: {error}", self.dir.display());
                let uid = self.find_or_take(owner).map_err(failed)?.ok_or_else(|| {
                    format!("all uids of {} are in use; widen --process-uids", self.range)
                })?;
                known.insert(owner.to_owned(), uid);
                uid
            }
        };
        Ok(JobUser { uid, gid: uid, home: PathBuf::from("/nonexistent") })
    }

    fn find_or_take(&self, owner: &str) -> io::Result<Option<u32>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let meta = fs::symlink_metadata(&self.dir)?;
        if !meta.is_dir() || meta.uid() != geteuid().as_raw() || meta.mode() & 0o022 != 0 {
            return Err(io::Error::other("other users can write to it"));
        }
        let mine = format!("{owner}\n{}", self.state.display());
        let mut taken = Vec::new();
        for entry in fs::read_dir(&self.dir)?.flatten() {
            let uid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            let Some(uid) = uid.filter(|uid| (self.range.first..=self.range.last).contains(uid))
            else {
                continue;
            };
            match fs::read_to_string(entry.path()) {
                Ok(text) if text == mine => return Ok(Some(uid)),
                Ok(text) if is_abandoned(&text) => {
                    let _ = fs::remove_file(entry.path());
                }
                _ => taken.push(uid),
            }
        }
        self.take(&mine, &taken)
    }

    /// Takes the first free uid. A link fails if another agent was faster.
    fn take(&self, mine: &str, taken: &[u32]) -> io::Result<Option<u32>> {
        let name = format!(".{}", random_name()?);
        write_private(&self.dir, &name, mine.as_bytes())?;
        let draft = self.dir.join(name);
        let mut free = (self.range.first..=self.range.last).filter(|uid| !taken.contains(uid));
        let found =
            free.find_map(|uid| match fs::hard_link(&draft, self.dir.join(uid.to_string())) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                linked => Some(linked.map(|()| uid)),
            });
        fs::remove_file(&draft)?;
        found.transpose()
    }
}

/// True if the state directory of the agent that took the uid is gone.
fn is_abandoned(text: &str) -> bool {
    let state = text.split_once('\n').map(|(_, state)| Path::new(state));
    state.is_some_and(|state| {
        matches!(state.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_and_agents_get_different_uids_and_keep_them() {
        let temp = tempfile::tempdir().unwrap();
        let range: UidRange = "70000-70002".parse().unwrap();
        let table = |agent: &str| {
            let state = temp.path().join(agent);
            fs::create_dir_all(&state).unwrap();
            UidTable::at(temp.path().join("uids"), range, &state)
        };
        let uid = |table: &UidTable, owner: &str| table.user(owner).map(|user| user.uid);
        let first = table("a");
        assert_eq!(uid(&first, "ada"), Ok(70000));
        assert_eq!(uid(&first, "bob"), Ok(70001));
        assert_eq!(uid(&table("a"), "ada"), Ok(70000), "after a restart");
        assert_eq!(uid(&table("b"), "ada"), Ok(70002), "of another agent");
        assert!(uid(&first, "eve").is_err(), "the range is exhausted");
        fs::remove_dir_all(temp.path().join("b")).unwrap();
        assert_eq!(uid(&first, "eve"), Ok(70002), "of a deleted agent");
    }

    #[test]
    fn a_range_excludes_root_and_must_not_be_empty() {
        for text in ["0-5", "9-3", "7", "a-b", "1-4294967295"] {
            assert!(text.parse::<UidRange>().is_err(), "{text}");
        }
        assert_eq!("7-7".parse::<UidRange>().unwrap().to_string(), "7-7");
    }
}
