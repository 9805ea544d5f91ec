//! Completes recipes from a sizing: explicit settings win.

use serde::Serialize;

use super::placement::Placement;
use super::pod::PodShape;
use super::{BuildError, Recipe, refuse};
use crate::catalogue::Catalogue;
use crate::detect::Sizing;

/// Most GPUs per pod from a sizing: the GPUs of one machine.
const PER_POD: u32 = 8;

/// Sizing as fields of recipes: printed by `detect -o recipe`, read by `generate --from`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SizingFields {
    /// GPUs of each pod.
    pub gpus: u32,
    pub gpu: &'static str,
    pub memory: String,
    pub cpu: String,
    pub shm: String,
    /// Pods of the gang, if one machine is not sufficient. Workloads only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<u32>,
}

impl SizingFields {
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

/// Recipe completed from a sizing.
#[derive(Clone, Debug)]
pub struct SizedRecipe {
    pub recipe: Recipe,
    /// Applied sizing; with a cloud, the one of its cheapest machine.
    pub sizing: Sizing,
    /// Sentences about flags that override the sizing.
    pub kept: Vec<String>,
}

impl Recipe {
    /// Completes the recipe from a sizing. GPUs that were not chosen explicitly are chosen among the machines of the
    /// given cloud.
    pub fn sized(self, sizing: &Sizing, catalogue: &Catalogue) -> Result<SizedRecipe, BuildError> {
        let sizing = self.for_cloud(sizing, catalogue)?;
        let sized = SizingFields::of(&sizing);
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
        Ok(SizedRecipe { recipe, sizing, kept })
    }

    /// Pod and placement of recipes that run pods.
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

    /// Sizing for the machines of the given cloud, unless machines or GPUs were chosen explicitly.
    fn for_cloud(&self, sizing: &Sizing, catalogue: &Catalogue) -> Result<Sizing, BuildError> {
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
            (None, Err(BuildError::Refused { flag, .. })) if is_set(flag, pod) => {
                Ok(sizing.clone())
            }
            (None, Err(BuildError::Refused { reason, .. })) => refuse(
                "detect",
                format!(
                    "needs {} × {}, but no machine of {} is large enough: {reason}",
                    sizing.gpu_count,
                    sizing.gpu_type.name(),
                    cloud.name()
                ),
            ),
            (None, Err(other)) => Err(other),
        }
    }
}

/// True if several machines are needed, and dollars per hour for all of them. Error if the cloud has no suitable
/// machine.
fn price(
    sizing: &Sizing,
    pod: &PodShape,
    placement: &Placement,
    catalogue: &Catalogue,
) -> Result<(bool, f64), BuildError> {
    let sized = SizingFields::of(sizing);
    let (mut pod, mut placement) = (pod.clone(), placement.clone());
    sized.fill(&mut pod, &mut placement, &mut Vec::new());
    let request = pod.node_request(pod.gpus.unwrap_or(sized.gpus))?;
    let machine = placement.instance(request, catalogue)?;
    let hour = machine.and_then(|machine| {
        let taken_back = machine.spot.filter(|_| placement.spot);
        taken_back.or(machine.on_demand)
    });
    let machines = sized.gang.unwrap_or(1);
    Ok((machines > 1, hour.unwrap_or(f64::INFINITY) * f64::from(machines)))
}

/// True if an explicit machine or product determines the model.
fn chooses_nodes(placement: &Placement) -> bool {
    placement.instance_type.is_some()
        || !placement.product.is_empty()
        || placement.gpu_memory_over.is_some()
}

/// True if this flag of a pod was given.
fn is_set(flag: &str, pod: &PodShape) -> bool {
    match flag {
        "gpus" => pod.gpus.is_some(),
        "cpu" => pod.cpu.is_some() || pod.cpu_request.is_some(),
        "memory" => pod.memory.is_some() || pod.memory_request.is_some(),
        _ => false,
    }
}

impl SizingFields {
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
                return refuse("detect", format!("only recipes with pods have a size: {kinds}"));
            }
        })
    }

    fn fill(&self, pod: &mut PodShape, placement: &mut Placement, kept: &mut Vec<String>) {
        // Slices and GPUs are counted separately.
        if let Some(profile) = &pod.mig {
            kept.push(format!("--mig {profile} overrides {} × {}", self.gpus, self.gpu));
        } else {
            fill("gpus", &mut pod.gpus, self.gpus, kept);
            if chooses_nodes(placement) {
                kept.push(format!("the selected nodes override {}", self.gpu));
            } else {
                fill("gpu", &mut placement.gpu, self.gpu.to_owned(), kept);
            }
        }
        fill("memory", &mut pod.memory, self.memory.clone(), kept);
        fill("cpu", &mut pod.cpu, self.cpu.clone(), kept);
        // An explicit memory limit may be too small for the sizing's shared memory.
        if pod.shm.is_none() && pod.memory.as_ref() != Some(&self.memory) {
            kept.push("shared memory depends on --memory".to_owned());
        } else {
            fill("shm", &mut pod.shm, self.shm.clone(), kept);
        }
    }

    fn too_large(&self, gpus: u32) -> String {
        let (gang, each) = (self.gang.unwrap_or(1), self.gpus);
        format!(
            "needs {gpus} × {} on {gang} machines, but this recipe has its GPUs on one: use `generate workload`, \
             which starts {gang} pods of {each} together",
            self.gpu
        )
    }
}

/// Sets an unset field.
fn fill<T: PartialEq + std::fmt::Display>(
    flag: &str,
    field: &mut Option<T>,
    value: T,
    kept: &mut Vec<String>,
) {
    match field {
        None => *field = Some(value),
        Some(message) if *message == value => {}
        Some(message) => kept.push(format!("--{flag} {message} overrides {value}")),
    }
}
