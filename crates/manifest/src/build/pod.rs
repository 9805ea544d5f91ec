//! Pod template shared by jobs, servers, workloads and bare pods.

use std::collections::BTreeMap;

use agentaflow_engine::mig::Geometry;
use k8s_openapi::api::core::v1::{self as core, Container, EnvVar, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::image::image;
use super::machines::{unknown_machine_note, unused_gpus_note};
use super::names::{self, is_label_key, short};
use super::placement::{Placement, ResolvedPlacement};
use super::values::{self, Mount, Pair};
use super::{BuildError, BuildOutput, refuse};
use crate::catalogue::Catalogue;
use crate::cloud::{GKE_PARTITION, GPU_RESOURCE, Gpu, INSTANCE_TYPE};
use crate::mig;

/// Most GPUs of one pod.
const MOST_GPUS: u32 = 64;
/// GPUs of most machines.
const USUAL_GPUS: u32 = 8;
/// Default label.
pub(super) const NAME_LABEL: &str = "app.kubernetes.io/name";

/// Container and resources of a pod. Without `bare`, recommended settings are filled in: requests of half the limits,
/// CPU and memory presets by GPU model, shared memory for data loaders, environment variables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Pod")]
pub struct PodShape {
    /// Name of the object
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Namespace [default: left to kubectl]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Container image
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Name of the container
    #[arg(long, value_name = "NAME")]
    pub container: Option<String>,
    /// GPUs, or MIG slices, of each pod [default: 1]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true, value_parser = whole_gpus)]
    pub gpus: Option<u32>,
    /// MIG slices of this profile instead of whole GPUs, such as 1g.5gb
    #[arg(long, value_name = "PROFILE")]
    pub mig: Option<String>,
    /// Limit of memory, such as 16Gi; the request is half [default: by the model of GPU]
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub memory: Option<String>,
    /// Limit of CPU, such as 8 or 8000m; the request is half [default: by the model of GPU]
    #[arg(long, value_name = "CORES", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub cpu: Option<String>,
    /// Request of memory, when not half of the limit
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub memory_request: Option<String>,
    /// Request of CPU, when not half of the limit
    #[arg(long, value_name = "CORES", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub cpu_request: Option<String>,
    /// Shared memory (/dev/shm), or none [default: 2Gi or 4Gi for each GPU]
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub shm: Option<String>,
    /// Environment variable; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    #[serde(deserialize_with = "values::pairs")]
    pub env: Vec<Pair>,
    /// Claim to mount at /workspace [if given without a name: ml-workspace]
    #[arg(long, value_name = "CLAIM", num_args = 0..=1, default_missing_value = "ml-workspace")]
    pub workspace: Option<String>,
    /// Claim with models, mounted at /models
    #[arg(long, value_name = "CLAIM")]
    pub model_cache: Option<String>,
    /// Any other claim to mount, as CLAIM:/path or VOLUME=CLAIM:/path; may be given several times
    #[arg(long, value_name = "CLAIM:PATH")]
    pub mount: Vec<Mount>,
    /// Label of the object and its pods; may be given several times [default: app.kubernetes.io/name=NAME]
    #[arg(long, value_name = "KEY=VALUE")]
    #[serde(deserialize_with = "values::pairs")]
    pub label: Vec<Pair>,
    /// Annotation of the pods; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    #[serde(deserialize_with = "values::pairs")]
    pub annotation: Vec<Pair>,
    /// Service account of the pods
    #[arg(long, value_name = "NAME")]
    pub service_account: Option<String>,
    /// Only the given settings: no presets, requests, shared memory, variables, deadlines
    #[arg(long)]
    pub bare: bool,
    /// Command of the container; arguments of the image's entrypoint if the first word is an option
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Settings that depend on the kind of object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Role {
    /// Default container name.
    pub(super) container: &'static str,
    /// Sets WORKER_TYPE and CUDA_VISIBLE_DEVICES.
    pub(super) worker: bool,
    /// Absent: left to Kubernetes, which means `Always`.
    pub(super) restart: Option<&'static str>,
    /// Labels the pods even with `bare`: a selector needs them.
    pub(super) labelled: bool,
}

/// Pod template with metadata and notes.
#[derive(Clone, Debug)]
pub(super) struct ShapedPod {
    pub(super) metadata: ObjectMeta,
    pub(super) template: PodTemplateSpec,
    pub(super) gpus: u32,
    pub(super) placed: ResolvedPlacement,
    pub(super) notes: Vec<String>,
}

impl ShapedPod {
    /// Notes, with one about GPUs that stay unused on the machines of `pods` pods.
    pub(super) fn notes_for(&self, pods: u32) -> Vec<String> {
        let mut notes = self.notes.clone();
        let slices = self.placed.resource != GPU_RESOURCE
            || self.placed.selector.contains_key(GKE_PARTITION);
        let instance = self.placed.instance.as_ref().filter(|_| !slices);
        if let Some(instance) = instance {
            // After the note about the machine.
            let at = notes.len().min(1);
            notes.splice(at..at, unused_gpus_note(instance, self.gpus, pods));
        }
        notes
    }
}

/// `generate pod`: one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub struct Pod {
    #[command(flatten)]
    #[serde(flatten)]
    pub pod: PodShape,
    #[command(flatten)]
    #[serde(flatten)]
    pub placement: Placement,
}

impl Pod {
    pub fn object(&self, catalogue: &Catalogue) -> Result<core::Pod, BuildError> {
        self.shaped(catalogue).map(|shaped| pod_of(&shaped))
    }

    pub fn make(&self, catalogue: &Catalogue) -> Result<BuildOutput, BuildError> {
        let shaped = self.shaped(catalogue)?;
        BuildOutput::of(&pod_of(&shaped), shaped.notes_for(1))
    }

    fn shaped(&self, catalogue: &Catalogue) -> Result<ShapedPod, BuildError> {
        // Use a job or a deployment to restart a finished pod.
        let restart = (!self.pod.bare).then_some("Never");
        let role = Role { container: "gpu-container", worker: false, restart, labelled: false };
        self.pod.shape(self.pod.name.as_deref(), &self.placement, role, catalogue)
    }
}

fn pod_of(shaped: &ShapedPod) -> core::Pod {
    let annotations = shaped.template.metadata.as_ref().and_then(|meta| meta.annotations.clone());
    core::Pod {
        metadata: ObjectMeta { annotations, ..shaped.metadata.clone() },
        spec: shaped.template.spec.clone(),
        status: None,
    }
}

impl PodShape {
    /// Pod template with an explicit or derived name.
    pub(super) fn shape(
        &self,
        name: Option<&str>,
        placement: &Placement,
        role: Role,
        catalogue: &Catalogue,
    ) -> Result<ShapedPod, BuildError> {
        let metadata = self.metadata(name, role)?;
        let gpus = self.gpus()?;
        let placed = placement.resolve(self.node_request(gpus)?, catalogue)?;
        let notes = self.notes(&placed, placement.spot, catalogue);
        let resources = self.resources(gpus, &placed)?;
        let (volumes, volume_mounts) = self.volumes(gpus, &placed, &resources)?;
        let (command, args) = self.command_and_args();
        let container = Container {
            name: names::name(
                "container",
                Some(self.container.as_deref().unwrap_or(role.container)),
            )?,
            image: Some(self.image()?),
            command: some(command),
            args: some(args),
            env: some(self.variables(gpus, role)?),
            resources: Some(resources),
            volume_mounts: some(volume_mounts),
            ..Container::default()
        };
        let service_account = self.service_account.as_deref();
        let spec = PodSpec {
            affinity: placed.affinity.clone(),
            containers: vec![container],
            node_selector: some(placed.selector.clone()),
            restart_policy: role.restart.map(str::to_owned),
            service_account_name: service_account
                .map(|name| names::name("service-account", Some(name)))
                .transpose()?,
            tolerations: some(placed.tolerations.clone()),
            volumes: some(volumes),
            ..PodSpec::default()
        };
        let of_pods = ObjectMeta {
            labels: metadata.labels.clone(),
            annotations: some(self.annotations()?),
            ..ObjectMeta::default()
        };
        let of_pods = (of_pods != ObjectMeta::default()).then_some(of_pods);
        let template = PodTemplateSpec { metadata: of_pods, spec: Some(spec) };
        Ok(ShapedPod { metadata, template, gpus, placed, notes })
    }

    fn metadata(&self, name: Option<&str>, role: Role) -> Result<ObjectMeta, BuildError> {
        let name = names::name("name", name)?;
        let mut labels = values::labels("label", &self.label)?;
        if labels.is_empty() && (role.labelled || !self.bare) {
            labels.insert(NAME_LABEL.to_owned(), name.clone());
        }
        Ok(ObjectMeta {
            name: Some(name),
            namespace: namespace(self.namespace.as_deref())?,
            labels: some(labels),
            ..ObjectMeta::default()
        })
    }

    fn image(&self) -> Result<String, BuildError> {
        match &self.image {
            None => refuse("image", "an image is required, such as pytorch/pytorch:2.8.0"),
            Some(text) => image("image", text),
        }
    }

    pub(super) fn gpus(&self) -> Result<u32, BuildError> {
        match self.gpus.unwrap_or(1) {
            gpus @ 1..=MOST_GPUS => Ok(gpus),
            gpus => refuse(
                "gpus",
                format!(
                    "{gpus} is not between 1 and {MOST_GPUS}: all GPUs of a pod are on one node"
                ),
            ),
        }
    }

    /// No program is named like an option: `-- --model NAME` are arguments for the image's entrypoint, which a
    /// `command` would replace.
    fn command_and_args(&self) -> (Vec<String>, Vec<String>) {
        let words = self.command.clone();
        if words.first().is_some_and(|word| word.starts_with('-')) {
            (Vec::new(), words)
        } else {
            (words, Vec::new())
        }
    }

    fn variables(&self, gpus: u32, role: Role) -> Result<Vec<EnvVar>, BuildError> {
        let mut all: Vec<Pair> = Vec::new();
        if role.worker && !self.bare {
            all.push(Pair::new("WORKER_TYPE", "gpu"));
            if self.mig.is_none() {
                all.push(Pair::new("CUDA_VISIBLE_DEVICES", devices(gpus)));
            }
        }
        for pair in &self.env {
            let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            let begins = !pair.key.starts_with(|c: char| c.is_ascii_digit() || c == '.');
            if pair.key.is_empty() || !pair.key.chars().all(named) || !begins {
                return refuse("env", format!("`{}` is not a variable name", short(&pair.key)));
            }
            if pair.value.contains('\0') {
                return refuse("env", format!("the value of `{}` has a zero byte", pair.key));
            }
            all.retain(|other| other.key != pair.key);
            all.push(pair.clone());
        }
        let variable =
            |pair: Pair| EnvVar { name: pair.key, value: Some(pair.value), value_from: None };
        Ok(all.into_iter().map(variable).collect())
    }

    fn annotations(&self) -> Result<BTreeMap<String, String>, BuildError> {
        if let Some(bad) = self.annotation.iter().find(|pair| !is_label_key(&pair.key)) {
            let why = "is not an annotation key: use a form such as agentaflow.gpu/priority=5";
            return refuse("annotation", format!("`{}` {why}", short(&bad.key)));
        }
        Ok(self.annotation.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect())
    }

    fn notes(&self, placed: &ResolvedPlacement, spot: bool, catalogue: &Catalogue) -> Vec<String> {
        let mut notes = Vec::new();
        match (&placed.instance, placed.selector.get(INSTANCE_TYPE)) {
            (Some(instance), _) => notes.push(instance.describe(spot)),
            (None, Some(name)) if catalogue.named(name, None).is_none() => {
                notes.push(unknown_machine_note(name, catalogue));
            }
            (None, _) if self.gpus.is_some_and(|gpus| gpus > USUAL_GPUS) && self.mig.is_none() => {
                notes.push(format!(
                    "all GPUs of a pod are on one node, and few machines have more than {USUAL_GPUS}"
                ));
            }
            _ => {}
        }
        if spot && self.workspace.is_none() && self.mount.is_empty() {
            let why = "the cloud can reclaim the node at any time";
            notes.push(format!("{why}: mount a claim for checkpoints, such as --workspace CLAIM"));
        }
        if let Some(profile) = &self.mig {
            let is_meant = |geometry: &Geometry| {
                let is_of =
                    |gpu: &Gpu| mig::rules(gpu).is_some_and(|own| own.name == geometry.name);
                placed.gpu.is_none_or(|gpu| gpu.served_by().any(is_of))
            };
            let share = mig::explain(profile, is_meant).unwrap_or_default();
            notes.push(format!("{}: each is {share}", placed.resource));
            if self.gpus.is_some_and(|slices| slices > 1) {
                notes.push(
                    "a CUDA process can use only one slice: several slices are for several processes".into(),
                );
            }
            if let Some(size) = placed.selector.get(GKE_PARTITION) {
                notes.push(format!(
                    "the node pool must be created with `gpu-partition-size={size}`"
                ));
            }
        }
        notes
    }
}

/// Parses a GPU count; the error for a fraction suggests alternatives.
fn whole_gpus(text: &str) -> Result<u32, String> {
    let parts = "for a part of a GPU use a MIG slice (--mig 1g.5gb) or `generate time-slicing`";
    text.parse().map_err(|_| format!("must be a whole number, such as 2; {parts}"))
}

/// `0,1,2` for three.
fn devices(gpus: u32) -> String {
    let numbers: Vec<_> = (0..gpus).map(|number| number.to_string()).collect();
    numbers.join(",")
}

/// None for the default value.
pub(super) fn some<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

pub(super) fn namespace(given: Option<&str>) -> Result<Option<String>, BuildError> {
    given.map(|text| names::name("namespace", Some(text))).transpose()
}
