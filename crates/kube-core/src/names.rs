//! Every name that other programs, manifests or dashboards rely on.

/// The name that pods give to be placed by us.
pub const SCHEDULER_NAME: &str = "agentaflow";
/// The API group of our kinds.
pub const GROUP: &str = "agentaflow.io";
/// The version of our kinds.
pub const VERSION: &str = "v1";
/// Field manager of server-side apply.
pub const FIELD_MANAGER: &str = "agentaflow";
/// The namespace of the product.
pub const NAMESPACE: &str = "agentaflow";
/// Service of the scheduler's HTTP API.
pub const SCHEDULER_SERVICE: &str = "agentaflow-scheduler-service";
/// Role with access to the scheduler's HTTP API through the API server.
pub const ASKER_ROLE: &str = "agentaflow-asker";
/// Cluster role with read access to nodes and queues.
pub const NODE_VIEWER_ROLE: &str = "agentaflow-node-viewer";
/// The deployment of the scheduler.
pub const SCHEDULER_DEPLOYMENT: &str = "agentaflow-gpu-scheduler";
/// `ConfigMap` with settings that apply without a restart.
pub const SCHEDULER_CONFIG: &str = "agentaflow-scheduler-config";

/// Node label: the node has managed GPUs.
pub const NODE_ENABLED: &str = "agentaflow.gpu/enabled";
/// Node label: at least one GPU can be used.
pub const NODE_SCHEDULABLE: &str = "agentaflow.gpu/schedulable";
/// Node label: how many GPUs.
pub const NODE_COUNT: &str = "agentaflow.gpu/count";
/// Node label: `low`, `medium` or `high`.
pub const NODE_TIER: &str = "agentaflow.gpu/utilization-tier";
/// Node annotation: devices as JSON.
pub const NODE_DEVICES: &str = "agentaflow.gpu/devices";
/// Node annotation: status and metrics as JSON.
pub const NODE_STATUS: &str = "agentaflow.gpu/status";
/// Node annotation: when the status was written.
pub const NODE_LAST_UPDATE: &str = "agentaflow.gpu/last-update";
/// Node label or annotation set by administrators: `true` during maintenance of the GPUs.
pub const NODE_MAINTENANCE: &str = "agentaflow.gpu/maintenance";

/// Node annotation, set by `agentaflow cordon NODE/GPU`: GPUs that get no new work, by id or number, comma-separated.
/// As many fewer are given out on the node; which devices a pod gets is the kubelet's choice.
pub const NODE_CLOSED_GPUS: &str = "agentaflow.gpu/cordoned";

/// Node annotation set by administrators: dollars per GPU hour, such as `2.50`.
pub const NODE_PRICE: &str = "agentaflow.gpu/price-per-gpu-hour";

/// Annotation of a `GPUWorkload`, set by `agentaflow complete`: `"true"` ends it as if it were done. Its pods are
/// stopped, and its phase becomes `Succeeded`.
pub const COMPLETE: &str = "agentaflow.gpu/complete";

/// Prefix of agentaflow's labels and annotations on pods.
pub const PREFIX: &str = "agentaflow.gpu/";
/// Pod label: name of the `GPUWorkload`.
pub const POD_WORKLOAD: &str = "agentaflow.gpu/workload";
/// Pod label: managed by agentaflow.
pub const POD_MANAGED: &str = "agentaflow.gpu/managed";
/// Common label with the managing tool.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Pod label: the number of the task in its workload.
pub const POD_TASK: &str = "agentaflow.gpu/task";
/// Pod label: which attempt of the task this is, from 0.
pub const POD_ATTEMPT: &str = "agentaflow.gpu/attempt";
/// Pod annotation: how many of its workload's retries were spent when it was made.
pub const POD_RETRIES: &str = "agentaflow.gpu/retries";
/// Pod annotation, written with the binding: the GPUs, `node/gpu-id`, comma-separated.
pub const POD_ASSIGNED_GPU: &str = "agentaflow.gpu/assigned-gpu";
/// Pod annotation, written with the binding: the node.
pub const POD_ASSIGNED_NODE: &str = "agentaflow.gpu/assigned-node";
/// Pod annotation, written with the binding: dollars that its GPUs cost an hour.
pub const POD_PRICE: &str = "agentaflow.gpu/price-per-hour";
/// Pod annotation written by the monitor: devices allocated by the kubelet, comma-separated.
pub const POD_DEVICES: &str = "agentaflow.gpu/allocated-devices";
/// Annotation read on pods and their owners: a strategy's name.
pub const STRATEGY: &str = "agentaflow.gpu/scheduling-strategy";
/// Annotation read on pods and their owners: 0 to 10.
pub const PRIORITY: &str = "agentaflow.gpu/priority";
/// Annotation read on pods and their owners: the queue.
pub const QUEUE: &str = "agentaflow.gpu/queue";
/// Annotation of pods and their owners: `"false"` protects from preemption.
pub const PREEMPTIBLE: &str = "agentaflow.gpu/preemptible";
/// Annotation read on pods and their owners: how long it is expected to run, such as `1h30m`.
pub const DURATION: &str = "agentaflow.gpu/estimated-duration";
/// Annotation read on pods and their owners: MiB that each GPU must have.
pub const GPU_MEMORY: &str = "agentaflow.gpu/min-gpu-memory";
/// Reason of events about pending pods; equals the default scheduler's reason, which alerts use.
pub const FAILED_SCHEDULING: &str = "FailedScheduling";
/// Annotations that a pod inherits from its owners; those written by the scheduler are not inherited.
pub const INHERITED: [&str; 6] = [STRATEGY, PRIORITY, QUEUE, PREEMPTIBLE, DURATION, GPU_MEMORY];
/// Namespace label: GPU pods in it are ours.
pub const NAMESPACE_OPT_IN: &str = "agentaflow.gpu/scheduling";
/// The value of [`NAMESPACE_OPT_IN`].
pub const NAMESPACE_OPT_IN_VALUE: &str = "enabled";
/// Label of Kueue's, read where Kueue is absent.
pub const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// The API group of Kueue.
pub const KUEUE_GROUP: &str = "kueue.x-k8s.io";
/// Label of the scheduler plugins' pod groups.
pub const POD_GROUP: &str = "scheduling.x-k8s.io/pod-group";

/// The finalizer of a `GPUWorkload`.
pub const FINALIZER: &str = "agentaflow.io/cleanup";

/// The resource that counts whole GPUs, or time slices of them.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// Prefix of MIG resources.
pub const MIG_PREFIX: &str = "nvidia.com/mig-";
/// Engine resource of nodes with whole GPUs.
pub const EXCLUSIVE_RESOURCE: &str = "agentaflow.gpu/exclusive";
/// The engine's resource that counts pods.
pub const PODS_RESOURCE: &str = "pods";
/// Label with the namespace of a task in the engine's terms; not a valid pod label.
pub const NAMESPACE_KEY: &str = "namespace!";

/// Node label of NVIDIA's: the model.
pub const NVIDIA_PRODUCT: &str = "nvidia.com/gpu.product";
/// Node label of NVIDIA's: MiB of each GPU.
pub const NVIDIA_MEMORY: &str = "nvidia.com/gpu.memory";
/// Node label of NVIDIA's: how many devices.
pub const NVIDIA_COUNT: &str = "nvidia.com/gpu.count";
/// Node label of NVIDIA's: time slices of each device.
pub const NVIDIA_REPLICAS: &str = "nvidia.com/gpu.replicas";

/// Prefix of agentaflow's priority classes.
pub const PRIORITY_CLASS_PREFIX: &str = "agentaflow-";

/// The class of a priority from 0 to 10.
pub fn priority_class(priority: u8) -> String {
    format!("{PRIORITY_CLASS_PREFIX}{}", priority.min(10))
}

/// One step of priority, in the values of priority classes.
pub const PRIORITY_STEP: i32 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts, manifests and dashboards of users depend on these to the letter.
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
