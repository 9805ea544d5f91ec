//! Record of images that were pulled with credentials. Docker keeps one cache for all tenants: without the record a tenant
//! without credentials could run an image that another tenant pulled.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::guardian::record;

const FILE: &str = "private-images.json";

/// Images of one agent.
#[derive(Debug)]
pub(super) struct PrivateImages {
    dir: PathBuf,
    known: Mutex<Record>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Record {
    /// Names with tag or digest.
    references: BTreeSet<String>,
    /// Ids: an image may have several names.
    ids: BTreeSet<String>,
}

impl PrivateImages {
    pub(super) fn load(dir: &Path) -> Self {
        let known = record::read(&dir.join(FILE)).unwrap_or_default();
        Self { dir: dir.to_owned(), known: Mutex::new(known) }
    }

    pub(super) fn contains(&self, reference: &str, id: &str) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.references.contains(reference) || known.ids.contains(id)
    }

    /// Called before a pull with credentials, so that a crash during the pull leaves no unknown image.
    pub(super) fn add_reference(&self, reference: &str) -> std::io::Result<()> {
        self.add(|known| known.references.insert(reference.to_owned()))
    }

    pub(super) fn add_id(&self, id: &str) -> std::io::Result<()> {
        self.add(|known| known.ids.insert(id.to_owned()))
    }

    fn add(&self, insert: impl FnOnce(&mut Record) -> bool) -> std::io::Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if insert(&mut known) { record::write(&self.dir, FILE, &*known) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_image_is_known_by_name_and_id_after_a_restart() {
        let temp = tempfile::tempdir().unwrap();
        let images = PrivateImages::load(temp.path());
        assert!(!images.contains("a/b:1", "sha256:1"));
        images.add_reference("a/b:1").unwrap();
        images.add_id("sha256:1").unwrap();
        let again = PrivateImages::load(temp.path());
        assert!(again.contains("a/b:1", "sha256:2") && again.contains("c/d:2", "sha256:1"));
        assert!(!again.contains("c/d:2", "sha256:2"));
    }
}
