//! Lock of a data directory: one server each.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// Error of the lock.
#[derive(Debug)]
pub(super) enum Refused {
    /// Message that names the other server.
    InUse(String),
    Failed(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Takes the lock of a data directory until the file is dropped or the process ends.
pub(super) fn take(data_dir: &Path) -> Result<File, Refused> {
    let path = data_dir.join("server.lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(Refused::InUse(in_use(file, data_dir))),
        Err(error) => return Err(Refused::Failed(error.into())),
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

fn in_use(file: File, data_dir: &Path) -> String {
    let mut text = String::new();
    // Without a readable file the message has no process id.
    let _ = file.take(32).read_to_string(&mut text);
    let pid =
        text.trim().parse::<u32>().map_or_else(|_| String::new(), |pid| format!(" (pid {pid})"));
    let dir = data_dir.display();
    format!("another agentaflow server{pid} uses {dir}; stop it or choose another --data-dir")
}
