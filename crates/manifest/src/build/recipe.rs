//! All recipes: the commands of `agentaflow generate`.

use agentaflow_units::{did_you_mean, nearest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    BuildError, BuildOutput, Claim, Deployment, Hpa, Job, Keda, MigConfig, ModelServer, NodePool,
    Pod, Scaler, TimeSlicing, Workload,
};
use crate::catalogue::Catalogue;
use crate::yaml::{DecodeError, Document, Limits, YamlError, read_one};

/// Recipe of `generate`.
#[derive(Clone, Debug, PartialEq, clap::Subcommand)]
pub enum Recipe {
    /// Job on GPUs: training, batch inference
    Job(Box<Job>),
    /// Servers on GPUs
    Deployment(Box<Deployment>),
    /// One pod with GPUs
    Pod(Box<Pod>),
    /// Servers on GPUs, with a claim for their models
    ModelServer(Box<ModelServer>),
    /// Claim for models, data or a workspace
    Pvc(Claim),
    /// Several pods on each GPU: time-slicing or MPS, for NVIDIA's device plugin
    TimeSlicing(TimeSlicing),
    /// GPUs cut into MIG slices, for the GPU operator
    MigConfig(MigConfig),
    /// GPU nodes by the clock: a pair of schedules
    Scaler(Box<Scaler>),
    /// Pod autoscaler on a GPU metric
    Hpa(Hpa),
    /// KEDA autoscaler that scales to zero
    Keda(Keda),
    /// Karpenter pool of GPU nodes that scales to zero
    Nodepool(NodePool),
    /// `GPUWorkload` for the agentaflow scheduler
    Workload(Box<Workload>),
}

/// Invalid recipe file.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// Not YAML, or not one document.
    #[error(transparent)]
    Text(#[from] YamlError),
    /// Unknown field, or value of another type.
    #[error(transparent)]
    Shape(#[from] DecodeError),
    /// Merging failed; impossible for parsed recipes.
    #[error("cannot merge flags and file")]
    Merge(#[from] serde_json::Error),
}

impl Recipe {
    pub fn make(&self, catalogue: &Catalogue) -> Result<BuildOutput, BuildError> {
        match self {
            Self::Job(recipe) => recipe.make(catalogue),
            Self::Deployment(recipe) => recipe.make(catalogue),
            Self::Pod(recipe) => recipe.make(catalogue),
            Self::ModelServer(recipe) => recipe.make(catalogue),
            Self::Pvc(recipe) => recipe.make(),
            Self::TimeSlicing(recipe) => recipe.make(),
            Self::MigConfig(recipe) => recipe.make(),
            Self::Scaler(recipe) => recipe.make(catalogue),
            Self::Hpa(recipe) => recipe.make(),
            Self::Keda(recipe) => recipe.make(),
            Self::Nodepool(recipe) => recipe.make(catalogue),
            Self::Workload(recipe) => recipe.make(catalogue),
        }
    }

    /// Fills in fields of a file that the flags do not set. Fields are named like the flags.
    pub fn over(self, file: &str) -> Result<Self, RecipeError> {
        Ok(match self {
            Self::Job(flags) => Self::Job(over(&flags, file)?),
            Self::Deployment(flags) => Self::Deployment(over(&flags, file)?),
            Self::Pod(flags) => Self::Pod(over(&flags, file)?),
            Self::ModelServer(flags) => Self::ModelServer(over(&flags, file)?),
            Self::Pvc(flags) => Self::Pvc(over(&flags, file)?),
            Self::TimeSlicing(flags) => Self::TimeSlicing(over(&flags, file)?),
            Self::MigConfig(flags) => Self::MigConfig(over(&flags, file)?),
            Self::Scaler(flags) => Self::Scaler(over(&flags, file)?),
            Self::Hpa(flags) => Self::Hpa(over(&flags, file)?),
            Self::Keda(flags) => Self::Keda(over(&flags, file)?),
            Self::Nodepool(flags) => Self::Nodepool(over(&flags, file)?),
            Self::Workload(flags) => Self::Workload(over(&flags, file)?),
        })
    }
}

fn over<T: Default + Serialize + DeserializeOwned>(
    flags: &T,
    file: &str,
) -> Result<T, RecipeError> {
    let document = read_one(file.as_bytes(), &Limits::default())?;
    // The typed value keeps the order of variables, which the document's value loses.
    let read: T = serde_saphyr::from_str(file)
        .map_err(|error| invalid_field::<T>(&document, &error.without_snippet().to_string()))?;
    let mut all = serde_json::to_value(read)?;
    if let (Value::Object(all), Value::Object(flags)) = (&mut all, serde_json::to_value(flags)?) {
        all.extend(flags.into_iter().filter(|(_, value)| is_set(value)));
    }
    Ok(serde_json::from_value(all)?)
}

/// Finds the invalid field by decoding each field alone: serde reports no path inside flattened structs.
fn invalid_field<T: Default + Serialize + DeserializeOwned>(
    document: &Document,
    message: &str,
) -> DecodeError {
    let whole = |message: &str| document.error_at(Vec::new(), message);
    let Value::Object(fields) = &document.value else {
        return whole("a recipe is a mapping with the names of the flags: `gpus: 2`");
    };
    let known = serde_json::to_value(T::default()).unwrap_or_default();
    let known = known.as_object().cloned().unwrap_or_default();
    for (name, value) in fields {
        let steps = vec![name.clone()];
        if !known.contains_key(name) {
            let near = nearest(name, known.keys().map(String::as_str));
            let rest = match near {
                None => "; fields are named like the flags".to_owned(),
                near => did_you_mean(near),
            };
            let problem = format!("unknown field `{name}`{rest}");
            return DecodeError { problem, ..document.error_at(steps, "") };
        }
        let alone = Map::from_iter([(name.clone(), value.clone())]);
        if let Err(error) = serde_json::from_value::<T>(Value::Object(alone)) {
            return document.error_at(steps, &error.to_string());
        }
    }
    whole(message.lines().next().unwrap_or_default())
}

/// True if a flag was given.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        _ => true,
    }
}
