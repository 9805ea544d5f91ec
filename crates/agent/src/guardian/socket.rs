//! Socket of the guardian, `guardian.sock` in the state directory.
//!
//! The path of a unix socket is limited to 108 bytes, and state directories may be longer: both sides use
//! `/proc/self/fd/N`, where N is the opened directory.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use tokio::net::{UnixListener, UnixStream};

const NAME: &str = "guardian.sock";

/// Released when dropped.
#[derive(Debug)]
pub(crate) struct GuardianLock(#[expect(dead_code, reason = "held, not read")] File);

/// Locks a state directory; `None` if another guardian holds the lock.
pub(crate) fn lock(dir: &Path) -> io::Result<Option<GuardianLock>> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(dir.join("guardian.lock"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(GuardianLock(file))),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Creates the socket with mode 0600.
pub(crate) fn bind(dir: &Path) -> io::Result<UnixListener> {
    let path = dir.join(NAME);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let (folder, short) = through_descriptor(dir)?;
    let listener = UnixListener::bind(short)?;
    drop(folder);
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

pub(crate) async fn connect(dir: &Path) -> io::Result<UnixStream> {
    let (folder, short) = through_descriptor(dir)?;
    let stream = UnixStream::connect(short).await;
    drop(folder);
    stream
}

/// True if a guardian accepts connections.
pub(crate) fn answers(dir: &Path) -> bool {
    let connect =
        |(_folder, short): (File, PathBuf)| std::os::unix::net::UnixStream::connect(short);
    through_descriptor(dir).and_then(connect).is_ok()
}

fn through_descriptor(dir: &Path) -> io::Result<(File, PathBuf)> {
    let flags = (OFlags::PATH | OFlags::DIRECTORY).bits().cast_signed();
    let folder = OpenOptions::new().read(true).custom_flags(flags).open(dir)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}/{NAME}", folder.as_raw_fd()));
    Ok((folder, short))
}
