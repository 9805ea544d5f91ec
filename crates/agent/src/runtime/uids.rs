//! uids of process jobs: one per owner, from a range that no other program of the host uses.
//!
//! The uid follows from the owner's id on the server, so it is the same on all hosts and for all agents of a server:
//! files on a shared disk belong to their owner everywhere. Agents of different servers need different ranges.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use agentaflow_api::ids::UserId;

use super::user::JobUser;

/// First and last uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UidRange {
    first: u32,
    last: u32,
}

impl UidRange {
    /// User of an owner's jobs.
    pub(super) fn user(self, owner: Option<UserId>) -> Result<JobUser, String> {
        let owner = owner.ok_or("the server does not name the owner of the job")?;
        let uid = u32::try_from(owner.0).ok().and_then(|id| self.first.checked_add(id));
        let uid = uid.filter(|uid| *uid <= self.last).ok_or_else(|| {
            format!("--process-uids {self} has no uid for the user with id {}; widen it", owner.0)
        })?;
        Ok(JobUser { uid, gid: uid, home: PathBuf::from("/nonexistent"), exclusive: true })
    }
}

impl Default for UidRange {
    /// A hundred thousand uids that neither distributions nor systemd nor container tools use.
    fn default() -> Self {
        Self { first: 1_900_000_000, last: 1_900_099_999 }
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
        // The largest number means "no user" to the kernel.
        parts
            .filter(|range| range.first > 0 && range.first <= range.last && range.last < u32::MAX)
            .ok_or_else(|| "use FIRST-LAST, such as 1900000000-1900099999, without 0".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_has_a_uid_of_the_range() {
        let range: UidRange = "70000-70002".parse().unwrap();
        let uid = |owner: i64| range.user(Some(UserId(owner))).map(|user| (user.uid, user.gid));
        assert_eq!((uid(1), uid(2)), (Ok((70001, 70001)), Ok((70002, 70002))));
        for owner in [3, -1, i64::MAX] {
            assert!(uid(owner).is_err(), "{owner}");
        }
        assert!(range.user(None).is_err());
    }

    #[test]
    fn a_range_excludes_root_and_must_not_be_empty() {
        for text in ["0-5", "9-3", "7", "a-b", "1-4294967295"] {
            assert!(text.parse::<UidRange>().is_err(), "{text}");
        }
        assert_eq!("7-7".parse::<UidRange>().unwrap().to_string(), "7-7");
    }
}
