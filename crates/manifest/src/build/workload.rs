//! `GPUWorkload`: a workload for the agentaflow scheduler.

use std::sync::LazyLock;
use std::time::Duration;

use agentaflow_engine::Strategy;
use agentaflow_units::format_go_duration;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::placement::Placement;
use super::pod::{PodShape, Role};
use super::{BuildError, BuildOutput, names, refuse, values};
use crate::catalogue::Catalogue;
use crate::cloud::Gpu;

/// `generate workload`: a `GPUWorkload` for our scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Workload {
    /// 0 to 10, higher first [default: 5]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub priority: Option<u8>,
    /// MiB of memory that each GPU must have [default: the model's, else 0: any]
    #[arg(long, value_name = "MIB", allow_negative_numbers = true)]
    pub gpu_memory: Option<u64>,
    /// Scheduling strategy [default: the cluster's]
    #[arg(long, value_parser = strategies(), value_name = "STRATEGY")]
    #[serde(deserialize_with = "offered_strategy")]
    pub strategy: Option<Strategy>,
    /// Expected run time, such as 4h; improves backfill and ETAs
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    #[serde(deserialize_with = "values::text")]
    pub duration: Option<String>,
    /// Preferred GPU model, such as "NVIDIA A100"
    #[arg(long, value_name = "MODEL")]
    pub preferred_gpu: Option<String>,
    /// Pods that start together, all or none [default: 1]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub gang: Option<u32>,
    /// Queue that pays for it [default: that of the namespace]
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// Retries of a failed pod [default: 0]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub retries: Option<u32>,
    #[command(flatten)]
    #[serde(flatten)]
    pub pod: PodShape,
    #[command(flatten)]
    #[serde(flatten)]
    pub placement: Placement,
}

/// Parser of the strategies that a workload may name; clap suggests near misses.
fn strategies() -> impl TypedValueParser<Value = Strategy> {
    let values = Strategy::offered()
        .map(|strategy| PossibleValue::new(strategy.name()).help(strategy.description()));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Strategy>())
}

static OFFERED: LazyLock<Vec<&str>> =
    LazyLock::new(|| Strategy::offered().map(Strategy::name).collect());

/// Reads a strategy of a recipe file.
fn offered_strategy<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Strategy>, D::Error> {
    let Some(name) = Option::<String>::deserialize(reader)? else { return Ok(None) };
    let known = Strategy::offered().find(|strategy| strategy.name() == name);
    known.map(Some).ok_or_else(|| D::Error::unknown_variant(&name, &OFFERED))
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct GpuWorkload {
    api_version: &'static str,
    kind: &'static str,
    metadata: ObjectMeta,
    spec: Spec,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    gpu_memory_required: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    estimated_duration: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduling_strategy: Option<Strategy>,
    gpu_requirements: Requirements,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gang_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retries: Option<u32>,
    pod_template: PodTemplateSpec,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Requirements {
    #[serde(rename = "minGPUMemory", skip_serializing_if = "Option::is_none")]
    min_gpu_memory: Option<u64>,
    #[serde(rename = "preferredGPUType", skip_serializing_if = "Option::is_none")]
    preferred_gpu_type: Option<String>,
    gpu_count: u32,
    exclusive_access: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    mig_profile: Option<String>,
}

impl Workload {
    pub fn make(&self, catalogue: &Catalogue) -> Result<BuildOutput, BuildError> {
        self.check()?;
        let restart = Some("Never");
        let role = Role { container: "training", worker: false, restart, labelled: false };
        let shaped = self.pod.shape(self.pod.name.as_deref(), &self.placement, role, catalogue)?;
        self.check_memory(shaped.placed.gpu)?;
        let notes = shaped.notes_for(self.gang.unwrap_or(1));
        let duration = self.duration.as_deref();
        let duration = duration.map(|text| values::seconds("duration", text)).transpose()?;
        // Devices report up to a tenth less than the size in their name: 15360 MiB of a T4's 16 GB.
        let of_model = shaped.placed.gpu.map(|gpu| u64::from(gpu.memory_gib) * 900);
        let memory = self.gpu_memory.or(of_model.filter(|_| self.pod.mig.is_none())).unwrap_or(0);
        let profile = self.pod.mig.as_deref().filter(|_| !self.placement.calls_slices_gpus());
        let profile = profile.and_then(agentaflow_engine::mig::known_profile);
        let spec = Spec {
            priority: self.priority.or((!self.pod.bare).then_some(5)),
            gpu_memory_required: memory,
            estimated_duration: duration
                .map(|seconds| format_go_duration(Duration::from_secs(seconds.into()))),
            scheduling_strategy: self.strategy,
            gpu_requirements: Requirements {
                min_gpu_memory: (memory > 0).then_some(memory),
                preferred_gpu_type: self.preferred_gpu.clone(),
                gpu_count: shaped.gpus,
                exclusive_access: true,
                mig_profile: profile.map(|name| name.replace('+', ".")),
            },
            queue: self.queue.clone(),
            gang_size: self.gang,
            retries: self.retries,
            pod_template: shaped.template,
        };
        let (api_version, kind) = ("agentaflow.io/v1", "GPUWorkload");
        let object = GpuWorkload { api_version, kind, metadata: shaped.metadata, spec };
        BuildOutput::of(&object, notes)
    }

    /// Checks the requested memory against the model.
    fn check_memory(&self, gpu: Option<&'static Gpu>) -> Result<(), BuildError> {
        let gpu = self.placement.model()?.or(gpu);
        let most = gpu.and_then(|gpu| gpu.served_by().max_by_key(|gpu| gpu.memory_gib));
        match (self.gpu_memory, most) {
            (Some(memory), Some(gpu)) if memory > u64::from(gpu.memory_gib) << 10 => {
                let most = u64::from(gpu.memory_gib) << 10;
                refuse("gpu-memory", format!("no {} has more than {most} MiB", gpu.title))
            }
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<(), BuildError> {
        /// Two TiB. A larger value is probably in bytes.
        const MOST_MEMORY: u64 = 1 << 21;
        if self.priority.is_some_and(|priority| priority > 10) {
            return refuse("priority", "must be 0 to 10, higher first");
        }
        if self.gpu_memory.is_some_and(|memory| memory > MOST_MEMORY) {
            return refuse("gpu-memory", "must be in MiB; no GPU has this much memory");
        }
        if self.gang.is_some_and(|gang| !(1..=10_000).contains(&gang)) {
            return refuse("gang", "must be 1 to 10000");
        }
        if self.retries.is_some_and(|retries| retries > 100) {
            return refuse("retries", "must be 0 to 100");
        }
        if self.preferred_gpu.as_ref().is_some_and(|model| model.chars().count() > 256) {
            return refuse("preferred-gpu", "longer than any model name");
        }
        self.queue.as_deref().map_or(Ok(()), |queue| names::name("queue", Some(queue)).map(drop))
    }
}
