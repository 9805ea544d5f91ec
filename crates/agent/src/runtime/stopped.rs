//! Remembers in a task's folder why it was stopped.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use agentaflow_api::link::StopCause;
use agentaflow_api::units::Stamp;

/// The file in a task's folder that says why it was stopped.
const FILE: &str = "stop.json";

/// That, why and when a task was told to stop.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stopped {
    /// Why.
    pub cause: StopCause,
    /// A container that was over before was not stopped.
    pub at: Stamp,
    grace_ms: u64,
}

impl Stopped {
    /// Told to stop at this moment.
    pub fn now(cause: StopCause, grace: Duration) -> Self {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        Self { cause, at: Stamp::now(), grace_ms }
    }

    /// Between TERM and KILL.
    pub fn grace(self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }
}

/// Writes down why a task is stopped, for an agent that starts anew meanwhile. The first reason counts.
pub fn remember(folder: &Path, stopped: Stopped) {
    let write = || -> std::io::Result<()> {
        let temporary = folder.join("stop.json.new");
        fs::write(&temporary, serde_json::to_vec(&stopped)?)?;
        // A link, unlike a rename, does not replace what is there.
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

/// Why a task was stopped, as written down.
pub fn remembered(folder: &Path) -> Option<Stopped> {
    serde_json::from_slice(&fs::read(folder.join(FILE)).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_for_a_stop_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        assert!(remembered(folder.path()).is_none());
        for cause in [StopCause::TimedOut, StopCause::Cancelled] {
            remember(folder.path(), Stopped::now(cause, Duration::from_millis(1500)));
        }
        let stopped = remembered(folder.path()).unwrap();
        assert_eq!(stopped.cause, StopCause::TimedOut);
        assert_eq!(stopped.grace(), Duration::from_millis(1500));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
