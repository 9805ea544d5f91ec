//! Volumes of a pod: claims, and shared memory for data loaders.

use agentaflow_units::Amount;
use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, PersistentVolumeClaimVolumeSource, ResourceRequirements, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::names::{self, is_name, short};
use super::placement::ResolvedPlacement;
use super::pod::PodShape;
use super::quantity;
use super::values::{self, Mount};
use super::{BuildError, refuse};

impl PodShape {
    pub(super) fn volumes(
        &self,
        gpus: u32,
        placed: &ResolvedPlacement,
        resources: &ResourceRequirements,
    ) -> Result<(Vec<Volume>, Vec<VolumeMount>), BuildError> {
        let mut volumes: Vec<Volume> = Vec::new();
        let mut mounts: Vec<VolumeMount> = Vec::new();
        for mount in self.mounts()? {
            let claim_name = mount.claim;
            let claim = PersistentVolumeClaimVolumeSource { claim_name, read_only: None };
            volumes.push(Volume {
                name: mount.volume.clone(),
                persistent_volume_claim: Some(claim),
                ..Volume::default()
            });
            mounts.push(volume_mount(mount.volume, mount.path));
        }
        if let Some(size) = self.shm(gpus, placed, resources)? {
            let source = EmptyDirVolumeSource {
                medium: Some("Memory".to_owned()),
                size_limit: Some(Quantity(size)),
            };
            volumes.push(Volume {
                name: "shm".to_owned(),
                empty_dir: Some(source),
                ..Volume::default()
            });
            mounts.push(volume_mount("shm".to_owned(), "/dev/shm".to_owned()));
        }
        Ok((volumes, mounts))
    }

    /// All claims; volumes and paths are distinct.
    fn mounts(&self) -> Result<Vec<Mount>, BuildError> {
        let mut all: Vec<Mount> = Vec::new();
        let named = [
            ("workspace", "workspace", &self.workspace, "/workspace"),
            ("model-cache", "model-cache", &self.model_cache, "/models"),
        ];
        for (flag, volume, claim, path) in named {
            if let Some(claim) = claim {
                let (claim, volume) = (names::name(flag, Some(claim))?, volume.to_owned());
                all.push(Mount { volume, claim, path: path.to_owned() });
            }
        }
        for mount in &self.mount {
            let is_whole = is_name(&mount.volume)
                && is_name(&mount.claim)
                && values::is_mount_path(&mount.path);
            if !is_whole {
                return refuse("mount", "use CLAIM:/path or VOLUME=CLAIM:/path");
            }
            let taken = mount.volume == "shm" || mount.path == "/dev/shm";
            if taken
                || all.iter().any(|other| other.volume == mount.volume || other.path == mount.path)
            {
                return refuse(
                    "mount",
                    format!(
                        "the volume `{}` or the path `{}` already exists",
                        mount.volume,
                        short(&mount.path)
                    ),
                );
            }
            all.push(mount.clone());
        }
        Ok(all)
    }

    /// Size of `/dev/shm`. It counts against the memory limit: the default is at most half of the limit.
    fn shm(
        &self,
        gpus: u32,
        placed: &ResolvedPlacement,
        resources: &ResourceRequirements,
    ) -> Result<Option<String>, BuildError> {
        let limit = resources.limits.as_ref().and_then(|limits| limits.get("memory"));
        let limit = limit.and_then(|limit| quantity::parse(&limit.0));
        match self.shm.as_deref() {
            Some("none") => Ok(None),
            Some(text) => {
                let size = quantity::memory("shm", text)?;
                if limit.is_some_and(|limit| size >= limit) {
                    return refuse("shm", "counts against the memory limit, which must be larger");
                }
                Ok(Some(text.to_owned()))
            }
            None if self.bare => Ok(None),
            None => {
                let each = placed.gpu.map_or(2, crate::cloud::Gpu::shm_gib);
                let times = if self.mig.is_some() { 1 } else { gpus };
                let wanted = u64::from(each * times) << 10;
                let most = limit.map_or(wanted, |limit| limit.ceil_mib() / 2).max(1);
                Ok(Some(Amount::from_mib(wanted.min(most)).to_binary()))
            }
        }
    }
}

fn volume_mount(name: String, mount_path: String) -> VolumeMount {
    VolumeMount { name, mount_path, ..VolumeMount::default() }
}
