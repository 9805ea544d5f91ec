//! Users of process jobs.

use std::fs;
use std::path::PathBuf;

use rustix::process::{getegid, geteuid};

use agentaflow_api::ids::UserId;

use super::uids::UidRange;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobUser {
    pub uid: u32,
    pub gid: u32,
    pub home: PathBuf,
    /// Only processes of jobs have this user.
    pub exclusive: bool,
}

/// Assigns users of the host to the owners of jobs.
#[derive(Debug)]
pub enum JobUsers {
    /// All jobs run as the user of the agent, which is not root.
    Agent,
    /// All jobs run as the user that the operator chose.
    One(JobUser),
    /// The jobs of each owner have their own uid.
    Range(UidRange),
}

impl JobUsers {
    /// An agent that runs as root never runs jobs as root; any other agent can run them only as its own user. `name` is
    /// the operator's choice.
    pub fn choose(name: Option<&str>, range: UidRange) -> Result<Self, String> {
        match name {
            Some(name) => Ok(JobUser::choose(name)?.map_or(Self::Agent, Self::One)),
            None if geteuid().is_root() => Ok(Self::Range(range)),
            None => Ok(Self::Agent),
        }
    }

    /// User of the jobs of an owner; `None` means the user of the agent.
    pub fn of(&self, owner: Option<UserId>) -> Result<Option<JobUser>, String> {
        match self {
            Self::Agent => Ok(None),
            Self::One(user) => Ok(Some(user.clone())),
            Self::Range(range) => range.user(owner).map(Some),
        }
    }

    pub fn differ_from_agent(&self) -> bool {
        !matches!(self, Self::Agent)
    }
}

impl JobUser {
    /// Finds the user that the operator chose; `None` means the agent's own user.
    pub fn choose(name: &str) -> Result<Option<Self>, String> {
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let is_root = geteuid().is_root();
        let user = find(&passwd, name).ok_or_else(|| {
            format!("user `{name}` does not exist on this host; set another user for process jobs")
        })?;
        if is_root && user.uid == 0 {
            return Err("process jobs cannot run as root; set an unprivileged user".to_owned());
        }
        if is_root {
            return Ok(Some(user));
        }
        if (user.uid, user.gid) == (geteuid().as_raw(), getegid().as_raw()) {
            return Ok(None);
        }
        Err(format!(
            "only root can run jobs as another user; start the agent as root or as `{name}`"
        ))
    }
}

/// Looks up a name in `/etc/passwd`, or parses `uid:gid`.
fn find(passwd: &str, name: &str) -> Option<JobUser> {
    let by_name = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [login, _, uid, gid, _, home, ..] = fields[..] else { return None };
        (login == name).then_some(())?;
        Some(JobUser {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            home: home.into(),
            exclusive: false,
        })
    });
    by_name.or_else(|| {
        let (uid, gid) = name.split_once(':')?;
        Some(JobUser {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            home: "/".into(),
            exclusive: false,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_or_by_uid_and_gid() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\njobs:x:990:991:,,,:/srv/jobs:/bin/false\n";
        let jobs = JobUser { uid: 990, gid: 991, home: "/srv/jobs".into(), exclusive: false };
        assert_eq!(find(passwd, "jobs"), Some(jobs));
        assert_eq!(find(passwd, "7:8").map(|user| (user.uid, user.gid)), Some((7, 8)));
        assert_eq!(find(passwd, "job"), None);
    }
}
