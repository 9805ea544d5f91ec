//! Instance types of clouds: GPUs, cores, memory and dated prices.

use serde::{Deserialize, Serialize};

use crate::cloud::{Cloud, Gpu, gpu_named};
use crate::mig::Slices;
use crate::yaml::{DecodeError, Limits, YamlError, read_one};

/// Built-in catalogue; user catalogues have the same format.
pub const BUILT_IN: &str = include_str!("instances.yaml");

/// Memory reserved by the kubelet for eviction, in MiB.
const EVICTION_MIB: u64 = 100;

/// Instance types; among equals the first is chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    instances: Vec<InstanceType>,
}

/// Instance type of a cloud.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InstanceType {
    /// `eks`, `gke` or `aks`.
    pub cloud: Cloud,
    /// Name in the cloud.
    pub name: String,
    /// GPU model, such as `a100`.
    pub gpu: String,
    pub gpus: u32,
    pub vcpus: u32,
    pub memory_gib: u32,
    /// Dollars per hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_demand: Option<f64>,
    /// Spot price in dollars per hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spot: Option<f64>,
    /// Date of the prices; default: the date of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_of: Option<String>,
}

/// Requirements of a pod on its machine.
#[derive(Clone, Copy, Debug)]
pub struct MachineRequirements {
    pub gpu: &'static Gpu,
    /// GPU count; ignored for slices.
    pub gpus: u32,
    /// Slices instead of whole GPUs.
    pub slices: Option<Slices>,
    pub cpu_milli: u64,
    pub memory_mib: u64,
    /// Compare spot prices instead of on-demand prices.
    pub spot: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// Invalid YAML, or several documents.
    #[error(transparent)]
    Text(#[from] YamlError),
    /// Missing or unknown field, or value of another type.
    #[error(transparent)]
    Shape(#[from] DecodeError),
    #[error("instance type `{name}`: {reason}")]
    Entry {
        name: String,
        /// Problem with a suggestion.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(
    rename_all = "kebab-case",
    deny_unknown_fields,
    expecting = "fields with values: `instances: […]`"
)]
struct File {
    #[serde(alias = "as_of")]
    as_of: Option<String>,
    instances: Vec<InstanceType>,
}

impl Catalogue {
    pub fn built_in() -> Result<Self, CatalogueError> {
        Self::parse(BUILT_IN)
    }

    pub fn parse(text: &str) -> Result<Self, CatalogueError> {
        let document = read_one(text.as_bytes(), &Limits::default())?;
        let file: File = document.decode()?;
        let mut instances = file.instances;
        for instance in &mut instances {
            if instance.as_of.is_none() {
                instance.as_of.clone_from(&file.as_of);
            }
            instance.check()?;
        }
        Ok(Self { instances })
    }

    /// Merges another catalogue; an entry of the same cloud, name and GPU in this catalogue has precedence.
    #[must_use]
    pub fn over(mut self, other: Self) -> Self {
        let same = |a: &InstanceType, b: &InstanceType| {
            (a.cloud, &a.name, a.model()) == (b.cloud, &b.name, b.model())
        };
        let rest = other.instances.into_iter();
        let rest: Vec<_> =
            rest.filter(|other| !self.instances.iter().any(|own| same(own, other))).collect();
        self.instances.extend(rest);
        self
    }

    pub fn instances(&self) -> &[InstanceType] {
        &self.instances
    }

    /// Instance type by name, of one cloud or of any.
    pub fn named(&self, name: &str, cloud: Option<Cloud>) -> Option<&InstanceType> {
        let mut all = self.instances.iter();
        all.find(|instance| {
            instance.name == name && cloud.is_none_or(|cloud| instance.cloud == cloud)
        })
    }

    /// Cheapest instance type of a cloud that meets the requirements. Types without a price come last; the requested
    /// model is preferred to a larger one of its family.
    pub fn choose(&self, cloud: Cloud, need: &MachineRequirements) -> Option<&InstanceType> {
        let fitting = self.instances.iter().filter(|instance| {
            let (cpu, memory) = instance.allocatable();
            instance.cloud == cloud
                && instance.model().is_some_and(|gpu| need.fits(gpu, instance.gpus))
                && cpu >= need.cpu_milli
                && memory >= need.memory_mib
        });
        fitting.min_by(|a, b| {
            let rank = |instance: &InstanceType| {
                let price = if need.spot {
                    instance.spot.or(instance.on_demand)
                } else {
                    instance.on_demand
                };
                (price.unwrap_or(f64::INFINITY), instance.model() != Some(need.gpu))
            };
            let ((a_price, a_other), (b_price, b_other)) = (rank(a), rank(b));
            a_price.total_cmp(&b_price).then(a_other.cmp(&b_other)).then(a.gpus.cmp(&b.gpus))
        })
    }

    /// The instance type of a cloud with the most GPUs of a model.
    pub fn largest(&self, cloud: Cloud, need: &MachineRequirements) -> Option<&InstanceType> {
        let all = self.instances.iter().filter(|instance| instance.cloud == cloud);
        all.filter(|instance| instance.model().is_some_and(|model| need.is_served_by(model)))
            .max_by_key(|instance| (instance.gpus, instance.memory_gib))
    }
}

impl MachineRequirements {
    /// True if the model is acceptable, regardless of the count.
    fn is_served_by(&self, gpu: &Gpu) -> bool {
        self.gpu.takes(gpu) && self.slices.is_none_or(|slices| slices.are_of(gpu))
    }

    /// True if this count of GPUs of the model is sufficient.
    fn fits(&self, gpu: &Gpu, gpus: u32) -> bool {
        let needed = match self.slices {
            None => Some(self.gpus),
            Some(slices) => slices.gpus(gpu).ok(),
        };
        self.gpu.takes(gpu) && needed.is_some_and(|needed| needed <= gpus)
    }
}

impl InstanceType {
    /// GPU model; `None` if it is unknown.
    pub fn model(&self) -> Option<&'static Gpu> {
        gpu_named(&self.gpu)
    }

    /// Allocatable CPU (thousandths of cores) and memory (MiB), after the reservations that each cloud publishes for
    /// kernel, kubelet and eviction.
    pub fn allocatable(&self) -> (u64, u64) {
        let (vcpus, gib) = (u64::from(self.vcpus), u64::from(self.memory_gib));
        let mib = gib << 10;
        let kernel = (mib / 50).min(4096);
        let memory = match self.cloud {
            // 255 MiB, and 11 MiB for each pod that the machine's network supports.
            Cloud::Eks | Cloud::Karpenter => {
                let pods = match gib {
                    0..32 => 29,
                    32..128 => 58,
                    128..1024 => 234,
                    _ => 737,
                };
                kernel + 255 + 11 * pods
            }
            // 50 MiB and 20 for each of 30 pods.
            Cloud::Aks => kernel + 50 + 20 * 30,
            Cloud::Gke | Cloud::Generic | Cloud::Nvidia => {
                kept(&[(4, 256), (4, 205), (8, 103), (112, 62), (u64::MAX, 21)], gib)
            }
        };
        let cpu = match self.cloud {
            Cloud::Aks => kept(&[(1, 60), (1, 40), (2, 20), (u64::MAX, 10)], vcpus),
            _ => kept(&[(1, 60), (1, 10), (2, 5), (u64::MAX, 2)], vcpus),
        };
        ((vcpus * 1000).saturating_sub(cpu), mib.saturating_sub(memory + EVICTION_MIB))
    }

    /// One-line description: GPUs, size, and price with its date.
    pub fn describe(&self, spot: bool) -> String {
        let title = self.model().map_or(self.gpu.as_str(), |gpu| gpu.title);
        let what = format!(
            "{}: {} × {title}, {} vCPU, {} GiB",
            self.name, self.gpus, self.vcpus, self.memory_gib
        );
        let day = self.as_of.as_deref().unwrap_or("an unknown day");
        match (spot, self.spot, self.on_demand) {
            (true, Some(price), _) => format!("{what}, about ${price:.2} per hour as spot ({day})"),
            (_, _, Some(price)) => {
                format!("{what}, ${price:.2} per hour on demand (list price of {day})")
            }
            _ => format!("{what}, unknown price"),
        }
    }

    fn check(&self) -> Result<(), CatalogueError> {
        let refuse = |reason: String| {
            let name = self.name.chars().take(64).collect();
            Err(CatalogueError::Entry { name, reason })
        };
        if self.model().is_none() {
            let known: Vec<_> = crate::cloud::GPUS.iter().map(|gpu| gpu.name).collect();
            return refuse(format!("unknown GPU model `{}`: use {}", self.gpu, known.join(", ")));
        }
        if self.cloud.instances() != Some(self.cloud) {
            return refuse("`cloud` must be eks, gke or aks".to_owned());
        }
        if !crate::build::is_label_value(&self.name) || self.name.is_empty() {
            return refuse("`name` must be the cloud's name, such as p4d.24xlarge".into());
        }
        if !(1..=64).contains(&self.gpus) || !(1..=4096).contains(&self.vcpus) {
            return refuse("`gpus` must be 1 to 64, `vcpus` 1 to 4096".to_owned());
        }
        if !(1..=65_536).contains(&self.memory_gib) {
            return refuse("`memory-gib` must be 1 to 65536".to_owned());
        }
        let prices = [self.on_demand, self.spot];
        if prices.iter().flatten().any(|price| !(0.0..=1e6).contains(price)) {
            return refuse("a price must be a number of dollars per hour, such as 3.06".to_owned());
        }
        if prices.iter().any(Option::is_some) && self.as_of.is_none() {
            return refuse("a price needs its date: add `as-of: 2026-01-31` at the top".to_owned());
        }
        Ok(())
    }
}

/// Reservation by steps: a percentage of each part of the amount.
fn kept(steps: &[(u64, u64)], amount: u64) -> u64 {
    let mut rest = amount;
    steps.iter().fold(0, |kept, &(size, part)| {
        let here = rest.min(size);
        rest -= here;
        kept + here * part
    })
}

#[cfg(test)]
mod tests;
