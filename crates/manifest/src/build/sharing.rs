//! Sharing GPUs: the device plugin's configuration and mig-parted's, as config maps.

use std::collections::BTreeMap;

use agentaflow_engine::mig::Geometry;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::names::{self, is_label_value, short};
use super::values::{self, Pair};
use super::{BuildError, BuildOutput, refuse};
use crate::cloud::GPU_RESOURCE;
use crate::mig::{self, Layout, MigError, MigParted, Sharing, SharingMode};

/// `generate time-slicing`: several pods on each GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct TimeSlicing {
    /// Pods that share each GPU [default: 4]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub replicas: Option<u32>,
    /// Divide memory and threads with MPS instead of taking turns
    #[arg(long)]
    pub mps: bool,
    /// MIG slices of this profile to share, instead of whole GPUs
    #[arg(long, value_name = "PROFILE")]
    pub mig: Option<String>,
    /// Rename shares to nvidia.com/gpu.shared, to distinguish them from whole GPUs
    #[arg(long)]
    pub rename: bool,
    /// Refuse pods that ask for more than one share
    #[arg(long)]
    pub strict: bool,
    /// Name of the config map [default: nvidia-device-plugin]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Namespace of the device plugin [default: kube-system]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
}

/// `generate mig-config`: partition of GPUs into MIG slices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct MigConfig {
    /// Model of GPU: a30, a100, a100-80, h100, h100-94, h100-96 or h200
    #[arg(long, value_name = "MODEL")]
    pub gpu: Option<String>,
    /// Slices of each GPU; may be given several times, or with commas between
    #[arg(long, value_name = "PROFILE=COUNT", value_delimiter = ',')]
    #[serde(deserialize_with = "values::pairs")]
    pub slices: Vec<Pair>,
    /// Name of the layout, by which nodes choose it [default: custom]
    #[arg(long, value_name = "NAME")]
    pub layout: Option<String>,
    /// Name of the config map [default: mig-parted-config]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Namespace of the GPU operator [default: gpu-operator]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
}

impl TimeSlicing {
    pub fn object(&self) -> Result<ConfigMap, BuildError> {
        let (replicas, resource) = (self.replicas()?, self.resource()?);
        let mode = if self.mps { SharingMode::Mps } else { SharingMode::TimeSlicing };
        if self.mps && self.mig.is_some() {
            return refuse("mps", "the device plugin shares MIG slices by time-slicing only");
        }
        let config = Sharing::new(mode, &resource, replicas, self.rename, self.strict);
        config_map(
            self.name.as_deref().unwrap_or("nvidia-device-plugin"),
            self.namespace.as_deref().unwrap_or("kube-system"),
            &config,
        )
    }

    /// Config map, with a note about shares.
    pub fn make(&self) -> Result<BuildOutput, BuildError> {
        let object = self.object()?;
        let (replicas, resource) = (self.replicas()?, self.resource()?);
        let suffix = if self.rename { ".shared" } else { "" };
        let whole = if self.mig.is_some() { "slice" } else { "GPU" };
        let share = format!("`{resource}{suffix}: 1` means 1/{replicas} of a {whole}");
        let divided = if self.mps {
            format!(
                "each pod can use 1/{replicas} of the memory and threads, and a crash can affect the other pods"
            )
        } else {
            "pods take turns, and one pod can use all of the memory".to_owned()
        };
        let mut notes = vec![format!("{share}: {divided}")];
        if self.mps {
            notes.push("a pod that requests two shares is rejected".to_owned());
        } else if !self.rename && !self.strict {
            let two = format!("two shares can be on one {whole} and are not faster than one");
            notes.push(format!("{two}; --strict rejects them"));
        }
        notes.push("activate it with `config.name` of the device plugin's Helm chart, or of `devicePlugin` in the \
                    GPU operator's".to_owned());
        BuildOutput::of(&object, notes)
    }

    fn replicas(&self) -> Result<u32, BuildError> {
        match self.replicas.unwrap_or(4) {
            // More would leave no memory for any of them; MPS has 48 clients.
            replicas @ 2..=48 => Ok(replicas),
            replicas => refuse("replicas", format!("{replicas} is not between 2 and 48")),
        }
    }

    fn resource(&self) -> Result<String, BuildError> {
        let Some(profile) = &self.mig else { return Ok(GPU_RESOURCE.to_owned()) };
        agentaflow_engine::mig::known_profile(profile).map(mig::resource).map_or_else(
            || {
                refuse(
                    "mig",
                    format!(
                        "no GPU has the profile `{}`: use a form such as 1g.5gb",
                        short(profile)
                    ),
                )
            },
            Ok,
        )
    }
}

impl MigConfig {
    pub fn object(&self) -> Result<ConfigMap, BuildError> {
        let layout = self.checked()?;
        config_map(
            self.name.as_deref().unwrap_or("mig-parted-config"),
            self.namespace.as_deref().unwrap_or("gpu-operator"),
            &MigParted::new(self.layout_name()?, &layout),
        )
    }

    /// Config map, with an explanation of each slice.
    pub fn make(&self) -> Result<BuildOutput, BuildError> {
        let object = self.object()?;
        let mut notes = Vec::new();
        let gpu = self.geometry()?.name;
        for profile in self.checked()?.0.keys() {
            let share = mig::explain(profile, |geometry| geometry.name == gpu).unwrap_or_default();
            notes.push(format!("{}: each is {share}", mig::resource(profile)));
        }
        let map = object.metadata.name.as_deref().unwrap_or_default();
        notes.push(format!(
            "configure the GPU operator: `migManager.config.name={map}` and `mig.strategy=mixed`"
        ));
        notes.push(format!(
            "then label nodes: kubectl label node NODE nvidia.com/mig.config={}",
            self.layout_name()?
        ));
        BuildOutput::of(&object, notes)
    }

    fn geometry(&self) -> Result<&'static Geometry, BuildError> {
        let Some(gpu) = &self.gpu else {
            return refuse("gpu", "the GPU model is required, such as a100 or h100");
        };
        mig::geometry(gpu).or_else(|error| refuse("gpu", error.to_string()))
    }

    fn checked(&self) -> Result<Layout, BuildError> {
        let geometry = self.geometry()?;
        if self.slices.is_empty() {
            return refuse("slices", "the slices are required, such as --slices 3g.20gb=2");
        }
        let mut asked = Vec::new();
        for Pair { key, value } in &self.slices {
            let count = value.parse::<u32>().ok().filter(|count| *count > 0);
            let Some(count) = count else {
                return refuse("slices", format!("`{}` is not a number of slices", short(value)));
            };
            asked.push((key.as_str(), count));
        }
        mig::check(geometry, asked).or_else(|error: MigError| refuse("slices", error.to_string()))
    }

    fn layout_name(&self) -> Result<&str, BuildError> {
        match self.layout.as_deref().unwrap_or("custom") {
            "" | "all-disabled" => refuse("layout", "use another name"),
            name if is_label_value(name) => Ok(name),
            name => refuse("layout", format!("`{}` is not a label value", short(name))),
        }
    }
}

/// Config map with a `config.yaml`.
fn config_map<T: Serialize>(
    name: &str,
    namespace: &str,
    config: &T,
) -> Result<ConfigMap, BuildError> {
    let text =
        serde_saphyr::to_string(config).map_err(|error| BuildError::Yaml(error.to_string()))?;
    let metadata = ObjectMeta {
        name: Some(names::name("name", Some(name))?),
        namespace: Some(names::name("namespace", Some(namespace))?),
        ..ObjectMeta::default()
    };
    let data = Some(BTreeMap::from([("config.yaml".to_owned(), text)]));
    Ok(ConfigMap { metadata, data, ..ConfigMap::default() })
}
