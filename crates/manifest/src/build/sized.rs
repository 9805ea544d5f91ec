//! From what work needs to a recipe for it: what nobody said is filled in from a sizing.

use serde::Serialize;

use super::placement::Placement;
use super::pod::PodShape;
use super::{BuildError, Recipe, refuse};
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

impl Recipe {
    /// The same recipe with what a sizing says, where the flags say nothing; and sentences about flags that went before.
    pub fn sized(self, sizing: &Sizing) -> Result<(Self, Vec<String>), BuildError> {
        let sized = SizedRecipe::of(sizing);
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
        Ok((recipe, kept))
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
        // Slices are counted otherwise, and who chose a machine or a product chose the model.
        if let Some(profile) = &pod.mig {
            kept.push(format!("--mig {profile} goes before {} × {}", self.gpus, self.gpu));
        } else {
            fill("gpus", &mut pod.gpus, self.gpus, kept);
            let chosen = placement.instance_type.is_some()
                || !placement.product.is_empty()
                || placement.gpu_memory_over.is_some();
            if chosen {
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
