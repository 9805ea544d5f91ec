//! Saves the reason for a stop in the task folder, for an agent that starts during the stop.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use agentaflow_api::link::StopCause;
use agentaflow_api::units::Stamp;

const FILE: &str = "stop.json";

/// Recorded stop request. A container that ended before `at` was not stopped.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StopRecord {
    pub cause: StopCause,
    pub at: Stamp,
    grace_ms: u64,
}

impl StopRecord {
    pub fn now(cause: StopCause, grace: Duration) -> Self {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        Self { cause, at: Stamp::now(), grace_ms }
    }

    /// Time between TERM and KILL.
    pub fn grace(self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }
}

/// Writes the record unless the folder already has one: the first reason counts.
pub fn save(folder: &Path, stopped: StopRecord) {
    let write = || -> std::io::Result<()> {
        let temporary = folder.join("stop.json.new");
        fs::write(&temporary, serde_json::to_vec(&stopped)?)?;
        // Unlike a rename, a link does not replace an existing file.
        let linked = fs::hard_link(&temporary, folder.join(FILE));
        fs::remove_file(&temporary)?;
        linked
    };
    match write() {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            tracing::warn!("cannot write `{}`: {error}", folder.join(FILE).display());
        }
        _ => {}
    }
}

pub fn load(folder: &Path) -> Option<StopRecord> {
    serde_json::from_slice(&fs::read(folder.join(FILE)).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_stop_record_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        assert!(load(folder.path()).is_none());
        for cause in [StopCause::TimedOut, StopCause::Cancelled] {
            save(folder.path(), StopRecord::now(cause, Duration::from_millis(1500)));
        }
        let stopped = load(folder.path()).unwrap();
        assert_eq!(stopped.cause, StopCause::TimedOut);
        assert_eq!(stopped.grace(), Duration::from_millis(1500));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
