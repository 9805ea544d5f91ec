//! Claims of storage.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::names::{self, short};
use super::pod::namespace;
use super::{BuildError, BuildOutput, is_name, quantity, refuse, values};

/// `generate pvc`: a claim for models, data or a workspace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Claim {
    /// Name of the claim
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Namespace [default: left to kubectl]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Size of the claim [default: 100Gi]
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub size: Option<String>,
    /// Storage class [default: the cluster's]
    #[arg(long, value_name = "NAME")]
    pub storage_class: Option<String>,
    /// Access mode [default: ReadWriteOnce]
    #[arg(long, value_enum, value_name = "MODE")]
    pub access_mode: Option<AccessMode>,
}

/// Access mode of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum AccessMode {
    /// Pods of one node
    #[default]
    #[value(name = "ReadWriteOnce", alias = "rwo")]
    #[serde(alias = "rwo")]
    ReadWriteOnce,
    /// Many nodes, read-only
    #[value(name = "ReadOnlyMany", alias = "rox")]
    #[serde(alias = "rox")]
    ReadOnlyMany,
    /// Pods of many nodes
    #[value(name = "ReadWriteMany", alias = "rwx")]
    #[serde(alias = "rwx")]
    ReadWriteMany,
    /// One pod
    #[value(name = "ReadWriteOncePod", alias = "rwop")]
    #[serde(alias = "rwop")]
    ReadWriteOncePod,
}

impl AccessMode {
    /// Name in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadOnlyMany => "ReadOnlyMany",
            Self::ReadWriteMany => "ReadWriteMany",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
        }
    }

    /// True if several nodes may mount the claim at once.
    pub(super) fn many(self) -> bool {
        matches!(self, Self::ReadOnlyMany | Self::ReadWriteMany)
    }
}

impl Claim {
    pub fn object(&self) -> Result<PersistentVolumeClaim, BuildError> {
        let size = self.size.clone().unwrap_or_else(|| "100Gi".to_owned());
        quantity::memory("size", &size)?;
        let class = self.storage_class.clone();
        // Classes may have dots in their names.
        if class.as_deref().is_some_and(|class| class.len() > 253 || !class.split('.').all(is_name))
        {
            let class = short(&class.unwrap_or_default());
            return refuse("storage-class", format!("`{class}` is not a valid storage class name"));
        }
        let requests = BTreeMap::from([("storage".to_owned(), Quantity(size))]);
        let spec = PersistentVolumeClaimSpec {
            access_modes: Some(vec![self.access_mode.unwrap_or_default().name().to_owned()]),
            resources: Some(VolumeResourceRequirements { limits: None, requests: Some(requests) }),
            storage_class_name: class,
            ..PersistentVolumeClaimSpec::default()
        };
        let metadata = ObjectMeta {
            name: Some(names::name("name", self.name.as_deref())?),
            namespace: namespace(self.namespace.as_deref())?,
            ..ObjectMeta::default()
        };
        Ok(PersistentVolumeClaim { metadata, spec: Some(spec), status: None })
    }

    pub fn make(&self) -> Result<BuildOutput, BuildError> {
        BuildOutput::of(&self.object()?, Vec::new())
    }
}
