//! Leased containers on disk, for the processes that follow a killed guardian: its sentinel, `guardian --sweep` and the
//! next guardian.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use agentaflow_api::link::TaskKey;

use super::{procs, record};

const FILE: &str = "container-leases.json";

/// Leased containers with the socket of their Docker daemon, and the end of their lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContainerLeases {
    /// Boot that has started the containers, and in whose time `until_ms` is.
    boot: String,
    pub(super) until_ms: u64,
    pub(super) containers: Vec<(TaskKey, PathBuf)>,
}

/// File of the leases in the state directory of an agent.
#[derive(Clone, Debug)]
pub(super) struct LeaseFile {
    dir: PathBuf,
}

impl LeaseFile {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// `None` without leased containers. No container survives a boot.
    pub(super) fn load(&self) -> Option<ContainerLeases> {
        let found: ContainerLeases = record::read(&self.dir.join(FILE))?;
        (found.boot == procs::boot_id() && !found.containers.is_empty()).then_some(found)
    }

    /// Not flushed to the disk: the file matters only while the host runs. A file that could not be replaced has an
    /// earlier end, which is safe.
    pub(super) fn save(
        &self,
        until_ms: u64,
        containers: &BTreeMap<TaskKey, PathBuf>,
    ) -> io::Result<()> {
        if containers.is_empty() {
            return self.remove();
        }
        let containers = containers.iter().map(|(key, socket)| (*key, socket.clone())).collect();
        let leases = ContainerLeases { boot: procs::boot_id(), until_ms, containers };
        record::write(&self.dir, FILE, &leases)
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(self.dir.join(FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
