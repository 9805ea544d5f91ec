//! Configuration files for GPU sharing: of the device plugin, and of mig-parted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Layout;

/// The device plugin's configuration for several pods on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sharing {
    version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    flags: Option<Flags>,
    #[serde(rename = "sharing")]
    modes: Modes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingMode {
    /// Pods take turns; memory is shared without isolation.
    TimeSlicing,
    /// Pods run concurrently, each with its part of memory and threads.
    Mps,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Flags {
    mig_strategy: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Modes {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_slicing: Option<Replicated>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mps: Option<Replicated>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Replicated {
    #[serde(default, skip_serializing_if = "is_false")]
    rename_by_default: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    fail_requests_greater_than_one: bool,
    resources: Vec<Resource>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resource {
    name: String,
    replicas: u32,
}

impl Sharing {
    /// Advertises every GPU `replicas` times. `rename` renames the resource to `nvidia.com/gpu.shared`, so that a
    /// share is not mistaken for a whole GPU. `strict` rejects pods that request several shares, which could be of
    /// one GPU.
    pub fn new(
        mode: SharingMode,
        resource: &str,
        replicas: u32,
        rename: bool,
        strict: bool,
    ) -> Self {
        let part = Replicated {
            rename_by_default: rename,
            fail_requests_greater_than_one: strict,
            resources: vec![Resource { name: resource.to_owned(), replicas }],
        };
        // Slices have resources of their own only under the strategy `mixed`.
        let slices = resource.starts_with("nvidia.com/mig-");
        let flags = slices.then(|| Flags { mig_strategy: "mixed".to_owned() });
        let modes = match mode {
            SharingMode::TimeSlicing => Modes { time_slicing: Some(part), mps: None },
            SharingMode::Mps => Modes { mps: Some(part), time_slicing: None },
        };
        Self { version: "v1".to_owned(), flags, modes }
    }
}

/// Configuration of mig-parted, which the GPU operator's MIG manager applies to nodes labelled
/// `nvidia.com/mig.config=<name>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigParted {
    version: String,
    #[serde(rename = "mig-configs")]
    layouts: BTreeMap<String, Vec<Devices>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Devices {
    #[serde(rename = "devices")]
    which: String,
    #[serde(rename = "mig-enabled")]
    enabled: bool,
    #[serde(rename = "mig-devices", default, skip_serializing_if = "BTreeMap::is_empty")]
    slices: BTreeMap<String, u32>,
}

impl MigParted {
    /// A named layout for all GPUs of a node, and `all-disabled`, which restores whole GPUs.
    pub fn new(name: &str, layout: &Layout) -> Self {
        let devices = |slices: &Layout| Devices {
            which: "all".to_owned(),
            enabled: !slices.0.is_empty(),
            slices: slices.0.iter().map(|(name, count)| ((*name).into(), *count)).collect(),
        };
        let off = ("all-disabled".to_owned(), vec![devices(&Layout::default())]);
        let layouts = BTreeMap::from([off, (name.to_owned(), vec![devices(layout)])]);
        Self { version: "v1".to_owned(), layouts }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
