//! The wall clock of the server, which libfaketime sets. Monotonic clocks stay true.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

pub(super) struct WallClock {
    library: PathBuf,
    folder: TempDir,
}

impl WallClock {
    /// None without libfaketime.
    pub(super) fn find() -> Option<Self> {
        let folders = fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
        let mut libraries = folders.map(|path| path.join("faketime/libfaketimeMT.so.1"));
        let library = libraries.find(|library| library.exists())?;
        let folder = tempfile::Builder::new().prefix("agentaflow-clock-").tempdir().unwrap();
        let clock = Self { library, folder };
        clock.set(0);
        Some(clock)
    }

    /// Variables of the server.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        let file = self.folder.path().join("offset").display().to_string();
        let library = self.library.display().to_string();
        [
            ("LD_PRELOAD", library.as_str()),
            ("FAKETIME_TIMESTAMP_FILE", &file),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("NO_FAKE_STAT", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    /// Sets the clock to this offset from the true time.
    pub(super) fn set(&self, seconds: i64) {
        let (next, file) = (self.folder.path().join("next"), self.folder.path().join("offset"));
        fs::write(&next, format!("{seconds:+}s")).unwrap();
        fs::rename(next, file).unwrap();
    }
}
