//! Free space of the disk. Logs share the disk with the database, which must always be able to write.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Logs leave 1/20 of the disk free, at most this many bytes.
const KEPT_FREE: u64 = 1 << 30;
/// Minimum interval of checks.
const EVERY: Duration = Duration::from_secs(1);

/// Free and total bytes.
pub(crate) type Room = (u64, u64);

/// Tracks if the disk is nearly full.
#[derive(Debug)]
pub(super) struct Disk {
    look: fn(&Path) -> Option<Room>,
    seen: Mutex<Option<(Instant, bool)>>,
}

impl Default for Disk {
    fn default() -> Self {
        Self::new(room)
    }
}

impl Disk {
    pub(super) fn new(look: fn(&Path) -> Option<Room>) -> Self {
        Self { look, seen: Mutex::default() }
    }

    /// Returns true if logs must not grow now. A change is logged.
    pub(super) fn is_nearly_full(&self, dir: &Path) -> bool {
        self.check(dir, Instant::now())
    }

    /// Bytes that are missing for twice the space that logs leave free; 0 unless the disk is nearly full.
    pub(super) fn missing(&self, dir: &Path) -> u64 {
        let Some((free, all)) = (self.look)(dir) else { return 0 };
        let kept = KEPT_FREE.min(all / 20);
        if free < kept { 2 * kept - free } else { 0 }
    }

    fn check(&self, dir: &Path, now: Instant) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match *seen {
            Some((at, full)) if now.saturating_duration_since(at) < EVERY => return full,
            Some((_, full)) => full,
            None => false,
        };
        // Logs are written if the system cannot report its free space.
        let full = (self.look)(dir).is_some_and(|(free, all)| free < KEPT_FREE.min(all / 20));
        *seen = Some((now, full));
        match (before, full) {
            (false, true) => tracing::warn!(
                dir = %dir.display(),
                "Disk is nearly full; output of jobs is dropped to keep space for the database"
            ),
            (true, false) => tracing::info!("Disk has free space again; output of jobs is stored"),
            _ => {}
        }
        full
    }
}

/// Free bytes, and the bytes that users of the system may fill: without the share that is reserved for root.
pub(crate) fn usable_room(dir: &Path) -> Option<Room> {
    let found = dir.ancestors().find_map(|dir| rustix::fs::statvfs(dir).ok())?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    let used = found.f_blocks.saturating_sub(found.f_bfree);
    Some((bytes(found.f_bavail), bytes(used.saturating_add(found.f_bavail))))
}

/// Space on the disk of this directory, or of its first existing ancestor.
fn room(dir: &Path) -> Option<Room> {
    let found = dir.ancestors().find_map(|dir| rustix::fs::statvfs(dir).ok())?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Some((bytes(found.f_bavail), bytes(found.f_blocks)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn the_disk_is_asked_once_a_second_and_a_twentieth_or_a_gibibyte_is_left_alone() {
        static FREE: AtomicU64 = AtomicU64::new(u64::MAX);
        static ALL: AtomicU64 = AtomicU64::new(10 << 30);
        let disk = Disk::new(|_| Some((FREE.load(Ordering::Relaxed), ALL.load(Ordering::Relaxed))));
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let cases: [(u32, u64, u64, bool); 6] = [
            (0, 600 << 20, 10 << 30, false),
            (0, 400 << 20, 10 << 30, false),
            (1, 400 << 20, 10 << 30, true),
            (1, 600 << 20, 10 << 30, true),
            (2, 1 << 30, 1 << 40, false),
            (3, (1 << 30) - 1, 1 << 40, true),
        ];
        for (at, free, all, full) in cases {
            FREE.store(free, Ordering::Relaxed);
            ALL.store(all, Ordering::Relaxed);
            assert_eq!(disk.check(Path::new("/"), start + second * at), full, "{free} of {all}");
        }
    }

    #[test]
    fn a_real_disk_has_a_size_even_before_the_folder_is_there() {
        let (free, all) = room(Path::new("/tmp/nothing/of/this/kind")).unwrap();
        assert!(all > 0 && free <= all);
        let (usable_free, usable) = usable_room(Path::new("/tmp/nothing/of/this/kind")).unwrap();
        assert!(usable > 0 && usable <= all && usable_free <= usable);
        assert!(!Disk::new(|_| None).is_nearly_full(Path::new("/")));
    }
}
