//! Record of the images that this agent pulled, or asked a registry for. Docker keeps one cache for all tenants and agents:
//! without a check, a tenant without credentials could run an image that another tenant pulled.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bollard::models::ImageInspect;
use serde::{Deserialize, Serialize};

use crate::guardian::record;

const FILE: &str = "private-images.json";

/// Images of one agent.
#[derive(Debug)]
pub(super) struct ImageOrigins {
    dir: PathBuf,
    known: Mutex<Record>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    /// Names with tag or digest of images that were pulled with credentials.
    references: BTreeSet<String>,
    /// Ids of the same: an image may have several names.
    ids: BTreeSet<String>,
    /// Ids of images that a registry gives without credentials.
    public_ids: BTreeSet<String>,
}

impl ImageOrigins {
    pub(super) fn load(dir: &Path) -> Self {
        let known = record::read(&dir.join(FILE)).unwrap_or_default();
        Self { dir: dir.to_owned(), known: Mutex::new(known) }
    }

    /// True if a registry must confirm that a job may use this image of the host. An image of unknown origin counts as
    /// private unless `trusted`: another agent may have pulled it, or this one before it lost its state. An image without
    /// digest is from no registry.
    pub(super) fn needs_check(&self, reference: &str, found: &ImageInspect, trusted: bool) -> bool {
        let id = found.id.as_deref().unwrap_or_default();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.references.contains(reference) || known.ids.contains(id) {
            return true;
        }
        let from_registry = found.repo_digests.as_ref().is_some_and(|digests| !digests.is_empty());
        from_registry && !trusted && !known.public_ids.contains(id)
    }

    /// Called before a pull with credentials, so that a crash during the pull leaves no unknown image.
    pub(super) fn add_private_reference(&self, reference: &str) -> std::io::Result<()> {
        self.add(|known| known.references.insert(reference.to_owned()))
    }

    pub(super) fn add_private_id(&self, id: &str) -> std::io::Result<()> {
        self.add(|known| known.ids.insert(id.to_owned()))
    }

    pub(super) fn add_public_id(&self, id: &str) -> std::io::Result<()> {
        self.add(|known| known.public_ids.insert(id.to_owned()))
    }

    fn add(&self, insert: impl FnOnce(&mut Record) -> bool) -> std::io::Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if insert(&mut known) { record::write(&self.dir, FILE, &*known) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, from_registry: bool) -> ImageInspect {
        let digests = if from_registry { vec!["a/b@sha256:00".to_owned()] } else { Vec::new() };
        ImageInspect {
            id: Some(id.to_owned()),
            repo_digests: Some(digests),
            ..ImageInspect::default()
        }
    }

    #[test]
    fn a_private_image_is_known_by_name_and_id_after_a_restart() {
        let temp = tempfile::tempdir().unwrap();
        let images = ImageOrigins::load(temp.path());
        images.add_private_reference("a/b:1").unwrap();
        images.add_private_id("sha256:1").unwrap();
        let again = ImageOrigins::load(temp.path());
        let asks = |reference: &str, id: &str, trusted| {
            again.needs_check(reference, &image(id, false), trusted)
        };
        for trusted in [false, true] {
            assert!(asks("a/b:1", "sha256:2", trusted) && asks("c/d:2", "sha256:1", trusted));
            assert!(!asks("c/d:2", "sha256:2", trusted));
        }
    }

    #[test]
    fn an_image_of_unknown_origin_is_checked_once_it_came_from_a_registry() {
        let temp = tempfile::tempdir().unwrap();
        let images = ImageOrigins::load(temp.path());
        let asks = |from_registry, trusted| {
            images.needs_check("a/b:1", &image("sha256:1", from_registry), trusted)
        };
        assert!(asks(true, false));
        assert!(!asks(false, false));
        assert!(!asks(true, true));
        images.add_public_id("sha256:1").unwrap();
        assert!(!asks(true, false));
        // Known as private under another name.
        images.add_private_id("sha256:1").unwrap();
        assert!(asks(true, false));
    }
}
