//! Every name that other programs, manifests or dashboards rely on.

/// `schedulerName` of pods that agentaflow places.
pub const SCHEDULER_NAME: &str = "agentaflow";
/// API group of the agentaflow kinds.
pub const GROUP: &str = "agentaflow.io";
/// API version of the agentaflow kinds.
pub const VERSION: &str = "v1";
/// Field manager of server-side apply.
pub const FIELD_MANAGER: &str = "agentaflow";
/// Namespace of agentaflow.
pub const NAMESPACE: &str = "agentaflow";
/// Service of the scheduler's HTTP API.
pub const SCHEDULER_SERVICE: &str = "agentaflow-scheduler-service";
/// Role with access to the scheduler's HTTP API through the API server.
pub const ASKER_ROLE: &str = "agentaflow-asker";
/// Cluster role with read access to nodes and queues.
pub const NODE_VIEWER_ROLE: &str = "agentaflow-node-viewer";
/// Deployment of the scheduler.
pub const SCHEDULER_DEPLOYMENT: &str = "agentaflow-gpu-scheduler";
/// `ConfigMap` with settings that apply without a restart.
pub const SCHEDULER_CONFIG: &str = "agentaflow-scheduler-config";
/// `ConfigMap` of administrators: configuration of alerts, silences and requests for test messages.
pub const ALERTS: &str = "agentaflow-alerts";
/// Key of [`ALERTS`] with the configuration of rules and sinks, in TOML.
pub const ALERTS_CONFIG: &str = "alerts.toml";
/// Prefix of the keys of [`ALERTS`] with silences, in JSON; the id of the silence follows.
pub const ALERTS_SILENCE: &str = "silence-";
/// Key of [`ALERTS`] with the last request for a test message, in JSON.
pub const ALERTS_TEST: &str = "test";
/// Secret with the addresses of alert sinks.
pub const ALERT_SECRET: &str = "alert-webhook";
/// Key of [`ALERT_SECRET`] with the URL of a webhook.
pub const ALERT_SECRET_URL: &str = "webhook-url";

/// Node label: the node has managed GPUs.
pub const NODE_ENABLED: &str = "agentaflow.gpu/enabled";
/// Node label: at least one GPU can be used.
pub const NODE_SCHEDULABLE: &str = "agentaflow.gpu/schedulable";
/// Node label: number of GPUs.
pub const NODE_COUNT: &str = "agentaflow.gpu/count";
/// Node label: `low`, `medium` or `high`.
pub const NODE_TIER: &str = "agentaflow.gpu/utilization-tier";
/// Node annotation: devices as JSON.
pub const NODE_DEVICES: &str = "agentaflow.gpu/devices";
/// Node annotation: status and metrics as JSON.
pub const NODE_STATUS: &str = "agentaflow.gpu/status";
/// Node annotation: time of the last status write.
pub const NODE_LAST_UPDATE: &str = "agentaflow.gpu/last-update";
/// Node label or annotation set by administrators: `true` during maintenance of the GPUs.
pub const NODE_MAINTENANCE: &str = "agentaflow.gpu/maintenance";

/// Node annotation, set by `agentaflow cordon NODE/GPU`: cordoned GPUs, by id or index, comma-separated. The scheduler
/// allocates that many fewer on the node; the kubelet chooses the devices of a pod.
pub const NODE_CLOSED_GPUS: &str = "agentaflow.gpu/cordoned";

/// Node annotation set by administrators: dollars per GPU hour, such as `2.50`.
pub const NODE_PRICE: &str = "agentaflow.gpu/price-per-gpu-hour";

/// Annotation of a `GPUWorkload`, set by `agentaflow complete`: `"true"` completes the workload. Its pods are stopped, and
/// its phase becomes `Succeeded`.
pub const COMPLETE: &str = "agentaflow.gpu/complete";

/// Prefix of agentaflow's labels and annotations on pods.
pub const PREFIX: &str = "agentaflow.gpu/";
/// Pod label: name of the `GPUWorkload`.
pub const POD_WORKLOAD: &str = "agentaflow.gpu/workload";
/// Pod label: managed by agentaflow.
pub const POD_MANAGED: &str = "agentaflow.gpu/managed";
/// Common label with the managing tool.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Pod label: index of the task in its workload.
pub const POD_TASK: &str = "agentaflow.gpu/task";
/// Pod label: attempt of the task, from 0.
pub const POD_ATTEMPT: &str = "agentaflow.gpu/attempt";
/// Pod annotation of Kubernetes: index of the pod among the pods of its workload.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Pod annotation: hosts of its gang in the format of Open MPI. The scheduler does not read it back.
pub const HOSTFILE: &str = "agentaflow.io/hostfile";
/// Pod annotation: retries that its workload had used when the pod was created.
pub const POD_RETRIES: &str = "agentaflow.gpu/retries";
/// Pod annotation: priority of its `GPUWorkload` when the pod was created.
pub const POD_PRIORITY: &str = "agentaflow.gpu/workload-priority";
/// Pod annotation, written with the binding: the GPUs, `node/gpu-id`, comma-separated.
pub const POD_ASSIGNED_GPU: &str = "agentaflow.gpu/assigned-gpu";
/// Pod annotation, written with the binding: the node.
pub const POD_ASSIGNED_NODE: &str = "agentaflow.gpu/assigned-node";
/// Pod annotation, written with the binding: price of its GPUs in dollars per hour.
pub const POD_PRICE: &str = "agentaflow.gpu/price-per-hour";
/// Pod annotation written by the monitor: devices allocated by the kubelet, comma-separated.
pub const POD_DEVICES: &str = "agentaflow.gpu/allocated-devices";
/// Annotation read on pods and their owners: name of a strategy.
pub const STRATEGY: &str = "agentaflow.gpu/scheduling-strategy";
/// Annotation read on pods and their owners: 0 to 10. The webhook turns it into a priority class; without the webhook it
/// orders pods of equal `spec.priority`.
pub const PRIORITY: &str = "agentaflow.gpu/priority";
/// Annotation read on pods and their owners: the queue.
pub const QUEUE: &str = "agentaflow.gpu/queue";
/// Annotation of pods and their owners: `"false"` protects from preemption.
pub const PREEMPTIBLE: &str = "agentaflow.gpu/preemptible";
/// Annotation read on pods and their owners: expected run time, such as `1h30m`.
pub const DURATION: &str = "agentaflow.gpu/estimated-duration";
/// Annotation read on pods and their owners: required memory of each GPU in MiB.
pub const GPU_MEMORY: &str = "agentaflow.gpu/min-gpu-memory";
/// Annotation read on pods and their owners: time during which the place of a lost pod of a running gang stays reserved,
/// such as `5m`.
pub const REPLACEMENT_TIMEOUT: &str = "agentaflow.gpu/replacement-timeout";
/// Annotation read on pods: trace that the pod continues, in the form of W3C Trace Context.
pub const TRACEPARENT: &str = "agentaflow.gpu/traceparent";
/// Reason of events about pending pods; equals the default scheduler's reason, which alerts use.
pub const FAILED_SCHEDULING: &str = "FailedScheduling";
/// Annotations that a pod inherits from its owners; annotations written by the scheduler are not inherited.
pub const INHERITED: [&str; 7] =
    [STRATEGY, PRIORITY, QUEUE, PREEMPTIBLE, DURATION, GPU_MEMORY, REPLACEMENT_TIMEOUT];
/// Namespace label: assigns all GPU pods of the namespace to agentaflow.
pub const NAMESPACE_OPT_IN: &str = "agentaflow.gpu/scheduling";
/// The value of [`NAMESPACE_OPT_IN`].
pub const NAMESPACE_OPT_IN_VALUE: &str = "enabled";
/// Annotation of the webhook configuration, set by `agentaflow exclusive on`: all GPU pods belong to agentaflow.
pub const EXCLUSIVE: &str = "agentaflow.gpu/exclusive-use";
/// Queue label of Kueue, read if Kueue is not installed.
pub const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// The API group of Kueue.
pub const KUEUE_GROUP: &str = "kueue.x-k8s.io";
/// Label of the scheduler plugins' pod groups.
pub const POD_GROUP: &str = "scheduling.x-k8s.io/pod-group";

/// Annotation of a job: `"false"` places its pods one by one instead of together.
pub const UNIT: &str = "agentaflow.gpu/unit";
/// Annotation of a job: `"true"` keeps it suspended.
pub const UNIT_HOLD: &str = "agentaflow.gpu/hold";
/// Annotation of a suspended job, written by the scheduler: the pending reason.
pub const UNIT_REASON: &str = "agentaflow.gpu/pending-reason";
/// Pod label of a `LeaderWorkerSet`: its name.
pub const GROUP_SET: &str = "leaderworkerset.sigs.k8s.io/name";
/// Pod label of a `LeaderWorkerSet`: index of the group.
pub const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
/// Annotation of a `LeaderWorkerSet`: each group gets a topology domain of its own.
pub const GROUP_TOPOLOGY: &str = "leaderworkerset.sigs.k8s.io/exclusive-topology";
/// Label of the Jobs that `agentaflow worker` creates and resumes.
pub const WORKER_AGENT: &str = "agentaflow.io/agent";

pub const FINALIZER: &str = "agentaflow.io/cleanup";

/// Resource that counts whole GPUs, or time slices of GPUs.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// Prefix of MIG resources.
pub const MIG_PREFIX: &str = "nvidia.com/mig-";
/// Engine resource of nodes with whole GPUs.
pub const EXCLUSIVE_RESOURCE: &str = "agentaflow.gpu/exclusive";
/// Engine resource that counts pods.
pub const PODS_RESOURCE: &str = "pods";
/// Label with the namespace of a task in the engine's terms; not a valid pod label.
pub const NAMESPACE_KEY: &str = "namespace!";

/// Node label of NVIDIA: model.
pub const NVIDIA_PRODUCT: &str = "nvidia.com/gpu.product";
/// Node label of NVIDIA: memory of each GPU in MiB.
pub const NVIDIA_MEMORY: &str = "nvidia.com/gpu.memory";
/// Node label of NVIDIA: number of devices.
pub const NVIDIA_COUNT: &str = "nvidia.com/gpu.count";
/// Node label of NVIDIA: time slices of each device.
pub const NVIDIA_REPLICAS: &str = "nvidia.com/gpu.replicas";

/// Prefix of agentaflow's priority classes.
pub const PRIORITY_CLASS_PREFIX: &str = "agentaflow-";

/// Priority of a `GPUWorkload` without one. Its pods have the default class of the cluster.
pub const DEFAULT_PRIORITY: u8 = 5;

pub const HIGHEST_PRIORITY: u8 = 10;

/// Installed priority class of a priority from 0 to 10.
pub fn priority_class_name(priority: u8) -> String {
    format!("{PRIORITY_CLASS_PREFIX}{}", priority.min(HIGHEST_PRIORITY))
}

/// Priority class of the pods of a priority from 0 to 10; none for the default.
pub fn priority_class(priority: u8) -> Option<String> {
    (priority != DEFAULT_PRIORITY).then(|| priority_class_name(priority))
}

/// Value of the class of a priority, as installed. Priorities below the default are below pods without a class, whose value
/// is 0; the highest one is below any class that an administrator makes for important pods.
pub fn priority_class_value(priority: u8) -> i32 {
    i32::from(priority.min(HIGHEST_PRIORITY)) - i32::from(DEFAULT_PRIORITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts, manifests and dashboards of users depend on the exact names.
    #[test]
    fn names_that_users_rely_on_stay_as_they_are() {
        let table = [
            (NODE_ENABLED, "agentaflow.gpu/enabled"),
            (NODE_SCHEDULABLE, "agentaflow.gpu/schedulable"),
            (NODE_COUNT, "agentaflow.gpu/count"),
            (NODE_TIER, "agentaflow.gpu/utilization-tier"),
            (NODE_DEVICES, "agentaflow.gpu/devices"),
            (NODE_STATUS, "agentaflow.gpu/status"),
            (NODE_LAST_UPDATE, "agentaflow.gpu/last-update"),
            (POD_WORKLOAD, "agentaflow.gpu/workload"),
            (POD_MANAGED, "agentaflow.gpu/managed"),
            (POD_ASSIGNED_GPU, "agentaflow.gpu/assigned-gpu"),
            (POD_ASSIGNED_NODE, "agentaflow.gpu/assigned-node"),
            (STRATEGY, "agentaflow.gpu/scheduling-strategy"),
            (PRIORITY, "agentaflow.gpu/priority"),
            (NAMESPACE_OPT_IN, "agentaflow.gpu/scheduling"),
            (NAMESPACE_OPT_IN_VALUE, "enabled"),
            (NAMESPACE, "agentaflow"),
            (SCHEDULER_NAME, "agentaflow"),
            (SCHEDULER_SERVICE, "agentaflow-scheduler-service"),
            (SCHEDULER_DEPLOYMENT, "agentaflow-gpu-scheduler"),
        ];
        for (own, promised) in table {
            assert_eq!(own, promised);
        }
    }
}
