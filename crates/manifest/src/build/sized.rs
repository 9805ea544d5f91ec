//! From what work needs to a recipe for it: what nobody said is filled in from a sizing.

use serde::Serialize;

use super::placement::Placement;
use super::pod::PodShape;
use super::{BuildError, Recipe, refuse};
use crate::catalogue::Catalogue;
use crate::detect::Sizing;

/// The most GPUs of one pod that a sizing fills in: those of one machine.
const PER_POD: u32 = 8;

/// A sizing in the words of recipes: what `detect -o recipe` prints and `generate --from` reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SizedRecipe {
    /// GPUs of each pod.
    pub gpus: u32,
    /// Their model.
    pub gpu: &'static str,
    /// Limit of memory.
    pub memory: String,
    /// Limit of CPU.
    pub cpu: String,
    /// Shared memory.
    pub shm: String,
    /// Pods that start together, where one machine is not enough. Only a workload has this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<u32>,
}

impl SizedRecipe {
    /// What a sizing is in the words of recipes.
    pub fn of(sizing: &Sizing) -> Self {
        let gang = sizing.gpu_count.div_ceil(PER_POD);
        Self {
            gpus: sizing.gpu_count.min(PER_POD),
            gpu: sizing.gpu_type.name(),
            memory: sizing.memory(),
            cpu: sizing.cpu(),
            shm: sizing.shm(),
            gang: (gang > 1).then_some(gang),
        }
    }
}

/// A recipe with what a sizing says.
#[derive(Clone, Debug)]
pub struct SizedWork {
    /// The recipe.
    pub recipe: Recipe,
    /// The sizing that was filled in: where a cloud is named, that of the cheapest of its machines.
    pub sizing: Sizing,
    /// Sentences about flags that went before.
    pub kept: Vec<String>,
}

impl Recipe {
    /// The same recipe with what a sizing says, where the flags say nothing. GPUs that nobody chose are chosen among
    /// the machines of the cloud that is named.
    pub fn sized(self, sizing: &Sizing, catalogue: &Catalogue) -> Result<SizedWork, BuildError> {
        let sizing = self.at_hand(sizing, catalogue)?;
        let sized = SizedRecipe::of(&sizing);
        let mut kept = Vec::new();
        let recipe = match self {
            Self::Workload(mut recipe) => {
                if let Some(gang) = sized.gang {
                    fill("gang", &mut recipe.gang, gang, &mut kept);
                }
                sized.fill(&mut recipe.pod, &mut recipe.placement, &mut kept);
                Self::Workload(recipe)
            }
            other => {
                if sized.gang.is_some() {
                    return refuse("detect", sized.too_large(sizing.gpu_count));
                }
                sized.one_pod(other, &mut kept)?
            }
        };
        Ok(SizedWork { recipe, sizing, kept })
    }

    /// What is asked of the nodes, of kinds that run work.
    fn asks(&self) -> Option<(&PodShape, &Placement)> {
        match self {
            Self::Job(recipe) => Some((&recipe.pod, &recipe.placement)),
            Self::Deployment(recipe) => Some((&recipe.pod, &recipe.placement)),
            Self::Pod(recipe) => Some((&recipe.pod, &recipe.placement)),
            Self::ModelServer(recipe) => Some((&recipe.pod, &recipe.placement)),
            Self::Workload(recipe) => Some((&recipe.pod, &recipe.placement)),
            _ => None,
        }
    }

    /// The sizing for the machines of the cloud that is named, where nobody chose machines or GPUs.
    fn at_hand(&self, sizing: &Sizing, catalogue: &Catalogue) -> Result<Sizing, BuildError> {
        let Some((pod, placement)) = self.asks() else { return Ok(sizing.clone()) };
        let chosen = placement.gpu.is_some() || pod.mig.is_some() || chooses_nodes(placement);
        let Some(cloud) = placement.cloud().instances().filter(|_| !chosen) else {
            return Ok(sizing.clone());
        };
        let price = |sizing: &Sizing| price(sizing, pod, placement, catalogue);
        let own = price(sizing);
        if own.is_ok() && !sizing.is_one_of_many() {
            return Ok(sizing.clone());
        }
        let priced = |gpus| {
            let others = sizing.on_others(gpus).into_iter();
            let priced = others.filter_map(|other| Some((price(&other).ok()?, other)));
            priced
                .min_by(|(one, _), (other, _)| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)))
        };
        let best = priced(pod.gpus).or_else(|| priced(None)).map(|(_, best)| best);
        match (best, own) {
            (Some(best), _) => Ok(best),
            (None, Ok(_)) => Ok(sizing.clone()),
            (None, Err(BuildError::Refused { flag, .. })) if is_said(flag, pod) => {
                Ok(sizing.clone())
            }
            (None, Err(BuildError::Refused { why, .. })) => refuse(
                "detect",
                format!(
                    "it takes {} × {}, and nothing of {} holds it: {why}",
                    sizing.gpu_count,
                    sizing.gpu_type.name(),
                    cloud.name()
                ),
            ),
            (None, Err(other)) => Err(other),
        }
    }
}

/// Whether it takes several machines, and dollars an hour for all of them; refused where the cloud has none.
fn price(
    sizing: &Sizing,
    pod: &PodShape,
    placement: &Placement,
    catalogue: &Catalogue,
) -> Result<(bool, f64), BuildError> {
    let sized = SizedRecipe::of(sizing);
    let (mut pod, mut placement) = (pod.clone(), placement.clone());
    sized.fill(&mut pod, &mut placement, &mut Vec::new());
    let ask = pod.ask(pod.gpus.unwrap_or(sized.gpus))?;
    let machine = placement.instance(ask, catalogue)?;
    let hour = machine.and_then(|machine| {
        let taken_back = machine.spot.filter(|_| placement.spot);
        taken_back.or(machine.on_demand)
    });
    let machines = sized.gang.unwrap_or(1);
    Ok((machines > 1, hour.unwrap_or(f64::INFINITY) * f64::from(machines)))
}

/// Who chose a machine or a product chose the model.
fn chooses_nodes(placement: &Placement) -> bool {
    placement.instance_type.is_some()
        || !placement.product.is_empty()
        || placement.gpu_memory_over.is_some()
}

/// Whether somebody wrote this flag about a pod.
fn is_said(flag: &str, pod: &PodShape) -> bool {
    match flag {
        "gpus" => pod.gpus.is_some(),
        "cpu" => pod.cpu.is_some() || pod.cpu_request.is_some(),
        "memory" => pod.memory.is_some() || pod.memory_request.is_some(),
        _ => false,
    }
}

impl SizedRecipe {
    fn one_pod(&self, recipe: Recipe, kept: &mut Vec<String>) -> Result<Recipe, BuildError> {
        Ok(match recipe {
            Recipe::Job(mut recipe) => {
                self.fill(&mut recipe.pod, &mut recipe.placement, kept);
                Recipe::Job(recipe)
            }
            Recipe::Deployment(mut recipe) => {
                self.fill(&mut recipe.pod, &mut recipe.placement, kept);
                Recipe::Deployment(recipe)
            }
            Recipe::Pod(mut recipe) => {
                self.fill(&mut recipe.pod, &mut recipe.placement, kept);
                Recipe::Pod(recipe)
            }
            Recipe::ModelServer(mut recipe) => {
                self.fill(&mut recipe.pod, &mut recipe.placement, kept);
                Recipe::ModelServer(recipe)
            }
            _ => {
                let kinds = "job, pod, deployment, model-server and workload";
                return refuse("detect", format!("only what runs work has a size: {kinds}"));
            }
        })
    }

    fn fill(&self, pod: &mut PodShape, placement: &mut Placement, kept: &mut Vec<String>) {
        // Slices are counted otherwise.
        if let Some(profile) = &pod.mig {
            kept.push(format!("--mig {profile} goes before {} × {}", self.gpus, self.gpu));
        } else {
            fill("gpus", &mut pod.gpus, self.gpus, kept);
            if chooses_nodes(placement) {
                kept.push(format!("the nodes that are chosen go before {}", self.gpu));
            } else {
                fill("gpu", &mut placement.gpu, self.gpu.to_owned(), kept);
            }
        }
        fill("memory", &mut pod.memory, self.memory.clone(), kept);
        fill("cpu", &mut pod.cpu, self.cpu.clone(), kept);
        // A limit of memory that was said may be too small for the rest.
        if pod.shm.is_none() && pod.memory.as_ref() != Some(&self.memory) {
            kept.push("shared memory follows --memory".to_owned());
        } else {
            fill("shm", &mut pod.shm, self.shm.clone(), kept);
        }
    }

    fn too_large(&self, gpus: u32) -> String {
        let (gang, each) = (self.gang.unwrap_or(1), self.gpus);
        format!(
            "it takes {gpus} × {} on {gang} machines, and this has its GPUs on one: use `generate workload`, which \
             starts {gang} pods of {each} together",
            self.gpu
        )
    }
}

/// Fills in what nobody said; what somebody said stays.
fn fill<T: PartialEq + std::fmt::Display>(
    flag: &str,
    field: &mut Option<T>,
    value: T,
    kept: &mut Vec<String>,
) {
    match field {
        None => *field = Some(value),
        Some(said) if *said == value => {}
        Some(said) => kept.push(format!("--{flag} {said} goes before {value}")),
    }
}
