//! Karpenter's `NodePool`: GPU nodes created on demand and removed when empty.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::machines::{known, unknown_machine_note};
use super::names::{self, is_label_value, short};
use super::placement::model;
use super::{BuildError, BuildOutput, refuse, values};
use crate::catalogue::{Catalogue, InstanceType};
use crate::cloud::{ACCELERATOR, Cloud, GPU_RESOURCE, GPU_TAINT, Gpu, INSTANCE_TYPE};

/// `generate nodepool`: a pool of GPU nodes for Karpenter, from none up to a limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct NodePool {
    /// Name of the pool [default: gpu]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Provider of Karpenter: karpenter (on EKS) or aks [default: karpenter]
    #[arg(long, value_enum, value_name = "CLOUD")]
    pub cloud: Option<Cloud>,
    /// Model of GPU; every machine of the catalogue with it may be used
    #[arg(long, value_name = "MODEL")]
    pub gpu: Option<String>,
    /// Allowed instance type; repeat for several
    #[arg(long, value_name = "TYPE")]
    pub instance_type: Vec<String>,
    /// Prefer spot capacity, fall back to on-demand
    #[arg(long)]
    pub spot: bool,
    /// GPU limit of the pool [default: 8, or the GPUs of the smallest machine]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub max_gpus: Option<u32>,
    /// Time before an empty node is removed [default: 5m]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub idle: Option<String>,
    /// Node class with image, subnets and role [default: default]
    #[arg(long, value_name = "NAME")]
    pub node_class: Option<String>,
}

/// Karpenter's `NodePool` object.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    api_version: &'static str,
    kind: &'static str,
    metadata: ObjectMeta,
    spec: Spec,
}

#[derive(Clone, Debug, Serialize)]
struct Spec {
    template: Template,
    limits: BTreeMap<&'static str, String>,
    disruption: Disruption,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Disruption {
    consolidation_policy: &'static str,
    consolidate_after: String,
}

#[derive(Clone, Debug, Serialize)]
struct Template {
    metadata: ObjectMeta,
    spec: TemplateSpec,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TemplateSpec {
    node_class_ref: NodeClass,
    requirements: Vec<NodeSelectorRequirement>,
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Serialize)]
struct NodeClass {
    group: &'static str,
    kind: &'static str,
    name: String,
}

impl NodePool {
    pub fn make(&self, catalogue: &Catalogue) -> Result<BuildOutput, BuildError> {
        let gpu = self.model()?;
        let machines = self.machines(gpu, catalogue)?;
        let capacity: &[&str] = if self.spot { &["spot", "on-demand"] } else { &["on-demand"] };
        let requirements = vec![
            requirement("karpenter.sh/capacity-type", capacity),
            requirement("kubernetes.io/arch", &["amd64"]),
            requirement(INSTANCE_TYPE, &machines),
        ];
        // Label that pods for this cloud select by, and the label commonly set by administrators.
        let by_hand = gpu.map(|gpu| (ACCELERATOR, gpu.accelerator));
        let label = self.cloud()?.any_gpu().or(by_hand);
        let labels = label.map(|(key, value)| BTreeMap::from([(key.to_owned(), value.to_owned())]));
        let template = Template {
            metadata: ObjectMeta { labels, ..ObjectMeta::default() },
            spec: TemplateSpec {
                node_class_ref: self.class()?,
                requirements,
                taints: vec![taint()],
            },
        };
        let max = self.limit(catalogue)?;
        let idle = values::seconds("idle", self.idle.as_deref().unwrap_or("5m"))?;
        let disruption =
            Disruption { consolidation_policy: "WhenEmpty", consolidate_after: format!("{idle}s") };
        let limits = BTreeMap::from([(GPU_RESOURCE, max.to_string())]);
        let name = names::name("name", Some(self.name.as_deref().unwrap_or("gpu")))?;
        let object = Object {
            api_version: "karpenter.sh/v1",
            kind: "NodePool",
            metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
            spec: Spec { template, limits, disruption },
        };
        let mut notes = self.machine_notes(catalogue)?;
        notes.extend(self.count_notes(&[("--max-gpus", self.max_gpus)], catalogue)?);
        notes.push("Karpenter must be installed, with a node class of that name".to_owned());
        BuildOutput::of(&object, notes)
    }

    fn cloud(&self) -> Result<Cloud, BuildError> {
        match self.cloud {
            None | Some(Cloud::Karpenter | Cloud::Eks) => Ok(Cloud::Eks),
            Some(Cloud::Aks) => Ok(Cloud::Aks),
            Some(other) => refuse(
                "cloud",
                format!("Karpenter does not run on {}: use karpenter or aks", other.name()),
            ),
        }
    }

    fn model(&self) -> Result<Option<&'static Gpu>, BuildError> {
        self.gpu.as_deref().map(|text| model("gpu", text)).transpose()
    }

    /// Requested machines, or all machines with the model.
    fn machines<'a>(
        &'a self,
        gpu: Option<&Gpu>,
        catalogue: &'a Catalogue,
    ) -> Result<Vec<&'a str>, BuildError> {
        let cloud = self.cloud()?;
        if let Some(bad) =
            self.instance_type.iter().find(|name| name.is_empty() || !is_label_value(name))
        {
            return refuse("instance-type", format!("`{}` is not a machine type", short(bad)));
        }
        for name in &self.instance_type {
            let model = known(name, Some(cloud), gpu, catalogue)?.and_then(InstanceType::model);
            if let Some((gpu, model)) = gpu.zip(model).filter(|(gpu, model)| !gpu.takes(model)) {
                let why = format!("`{name}` has the GPU {}, not {}", model.title, gpu.title);
                return refuse("instance-type", why);
            }
        }
        if !self.instance_type.is_empty() {
            return Ok(self.instance_type.iter().map(String::as_str).collect());
        }
        let Some(gpu) = gpu else {
            return refuse("gpu", "the GPU model is required, such as a100, or --instance-type");
        };
        let all = catalogue.instances().iter().filter(|instance| instance.cloud == cloud);
        let fitting = all.filter(|instance| instance.model().is_some_and(|model| gpu.takes(model)));
        let names: Vec<_> = fitting.map(|instance| instance.name.as_str()).collect();
        if names.is_empty() {
            let why =
                format!("no {} machine of the catalogue has the GPU {}", cloud.name(), gpu.title);
            return refuse("gpu", format!("{why}: use another, or --instance-type"));
        }
        Ok(names)
    }

    /// Machine with the fewest GPUs; none if a requested machine is not in the catalogue and may be smaller.
    pub(super) fn smallest<'a>(
        &self,
        catalogue: &'a Catalogue,
    ) -> Result<Option<&'a InstanceType>, BuildError> {
        let (gpu, cloud) = (self.model()?, self.cloud()?);
        let names = self.machines(gpu, catalogue)?;
        let known = names.iter().map(|name| catalogue.named(name, Some(cloud)));
        let known: Option<Vec<_>> = known.collect();
        Ok(known.and_then(|all| all.into_iter().min_by_key(|machine| machine.gpus)))
    }

    /// GPU limit. Karpenter never adds a node if the limit is below the GPUs of the smallest machine.
    fn limit(&self, catalogue: &Catalogue) -> Result<u32, BuildError> {
        let smallest = self.smallest(catalogue)?;
        let least = smallest.map_or(1, |machine| machine.gpus);
        match self.max_gpus.unwrap_or(least.max(8)) {
            max if max > 100_000 => refuse("max-gpus", format!("must be {least} to 100000")),
            max if max >= least => Ok(max),
            max => refuse("max-gpus", limit_too_small(max, smallest)),
        }
    }

    fn class(&self) -> Result<NodeClass, BuildError> {
        let name = self.node_class.as_deref().unwrap_or("default");
        let name = names::name("node-class", Some(name))?;
        Ok(match self.cloud()? {
            Cloud::Aks => NodeClass { group: "karpenter.azure.com", kind: "AKSNodeClass", name },
            _ => NodeClass { group: "karpenter.k8s.aws", kind: "EC2NodeClass", name },
        })
    }

    /// Notes that convert GPU limits to machines; empty without a limit and for machines with one GPU.
    pub(super) fn count_notes(
        &self,
        counts: &[(&str, Option<u32>)],
        catalogue: &Catalogue,
    ) -> Result<Vec<String>, BuildError> {
        let Some(machine) = self.smallest(catalogue)? else { return Ok(Vec::new()) };
        let given = counts.iter().filter_map(|(flag, count)| Some((flag, (*count)?)));
        let given = given.filter(|(_, count)| *count > 0);
        Ok(given.filter_map(|(flag, count)| machines_note(flag, count, machine)).collect())
    }

    /// Notes with GPUs and price of each machine.
    pub(super) fn machine_notes(&self, catalogue: &Catalogue) -> Result<Vec<String>, BuildError> {
        let cloud = self.cloud()?;
        let note = |name: &str| match catalogue.named(name, Some(cloud)) {
            Some(instance) => instance.describe(self.spot),
            None => unknown_machine_note(name, catalogue),
        };
        Ok(self.machines(self.model()?, catalogue)?.into_iter().map(note).collect())
    }
}

/// Note that converts a GPU limit to machines with several GPUs: users also count machines.
fn machines_note(flag: &str, gpus: u32, machine: &InstanceType) -> Option<String> {
    let (name, each) = (&machine.name, machine.gpus);
    let (machines, rest) = (gpus.checked_div(each).filter(|_| each > 1)?, gpus % each);
    let unused = match rest {
        0 => String::new(),
        rest => format!("; {rest} of these GPUs are never used, because machines are rented whole"),
    };
    let meant = format!("{gpus} such machines have {}", u64::from(gpus) * u64::from(each));
    Some(format!("{flag} {gpus} counts GPUs: {machines} × {name} with {each}{unused}; {meant}"))
}

/// Error for a GPU limit that is too small for any node.
pub(super) fn limit_too_small(gpus: u32, smallest: Option<&InstanceType>) -> String {
    let has = |machine: &InstanceType| format!(" ({} has {})", machine.name, machine.gpus);
    let machine = smallest.map(has).unwrap_or_default();
    format!("{gpus} is less than the GPUs of the smallest machine{machine}")
}

fn requirement(key: &str, values: &[&str]) -> NodeSelectorRequirement {
    let values = Some(values.iter().map(|value| (*value).to_owned()).collect());
    NodeSelectorRequirement { key: key.to_owned(), operator: "In".to_owned(), values }
}

/// Repels pods without a GPU request.
fn taint() -> Taint {
    Taint {
        key: GPU_TAINT.to_owned(),
        value: Some("true".to_owned()),
        effect: "NoSchedule".to_owned(),
        time_added: None,
    }
}
