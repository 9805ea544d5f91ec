//! Node selectors, tolerations and affinity in the label conventions of a cloud.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PreferredSchedulingTerm, Toleration,
};
use serde::{Deserialize, Serialize};

use super::names::{self, is_label_value, short};
use super::values::{self, Pair};
use super::{BuildError, refuse};
use crate::catalogue::{Catalogue, InstanceType};
use crate::cloud::{self, Cloud, GPU_RESOURCE, GPUS, Gpu, gpu_named};
use crate::mig::{self, Slices};

/// Placement of pods, shared by all recipes with pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Placement")]
pub struct Placement {
    /// Label convention of the nodes [default: generic]
    #[arg(long, value_enum, value_name = "CLOUD")]
    pub cloud: Option<Cloud>,
    /// Model of GPU, such as v100, a100, a100-80 or h100
    #[arg(long, value_name = "MODEL")]
    pub gpu: Option<String>,
    /// Machine to run on, such as p4d.24xlarge; on EKS and AKS one is chosen by the model
    #[arg(long, value_name = "TYPE")]
    pub instance_type: Option<String>,
    /// Pool or group of nodes to run in
    #[arg(long, value_name = "NAME")]
    pub node_pool: Option<String>,
    /// Label that nodes must have; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    #[serde(deserialize_with = "values::pairs")]
    pub selector: Vec<Pair>,
    /// Run on spot nodes, which cost less and can be reclaimed at any time
    #[arg(long)]
    pub spot: bool,
    /// Model to prefer, with a weight of 1 to 100; may be given several times
    #[arg(long, value_name = "MODEL=WEIGHT")]
    #[serde(deserialize_with = "values::pairs")]
    pub prefer: Vec<Pair>,
    /// GPU product as NVIDIA's feature discovery labels it; may be given several times
    #[arg(long, value_name = "PRODUCT")]
    pub product: Vec<String>,
    /// GPUs with more MiB of memory than this; with --product either will do
    #[arg(long, value_name = "MIB", allow_negative_numbers = true)]
    pub gpu_memory_over: Option<u32>,
    /// Value of the taint nvidia.com/gpu to tolerate: any, none, or one value such as true [default: any]
    #[arg(long, value_name = "VALUE")]
    #[serde(deserialize_with = "values::text")]
    pub taint: Option<String>,
}

/// Resources that a pod requests from its node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeRequest {
    /// Whole GPUs; for slices, the GPUs they need at least.
    pub(super) gpus: u32,
    /// MIG slices instead of whole GPUs.
    pub(super) slices: Option<Slices>,
    /// Explicit request only.
    pub(super) cpu_milli: u64,
    /// Explicit request only.
    pub(super) memory_mib: u64,
}

/// Placement fields of a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct ResolvedPlacement {
    pub(super) selector: BTreeMap<String, String>,
    pub(super) tolerations: Vec<Toleration>,
    pub(super) affinity: Option<Affinity>,
    pub(super) gpu: Option<&'static Gpu>,
    pub(super) instance: Option<InstanceType>,
    /// Resource name of the GPUs or slices.
    pub(super) resource: String,
}

impl Placement {
    pub(super) fn cloud(&self) -> Cloud {
        self.cloud.unwrap_or_default()
    }

    pub(super) fn model(&self) -> Result<Option<&'static Gpu>, BuildError> {
        self.gpu.as_deref().map(|text| model("gpu", text)).transpose()
    }

    pub(super) fn resolve(
        &self,
        ask: NodeRequest,
        catalogue: &Catalogue,
    ) -> Result<ResolvedPlacement, BuildError> {
        let gpu = self.sliced(ask)?;
        let instance = self.instance(ask, catalogue)?.cloned();
        let selector = self.selector(gpu, ask, instance.as_ref())?;
        let gpu = gpu.or_else(|| instance.as_ref().and_then(InstanceType::model));
        self.check_models(gpu)?;
        self.check_memory(instance.as_ref().and_then(InstanceType::model))?;
        Ok(ResolvedPlacement {
            selector,
            tolerations: self.tolerations()?,
            affinity: self.affinity(ask)?,
            gpu,
            instance,
            resource: self.resource(ask),
        })
    }

    /// Resource name of the GPUs or slices. GKE partitions all GPUs of a node into one kind of slice and advertises
    /// each as a GPU.
    fn resource(&self, ask: NodeRequest) -> String {
        let named = ask.slices.filter(|_| !self.calls_slices_gpus());
        named.map_or_else(|| GPU_RESOURCE.to_owned(), |slices| mig::resource(slices.profile))
    }

    /// True if slices are selected by a node label instead of a resource.
    pub(super) fn calls_slices_gpus(&self) -> bool {
        self.cloud() == Cloud::Gke
    }

    /// Requested model; for slices, the nearest model of its family that has them.
    fn sliced(&self, ask: NodeRequest) -> Result<Option<&'static Gpu>, BuildError> {
        let (gpu, Some(slices)) = (self.model()?, ask.slices) else { return self.model() };
        let Some(gpu) = gpu else {
            self.check_products(slices)?;
            return Ok(None);
        };
        match slices.gpus(gpu) {
            Ok(_) => Ok(Some(gpu)),
            Err(error) => gpu
                .served_by()
                .find(|other| slices.are_of(other))
                .map_or_else(|| refuse("mig", error.to_string()), |other| Ok(Some(other))),
        }
    }

    /// Checks the products against the model of the flag or the machine.
    fn check_models(&self, gpu: Option<&'static Gpu>) -> Result<(), BuildError> {
        let Some(gpu) = self.model()?.or(gpu) else { return Ok(()) };
        for product in &self.product {
            let other = gpu_named(product).filter(|model| !gpu.takes(model));
            if let Some(other) = other {
                let (own, wanted) = (other.title, gpu.title);
                let why =
                    format!("`{}` has the GPU {own}, but {wanted} is requested", short(product));
                return refuse("product", why);
            }
        }
        Ok(())
    }

    /// Checks the memory against the model of the flag or the machine. With products, either condition is sufficient.
    fn check_memory(&self, machine: Option<&'static Gpu>) -> Result<(), BuildError> {
        let either = self.cloud() == Cloud::Nvidia || !self.product.is_empty();
        let Some(memory) = self.gpu_memory_over.filter(|_| !either) else { return Ok(()) };
        let has_more = |gpu: &Gpu| gpu.memory_gib << 10 > memory;
        let wanting = match (machine, self.model()?) {
            (Some(machine), _) => Some(machine).filter(|gpu| !has_more(gpu)),
            (None, model) => model.filter(|gpu| !gpu.served_by().any(has_more)),
        };
        wanting.map_or(Ok(()), |gpu| {
            refuse(
                "gpu-memory-over",
                format!("the GPU {} does not have more than {memory} MiB", gpu.title),
            )
        })
    }

    /// Checks that one of the products has the profile, if all products are known and memory is no alternative.
    fn check_products(&self, slices: Slices) -> Result<(), BuildError> {
        let models: Option<Vec<_>> = self.product.iter().map(|name| gpu_named(name)).collect();
        let models = models.filter(|_| self.gpu_memory_over.is_none()).unwrap_or_default();
        let problems: Vec<_> = models.iter().map(|gpu| slices.gpus(gpu)).collect();
        match problems.first() {
            Some(Err(error)) if problems.iter().all(Result::is_err) => {
                refuse("mig", error.to_string())
            }
            _ => Ok(()),
        }
    }

    fn selector(
        &self,
        gpu: Option<&'static Gpu>,
        ask: NodeRequest,
        instance: Option<&InstanceType>,
    ) -> Result<BTreeMap<String, String>, BuildError> {
        let cloud = self.cloud();
        let mut all = BTreeMap::new();
        let mut add = |key: &str, value: &str| all.insert(key.to_owned(), value.to_owned());
        if let Some((key, value)) = cloud.any_gpu()
            && !(cloud == Cloud::Nvidia && self.names_products())
        {
            add(key, value);
        }
        match (cloud, gpu, instance) {
            (Cloud::Eks, _, Some(instance)) => drop(add(cloud::INSTANCE_TYPE, &instance.name)),
            (Cloud::Aks, _, Some(instance)) if self.node_pool.is_none() => {
                add(cloud::INSTANCE_TYPE, &instance.name);
            }
            // Slices are no number of GPUs.
            (Cloud::Karpenter, None, _) if ask.slices.is_none() => {
                add("karpenter.k8s.aws/instance-gpu-count", &ask.gpus.to_string());
            }
            (Cloud::Generic | Cloud::Gke | Cloud::Karpenter, Some(gpu), _) => {
                let gpu = instance.and_then(InstanceType::model).unwrap_or(gpu);
                let (key, values) = self.model_label("gpu", gpu)?;
                values.first().and_then(|value| add(key, value));
                let size = cloud.size_label(gpu).filter(|_| is_one_size(gpu, ask));
                size.and_then(|(key, value)| add(key, &value));
            }
            _ => {}
        }
        if let Some(slices) = ask.slices.filter(|_| self.calls_slices_gpus()) {
            // The profile is not a valid label value, and GKE does not offer it.
            if let Some(plain) = slices.profile.strip_suffix("+me") {
                return refuse(
                    "mig",
                    format!("GKE has no MIG slices with media extensions: use {plain}"),
                );
            }
            add(cloud::GKE_PARTITION, slices.profile);
        }
        if let Some(name) = &self.instance_type {
            add(cloud::INSTANCE_TYPE, name);
        }
        if let Some(pool) = &self.node_pool {
            add(self.pool_label()?, pool_name(cloud, pool)?);
        }
        if self.spot {
            let (key, value) = cloud.spot().label;
            add(key, value);
        }
        all.extend(values::labels("selector", &self.selector)?);
        Ok(all)
    }

    fn pool_label(&self) -> Result<&'static str, BuildError> {
        let cloud = self.cloud();
        cloud.pool_label().map_or_else(
            || refuse("node-pool", "generic nodes have no pool label: use --cloud or --selector"),
            Ok,
        )
    }

    fn tolerations(&self) -> Result<Vec<Toleration>, BuildError> {
        let equal = |(key, value): (&str, &str)| Toleration {
            key: Some(key.to_owned()),
            operator: Some("Equal".to_owned()),
            value: Some(value.to_owned()),
            effect: Some("NoSchedule".to_owned()),
            toleration_seconds: None,
        };
        let any = || Toleration {
            operator: Some("Exists".to_owned()),
            value: None,
            ..equal((cloud::GPU_TAINT, ""))
        };
        let mut all = match self.taint.as_deref() {
            Some("none") => Vec::new(),
            None | Some("any") => vec![any()],
            Some(value) if is_label_value(value) => vec![equal((cloud::GPU_TAINT, value))],
            Some(value) => {
                return refuse("taint", format!("`{}` is not a taint value", short(value)));
            }
        };
        if self.taint.as_deref() != Some("none") {
            all.extend(self.cloud().extra_taint().map(equal));
        }
        if self.spot {
            all.push(equal(self.cloud().spot().taint));
        }
        Ok(all)
    }

    fn affinity(&self, ask: NodeRequest) -> Result<Option<Affinity>, BuildError> {
        let preferred = self.prefer.iter().map(|pair| self.preferred(pair));
        let preferred = preferred.collect::<Result<Vec<_>, _>>()?;
        let required = self.required(ask)?;
        if preferred.is_empty() && required.is_empty() {
            return Ok(None);
        }
        let node_affinity = NodeAffinity {
            preferred_during_scheduling_ignored_during_execution: (!preferred.is_empty())
                .then_some(preferred),
            required_during_scheduling_ignored_during_execution: (!required.is_empty())
                .then_some(NodeSelector { node_selector_terms: required }),
        };
        Ok(Some(Affinity { node_affinity: Some(node_affinity), ..Affinity::default() }))
    }

    /// Alternative terms: the products, or the memory.
    fn required(&self, ask: NodeRequest) -> Result<Vec<NodeSelectorTerm>, BuildError> {
        let mut terms = Vec::new();
        let mut products = self.product.clone();
        if let Some(bad) = products.iter().find(|name| name.is_empty() || !is_label_value(name)) {
            let why = "is not a product: use a value of the label nvidia.com/gpu.product";
            return refuse("product", format!("`{}` {why}", short(bad)));
        }
        if let (Cloud::Nvidia, Some(gpu), true) = (self.cloud(), self.model()?, products.is_empty())
        {
            let fits = |gpu: &&Gpu| ask.slices.is_none_or(|slices| slices.are_of(gpu));
            let fitting = gpu.served_by().filter(fits).flat_map(|gpu| gpu.products);
            products = fitting.map(|product| (*product).to_owned()).collect();
        }
        if !products.is_empty() {
            terms.push(term(cloud::PRODUCT, "In", products));
        }
        if let Some(memory) = self.gpu_memory_over {
            terms.push(term(cloud::GPU_MEMORY, "Gt", vec![memory.to_string()]));
        }
        Ok(terms)
    }

    fn preferred(&self, pair: &Pair) -> Result<PreferredSchedulingTerm, BuildError> {
        let gpu = model("prefer", &pair.key)?;
        let weight = pair.value.parse().ok().filter(|weight| (1..=100).contains(weight));
        let Some(weight) = weight else {
            return refuse(
                "prefer",
                format!("`{}` is not a weight from 1 to 100", short(&pair.value)),
            );
        };
        let (key, values) = self.model_label("prefer", gpu)?;
        let values = values.into_iter().map(str::to_owned).collect();
        let mut preference = term(key, "In", values);
        let size =
            self.cloud().size_label(gpu).filter(|_| is_one_size(gpu, NodeRequest::default()));
        if let (Some((key, value)), Some(all)) = (size, &mut preference.match_expressions) {
            all.push(requirement(key, "In", vec![value]));
        }
        Ok(PreferredSchedulingTerm { weight, preference })
    }

    /// Label of the model, if the cloud offers it.
    fn model_label(
        &self,
        flag: &'static str,
        gpu: &'static Gpu,
    ) -> Result<(&'static str, Vec<&'static str>), BuildError> {
        let (key, values) = self.cloud().model_label(gpu);
        let known = cloud::accelerators(key);
        if known.is_some_and(|known| values.iter().any(|value| !known.contains(value))) {
            let why = format!("{} has no {}", self.cloud().name(), gpu.title);
            return refuse(flag, why + ": use another");
        }
        Ok((key, values))
    }

    fn names_products(&self) -> bool {
        self.gpu.is_some() || !self.product.is_empty() || self.gpu_memory_over.is_some()
    }
}

pub(super) fn model(flag: &'static str, text: &str) -> Result<&'static Gpu, BuildError> {
    gpu_named(text).map_or_else(
        || {
            let known: Vec<_> = GPUS.iter().map(|gpu| gpu.name).collect();
            let known = known.join(", ");
            refuse(flag, format!("unknown GPU model `{}`: use {known}", short(text)))
        },
        Ok,
    )
}

fn pool_name(cloud: Cloud, text: &str) -> Result<&str, BuildError> {
    if text.is_empty() || !is_label_value(text) {
        return refuse("node-pool", format!("`{}` is not a pool name", short(text)));
    }
    if cloud == Cloud::Aks { names::azure_pool("node-pool", text) } else { Ok(text) }
}

/// True if only one size of the model is acceptable: the size was requested, or has the slices.
fn is_one_size(gpu: &'static Gpu, ask: NodeRequest) -> bool {
    let lacks = |other: &Gpu| ask.slices.is_some_and(|slices| !slices.are_of(other));
    gpu.name != gpu.family() || gpu.served_by().any(lacks)
}

fn term(key: &str, operator: &str, values: Vec<String>) -> NodeSelectorTerm {
    let all = vec![requirement(key, operator, values)];
    NodeSelectorTerm { match_expressions: Some(all), match_fields: None }
}

fn requirement(key: &str, operator: &str, values: Vec<String>) -> NodeSelectorRequirement {
    let (key, operator) = (key.to_owned(), operator.to_owned());
    NodeSelectorRequirement { key, operator, values: Some(values) }
}
