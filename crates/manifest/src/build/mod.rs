//! Builds every object: from flags, from a small YAML file with the same names, or from Rust.
//!
//! A recipe is a plain struct, such as [`Job`] or [`TimeSlicing`]; fields with a good default are optional. Recipes
//! with pods share [`PodShape`] (container and resources) and [`Placement`] (nodes). A recipe builds typed objects of
//! `k8s-openapi`, never text.
//!
//! ```
//! use agentaflow_manifest::build::{Job, Placement, PodShape};
//! use agentaflow_manifest::catalogue::Catalogue;
//!
//! let job = Job {
//!     pod: PodShape { name: Some("train".into()), image: Some("train:v1".into()), gpus: Some(8), ..Default::default() },
//!     placement: Placement { gpu: Some("a100".into()), ..Default::default() },
//!     ..Default::default()
//! };
//! let job = job.object(&Catalogue::built_in()?)?;
//! assert_eq!(job.metadata.name.as_deref(), Some("train"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![expect(
    clippy::doc_markdown,
    reason = "comments on recipes are the help text of their flags, which has no markup"
)]

mod claim;
mod image;
mod job;
mod machines;
mod names;
mod nodepool;
mod placement;
mod pod;
mod quantity;
mod recipe;
mod resources;
mod scaler;
mod scaling;
mod serving;
mod sharing;
mod sized;
mod text;
mod values;
mod volumes;
mod workload;
mod zone;

use serde::Serialize;
use serde_json::Value;

pub(crate) use values::schedule_problem;
pub(crate) use zone::zone_problem;

pub use claim::{AccessMode, Claim};
pub use job::{GpuJob, GpuJobRequest, Job, RestartPolicy, create_gpu_job};
pub use names::{is_label_key, is_label_value, is_name, job_name};
pub use nodepool::NodePool;
pub use placement::Placement;
pub use pod::{Pod, PodShape};
pub use recipe::{Recipe, RecipeError};
pub use scaler::Scaler;
pub use scaling::{Hpa, Keda};
pub use serving::{Deployment, ModelServer};
pub use sharing::{MigConfig, TimeSlicing};
pub use sized::{SizedRecipe, SizingFields};
pub use text::{json, yaml};
pub use values::{Mount, Pair};
pub use workload::Workload;

/// Built objects with notes for the user.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BuildOutput {
    /// In creation order.
    pub objects: Vec<Value>,
    /// Sentences about defaults and their consequences.
    pub notes: Vec<String>,
}

/// A recipe that cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Invalid value of a flag, or of the field with the same name.
    #[error("--{flag}: {reason}")]
    Refused {
        flag: &'static str,
        /// Problem with a suggestion.
        reason: String,
    },
    #[error("cannot serialize the object")]
    Write(#[from] serde_json::Error),
    #[error("cannot serialize the configuration: {0}")]
    Yaml(String),
}

impl BuildOutput {
    fn of<T: Serialize>(object: &T, notes: Vec<String>) -> Result<Self, BuildError> {
        Ok(Self { objects: vec![serde_json::to_value(object)?], notes })
    }

    fn push<T: Serialize>(&mut self, object: &T) -> Result<(), BuildError> {
        self.objects.push(serde_json::to_value(object)?);
        Ok(())
    }
}

fn refuse<T>(flag: &'static str, reason: impl Into<String>) -> Result<T, BuildError> {
    Err(BuildError::Refused { flag, reason: reason.into() })
}
