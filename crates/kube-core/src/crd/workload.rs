//! `GPUWorkload`: a gang of pods that need GPUs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{FIXED, conditions, rules};

/// GPU work: how much it needs and the pods that do it.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "agentaflow.io",
    version = "v1",
    kind = "GPUWorkload",
    root = "GpuWorkload",
    plural = "gpuworkloads",
    singular = "gpuworkload",
    shortname = "gw",
    category = "all",
    category = "agentaflow",
    namespaced,
    status = "GpuWorkloadStatus",
    doc = "GPU work: what it needs, the pods that do it and what became of it.",
    selectable = ".spec.queue",
    selectable = ".status.phase",
    printcolumn = r#"{"name":"Queue", "type":"string", "jsonPath":".spec.queue"}"#,
    printcolumn = r#"{"name":"Phase", "type":"string", "jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"GPUs", "type":"integer", "jsonPath":".spec.gpuRequirements.gpuCount"}"#,
    printcolumn = r#"{"name":"Node", "type":"string", "jsonPath":".status.assignedNode"}"#,
    printcolumn = r#"{"name":"Pods", "type":"integer", "jsonPath":".spec.gangSize", "priority":1}"#,
    printcolumn = r#"{"name":"Priority", "type":"integer", "jsonPath":".spec.priority", "priority":1}"#,
    printcolumn = r#"{"name":"Price/h", "type":"string", "jsonPath":".status.pricePerHour", "priority":1}"#,
    printcolumn = r#"{"name":"Reason", "type":"string", "jsonPath":".status.conditions[?(@.type==\"Schedulable\")].reason", "priority":1}"#,
    printcolumn = r#"{"name":"Age", "type":"date", "jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct GpuWorkloadSpec {
    /// 0 to 10, higher first.
    #[serde(default = "five")]
    #[schemars(range(min = 0, max = 10))]
    pub priority: u8,
    /// MiB of memory that each GPU must have; 0 when any will do.
    #[schemars(range(min = 0, max = MAX_GPU_MEMORY))]
    #[schemars(extend("x-kubernetes-validations" = rules(&[FIXED])))]
    pub gpu_memory_required: u64,
    /// How long it is expected to run: `4h`, `90m`, `1h30m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$') && duration(self) > duration('0s')",
        "estimatedDuration must be a time above zero with its unit, such as 4h, 90m or 1h30m",
    )])))]
    pub estimated_duration: Option<String>,
    /// How GPUs are chosen; the cluster's strategy when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = STRATEGIES))]
    pub scheduling_strategy: Option<String>,
    /// More about the GPUs of each pod.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        FIXED,
        (
            "!has(self.migProfile) || self.exclusiveAccess",
            "exclusiveAccess: a MIG slice has one user only; remove `exclusiveAccess: false` or `migProfile`",
        ),
    ])))]
    pub gpu_requirements: GpuRequirements,
    /// The `GPUQueue` that pays for it; the queue of its namespace when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub queue: Option<String>,
    /// How many pods start together, all or none.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10_000))]
    #[schemars(extend("x-kubernetes-validations" = rules(&[FIXED])))]
    pub gang_size: u32,
    /// How the pods of a gang lie to each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<WorkloadTopology>,
    /// May be stopped for work of higher priority.
    #[serde(default = "yes")]
    pub preemptible: bool,
    /// How often a failed pod is made again.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// The pods: a core/v1 `PodTemplateSpec`, kept as written; an absent GPU limit or `restartPolicy` is filled in.
    #[schemars(extend("x-kubernetes-validations" = rules(&[FIXED])))]
    pub pod_template: PodTemplate,
}

/// The strategies that people may write; the engine has two more, which are for comparison only.
const STRATEGIES: [&str; 7] = [
    "least_utilized",
    "best_fit",
    "priority",
    "round_robin",
    "least_fragmented",
    "cheapest",
    "pack",
];

/// The largest memory of one GPU that the engine takes, in MiB: two TiB. Who writes bytes is told so.
const MAX_GPU_MEMORY: u64 = 1 << 21;

/// A core/v1 `PodTemplateSpec` as it was written, kept as text: typed round trips would drop fields that are newer
/// than we are, and parsed JSON takes ten times the memory.
#[derive(Clone, PartialEq, Eq)]
pub struct PodTemplate(Box<str>);

/// Templates hold people's commands and variables, which belong in no log.
impl std::fmt::Debug for PodTemplate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "PodTemplate({} bytes)", self.0.len())
    }
}

impl PodTemplate {
    /// The template from JSON.
    pub fn new(value: &serde_json::Value) -> Self {
        Self(value.to_string().into())
    }

    /// The template as JSON.
    pub fn value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Its length as compact JSON.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl Serialize for PodTemplate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PodTemplate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde_json::Value::deserialize(deserializer).map(|value| Self::new(&value))
    }
}

impl JsonSchema for PodTemplate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PodTemplate".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
        })
    }
}

/// More about the GPUs of each pod.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuRequirements {
    /// MiB that each GPU must have; the larger of this and `gpuMemoryRequired` counts.
    #[serde(rename = "minGPUMemory", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_GPU_MEMORY))]
    pub min_gpu_memory: Option<u64>,
    /// A model that is taken where possible, such as `NVIDIA A100`; others are taken too.
    #[serde(rename = "preferredGPUType", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub preferred_gpu_type: Option<String>,
    /// The only model that will do, such as `H100`: every word of it occurs in the GPU's name.
    #[serde(rename = "requiredGPUType", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub required_gpu_type: Option<String>,
    /// How many GPUs, or MIG slices, each pod gets.
    #[schemars(range(min = 1, max = 64))]
    pub gpu_count: u32,
    /// No other workload on those GPUs.
    pub exclusive_access: bool,
    /// MIG slices of this profile instead of whole GPUs, such as `1g.5gb`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "self.matches('^[1-7]g[.][1-9][0-9]{0,2}gb([.]me)?$')",
        "migProfile must be the name of a MIG profile without prefix, such as 1g.5gb or 1g.10gb.me",
    )])))]
    pub mig_profile: Option<String>,
}

/// How the pods of a gang lie to each other.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadTopology {
    /// Together or apart.
    pub mode: TopologyMode,
    /// The node label whose values are the domains.
    #[serde(default = "hostname")]
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
}

/// Together or apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum TopologyMode {
    /// All pods in one domain.
    Same,
    /// Over as many domains as possible.
    Spread,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuWorkloadStatus {
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<WorkloadPhase>,
    /// The node, or the nodes with commas between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assigned_node: Option<String>,
    /// The GPUs: `node/gpu-id`, with commas between them.
    #[serde(rename = "assignedGPU", skip_serializing_if = "Option::is_none")]
    pub assigned_gpu: Option<String>,
    /// Dollars that its GPUs cost an hour, as fixed when they were assigned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<String>,
    /// When the first pod began to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// One sentence about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `Schedulable`, `Assigned`, `Ready`.
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Retries used so far.
    pub retries: u32,
    /// When pods may be made next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off: Option<BackOff>,
    /// The tasks that ended well, such as `0,2-5`: they are not done again, even when their pods are gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_tasks: Option<String>,
    /// The generation that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// When pods may be made next: what loses its pods again and again is made ever more slowly.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackOff {
    /// No pods are made before.
    pub until: Time,
    /// How often pods were made in a row.
    #[serde(default)]
    pub count: u32,
}

/// Where a workload stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum WorkloadPhase {
    /// It waits.
    #[default]
    Pending,
    /// It has its places.
    Scheduled,
    /// It runs.
    Running,
    /// It ended well.
    Succeeded,
    /// It did not.
    Failed,
}

impl Default for GpuRequirements {
    fn default() -> Self {
        Self {
            min_gpu_memory: None,
            preferred_gpu_type: None,
            required_gpu_type: None,
            gpu_count: 1,
            exclusive_access: true,
            mig_profile: None,
        }
    }
}

fn five() -> u8 {
    5
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn hostname() -> String {
    "kubernetes.io/hostname".to_owned()
}
