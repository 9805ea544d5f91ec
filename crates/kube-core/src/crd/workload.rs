//! `GPUWorkload`: gang of pods that need GPUs.

use agentaflow_engine::Strategy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{FIXED, conditions, labels, mounts, objects, ports, quantities, rules, words};

/// GPU workload: its requirements and its pods.
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
    doc = "GPUWorkload is a job that runs on GPUs. The spec has the GPU requirements and the pod template, the status has the placement and the phase.",
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
    /// Priority from 0 to 10, higher first. 5 is the default class of the cluster, any other N is the class `agentaflow-N`.
    #[serde(default = "five")]
    #[schemars(range(min = 0, max = 10))]
    pub priority: u8,
    /// Memory in MiB that each GPU must have; 0 accepts any.
    #[schemars(range(min = 0, max = MAX_GPU_MEMORY))]
    #[schemars(extend("x-kubernetes-validations" = rules(&[FIXED])))]
    pub gpu_memory_required: u64,
    /// Expected run time: `4h`, `90m`, `1h30m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$') && duration(self) > duration('0s')",
        "estimatedDuration must be a time above zero with its unit, such as 4h, 90m or 1h30m",
    )])))]
    pub estimated_duration: Option<String>,
    /// Scheduling strategy; default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = offered_strategies()))]
    pub scheduling_strategy: Option<String>,
    /// Further GPU requirements of each pod.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        FIXED,
        (
            "!has(self.migProfile) || self.exclusiveAccess",
            "exclusiveAccess: a MIG slice has one user only; remove `exclusiveAccess: false` or `migProfile`",
        ),
    ])))]
    pub gpu_requirements: GpuRequirements,
    /// `GPUQueue` of the workload; default: the queue of its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub queue: Option<String>,
    /// Pods that start together, all or none.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10_000))]
    #[schemars(extend("x-kubernetes-validations" = rules(&[FIXED])))]
    pub gang_size: u32,
    /// Topology of the gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<WorkloadTopology>,
    /// May be preempted by workloads of higher priority.
    #[serde(default = "yes")]
    pub preemptible: bool,
    /// Retries of a failed pod.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Deletes the pods and gives up their place; `false` creates them again. Completed tasks stay completed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub suspend: bool,
    /// Seconds after success or failure until the workload and its pods are deleted; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub ttl_seconds_after_finished: Option<u32>,
    /// Pod template: a core/v1 `PodTemplateSpec`, kept as written; an absent GPU limit or `restartPolicy` is filled
    /// in.
    #[schemars(extend("x-kubernetes-validations" = rules(&[FIXED])))]
    pub pod_template: PodTemplate,
    /// Changes of the template for some tasks, such as a leader; later entries have precedence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[schemars(extend("x-kubernetes-validations" = rules(&[FIXED])))]
    pub task_overrides: Vec<TaskOverride>,
}

/// Changes of the template for some tasks.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskOverride {
    /// Task numbers and ranges: `0`, `1-3`, `0,4-7`.
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = r"^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$")
    )]
    pub tasks: String,
    /// Changed containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub containers: Vec<ContainerOverride>,
    /// Node labels to add or replace in the selector of the template.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    #[schemars(schema_with = "labels")]
    pub node_selector: serde_json::Map<String, serde_json::Value>,
    /// Volumes to add or replace, as in a core/v1 `PodSpec`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "objects")]
    pub volumes: Vec<serde_json::Value>,
}

/// Changes of one container.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerOverride {
    /// Container of the template; may be absent if the template has one container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// Replaces the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Replaces the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "words")]
    pub command: Option<Vec<String>>,
    /// Replaces the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "words")]
    pub args: Option<Vec<String>>,
    /// Variables to add or replace, as in a core/v1 `Container`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "objects")]
    pub env: Vec<serde_json::Value>,
    /// Replaces the ports, as in a core/v1 `Container`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "ports")]
    pub ports: Option<Vec<serde_json::Value>>,
    /// Mounts to add or replace by their path, as in a core/v1 `Container`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "mounts")]
    pub volume_mounts: Vec<serde_json::Value>,
    /// Amounts to add or replace; the number of GPUs is `gpuRequirements.gpuCount` for every task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceOverride>,
}

/// Resources to add or replace.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceOverride {
    /// By resource name.
    #[schemars(schema_with = "quantities")]
    pub limits: serde_json::Map<String, serde_json::Value>,
    /// By resource name.
    #[schemars(schema_with = "quantities")]
    pub requests: serde_json::Map<String, serde_json::Value>,
}

fn offered_strategies() -> Vec<&'static str> {
    Strategy::offered().map(Strategy::name).collect()
}

/// Largest memory of one GPU that the engine accepts, in MiB: two TiB. A larger value is probably in bytes.
const MAX_GPU_MEMORY: u64 = 1 << 21;

/// Core/v1 `PodTemplateSpec` as text: typed round trips would drop unknown fields, and parsed JSON takes ten times
/// the memory.
#[derive(Clone, PartialEq, Eq)]
pub struct PodTemplate(Box<str>);

/// Templates contain commands and variables, which must not be logged.
impl std::fmt::Debug for PodTemplate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "PodTemplate({} bytes)", self.0.len())
    }
}

impl PodTemplate {
    pub fn new(value: &serde_json::Value) -> Self {
        Self(value.to_string().into())
    }

    pub fn value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Length as compact JSON.
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

/// Further GPU requirements of each pod.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuRequirements {
    /// Memory in MiB that each GPU must have; the larger of this and `gpuMemoryRequired` applies.
    #[serde(rename = "minGPUMemory", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_GPU_MEMORY))]
    pub min_gpu_memory: Option<u64>,
    /// Preferred model, such as `NVIDIA A100`; other models are accepted.
    #[serde(rename = "preferredGPUType", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub preferred_gpu_type: Option<String>,
    /// Required model, such as `H100`: every word must occur in the GPU's name.
    #[serde(rename = "requiredGPUType", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub required_gpu_type: Option<String>,
    /// GPUs or MIG slices of each pod.
    #[schemars(range(min = 1, max = 64))]
    pub gpu_count: u32,
    /// Exclusive use of the GPUs.
    pub exclusive_access: bool,
    /// MIG profile of slices instead of whole GPUs, such as `1g.5gb`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "self.matches('^[1-7]g[.][1-9][0-9]{0,2}gb([.]me)?$')",
        "migProfile must be the name of a MIG profile without prefix, such as 1g.5gb or 1g.10gb.me",
    )])))]
    pub mig_profile: Option<String>,
}

/// Topology of a gang.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadTopology {
    /// Pods together or apart.
    pub mode: TopologyMode,
    /// Node label with the topology domain.
    #[serde(default = "hostname")]
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Node labels of narrower domains, narrowest first: the gang starts within one domain of the first of these that has
    /// room, and else according to `mode`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(min = 1, max = 317)))]
    pub preferred: Vec<String>,
}

/// Pods together or apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum TopologyMode {
    /// All pods in one domain.
    Same,
    /// Pods over as many domains as possible.
    Spread,
    /// No requirement; for `preferred` alone.
    Any,
}

/// Status of the workload.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuWorkloadStatus {
    /// Phase of the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<WorkloadPhase>,
    /// Assigned nodes, comma-separated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assigned_node: Option<String>,
    /// Assigned GPUs: `node/gpu-id`, comma-separated.
    #[serde(rename = "assignedGPU", skip_serializing_if = "Option::is_none")]
    pub assigned_gpu: Option<String>,
    /// Price of its GPUs in dollars per hour, fixed at assignment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<String>,
    /// Start of the first pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time of completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Message about the current phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `Schedulable`, `Assigned`, `Ready`.
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Retries used.
    pub retries: u32,
    /// Backoff before pods are created again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off: Option<BackOff>,
    /// Completed tasks, such as `0,2-5`: not repeated, even if their pods are deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_tasks: Option<String>,
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Backoff for repeated pod losses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackOff {
    /// Earliest time to create pods.
    pub until: Time,
    /// Consecutive creations.
    #[serde(default)]
    pub count: u32,
}

/// Phase of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum WorkloadPhase {
    /// Not placed yet.
    #[default]
    Pending,
    /// Placed; not every pod runs yet.
    Scheduled,
    /// All pods run.
    Running,
    /// All tasks completed.
    Succeeded,
    /// A task failed without retries left.
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
fn is_false(value: &bool) -> bool {
    !value
}

fn hostname() -> String {
    "kubernetes.io/hostname".to_owned()
}
