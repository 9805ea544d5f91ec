//! Resource requests and node capacity.

use agentaflow_engine::{GpuRequest, MiB, MilliCpu};
use serde_json::{Value, json};

use super::{Cluster, asking, check, nodes, pod, read};
use crate::translate::{TranslationContext, foreign, gpu_need, gpu_resources};

fn container(requests: &Value) -> Value {
    json!({"name": "c", "resources": {"requests": requests}})
}

fn sidecar(requests: &Value) -> Value {
    json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": requests}})
}

#[track_caller]
fn check_amounts(spec: Value, cpu: u64, memory: u64) {
    let shown = spec.clone();
    let cluster = Cluster::default();
    let request = cluster.translate(pod(spec)).unwrap().request;
    assert_eq!((request.cpu, request.memory), (MilliCpu(cpu), MiB(memory)), "{shown:#}");
}

#[test]
fn a_pod_takes_the_most_that_runs_at_a_time() {
    let one = json!({"cpu": "1", "memory": "1Gi"});
    let two = json!({"cpu": "2", "memory": "512Mi"});
    let half = json!({"cpu": "500m", "memory": "256Mi"});
    let table = [
        (json!({"containers": []}), 0, 0),
        (json!({"containers": [container(&one)]}), 1000, 1024),
        (json!({"containers": [container(&one), container(&two)]}), 3000, 1536),
        // An init container counts only beyond the containers.
        (json!({"containers": [container(&one)], "initContainers": [container(&two)]}), 2000, 1024),
        (json!({"containers": [container(&two)], "initContainers": [container(&one)]}), 2000, 1024),
        // A sidecar counts beside the containers, and beside the init containers after it.
        (json!({"containers": [container(&one)], "initContainers": [sidecar(&half)]}), 1500, 1280),
        (
            json!({"containers": [container(&half)], "initContainers": [sidecar(&half), container(&two)]}),
            2500,
            768,
        ),
        (
            json!({"containers": [container(&half)], "initContainers": [container(&two), sidecar(&half)]}),
            2000,
            512,
        ),
        (
            json!({"containers": [container(&one)], "overhead": {"cpu": "100m", "memory": "1"}}),
            1100,
            1025,
        ),
        // The pod-level request replaces the sum.
        (
            json!({"containers": [container(&one)], "resources": {"requests": {"cpu": "3"}},
                   "overhead": {"cpu": "1"}}),
            4000,
            1024,
        ),
        (
            json!({"containers": [container(&one)], "resources": {"limits": {"cpu": "3"}}}),
            1000,
            1024,
        ),
        (json!({"containers": [], "resources": {"limits": {"cpu": "3"}}}), 3000, 0),
        // The API server derives requests from limits.
        (json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}), 2000, 0),
        (
            json!({"containers": [{"name": "c",
                   "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "0", "memory": "1k"}}}]}),
            0,
            1,
        ),
    ];
    for (spec, cpu, memory) in table {
        check_amounts(spec, cpu, memory);
    }
}

#[test]
fn a_pod_goes_where_there_is_enough_of_everything() {
    let cluster = Cluster::default()
        .with_node(json!({"metadata": {"name": "small"}, "status": {"allocatable":
            {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi", "pods": "1"}}}))
        .with_node(json!({"metadata": {"name": "large"}, "status": {"allocatable":
            {"cpu": "7.9999", "memory": "16Gi", "ephemeral-storage": "100G", "pods": "10",
             "hugepages-2Mi": "4Mi", "example.com/fpga": "2", "nvidia.com/mig-1g.5gb": "7"}}}));
    let table = [
        (json!({}), "small large"),
        (json!({"cpu": "1"}), "small large"),
        (json!({"cpu": "1001m"}), "large"),
        (json!({"cpu": "7999m"}), "large"),
        (json!({"cpu": "7999.5m"}), "no: Cpu"),
        (json!({"memory": "1025Mi"}), "large"),
        (json!({"memory": "17Gi"}), "no: Memory"),
        (json!({"ephemeral-storage": "2Gi"}), "large"),
        (json!({"ephemeral-storage": "1T"}), "no: Storage"),
        (json!({"hugepages-2Mi": "4Mi"}), "large"),
        (json!({"hugepages-2Mi": "6Mi"}), "no: Resource"),
        (json!({"hugepages-1Gi": "1Gi"}), "no: Resource"),
        (json!({"hugepages-1Gi": "0"}), "small large"),
        (json!({"example.com/fpga": "2"}), "large"),
        (json!({"example.com/fpga": "3"}), "no: Resource"),
        (json!({"nvidia.com/mig-1g.5gb": "7"}), "large"),
        (json!({"nvidia.com/mig-2g.10gb": 1}), "no: Resource"),
        (json!({"nvidia.com/gpu": "1"}), "no: NoGpu"),
        (json!({"nvidia.com/gpu": "4097"}), "unsupported nvidia.com/gpu"),
        (json!({"cpu": "-1"}), "unsupported spec.containers"),
        (json!({"cpu": "many"}), "unsupported spec.containers"),
        (json!({"memory": "9e99"}), "unsupported spec"),
        (json!({"example.com/fpga": "99E"}), "unsupported spec"),
    ];
    for (requests, expected) in table {
        check(&cluster, asking(requests), expected);
    }
}

#[test]
fn foreign_pods_take_their_share() {
    let spec = |requests: Value| json!({"containers": [container(&requests)]});
    let table = [
        (json!({"cpu": "3"}), json!({"cpu": "1"}), "n1"),
        (json!({"cpu": "3001m"}), json!({"cpu": "1"}), "no: Cpu"),
        (json!({"memory": "7Gi"}), json!({"memory": "1025Mi"}), "no: Memory"),
        (json!({"example.com/x": "2"}), json!({"example.com/x": "2"}), "no: Resource"),
        (json!({"example.com/x": "1"}), json!({"example.com/x": "2"}), "n1"),
        // Invalid quantities of foreign pods are ignored.
        (json!({"cpu": "many", "memory": "8Gi"}), json!({"memory": "1Mi"}), "no: Memory"),
    ];
    for (theirs, ours, expected) in table {
        let cluster = Cluster::default()
            .with_node(json!({"metadata": {"name": "n1"}, "status": {"allocatable": {"example.com/x": 3}}}))
            .with_pod("n1", json!({}), spec(theirs));
        check(&cluster, asking(ours), expected);
    }
}

#[test]
fn a_node_takes_as_many_pods_as_it_says() {
    let full = Cluster::default()
        .with_node(json!({"metadata": {"name": "n1"}, "status": {"allocatable": {"pods": "1"}}}));
    check(&full, pod(json!({})), "n1");
    check(&full.with_pod("n1", json!({}), json!({})), pod(json!({})), "no: Resource");
}

#[test]
fn a_pod_that_is_being_resized_counts_with_the_most_that_it_may_have() {
    let resized = |spec: &str, has: &str, promised: &str, reason: &str| {
        let cluster = Cluster::default();
        let pod = read(json!({
            "spec": {"containers": [container(&json!({"cpu": spec}))]},
            "status": {
                "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
                "containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": has}},
                                       "allocatedResources": {"cpu": promised}}],
            },
        }));
        foreign(
            &pod,
            &TranslationContext { volumes: &cluster.volumes, namespaces: &cluster.namespaces },
        )
        .cpu
        .0
    };
    let whole = |spec: &str, has: &str, promised: &str, reason: &str| {
        let cluster = Cluster::default();
        let pod = read(json!({
            "spec": {"containers": [container(&json!({"cpu": "500m"}))], "resources": {"requests": {"cpu": spec}}},
            "status": {
                "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
                "resources": {"requests": {"cpu": has, "memory": "1Gi"}},
                "allocatedResources": {"cpu": promised},
            },
        }));
        foreign(
            &pod,
            &TranslationContext { volumes: &cluster.volumes, namespaces: &cluster.namespaces },
        )
    };
    assert_eq!(whole("1", "2", "1", "").cpu.0, 2000);
    assert_eq!(whole("3", "2", "1", "Deferred").cpu.0, 3000);
    assert_eq!(whole("3", "1", "2", "Infeasible").cpu.0, 2000);
    assert_eq!(whole("3", "1", "2", "").memory.0, 0, "only what it asks for as a whole");
    assert_eq!(resized("1", "2", "1", ""), 2000);
    assert_eq!(resized("3", "2", "1", "Deferred"), 3000);
    assert_eq!(resized("3", "1", "2", "Infeasible"), 2000);
}

#[test]
fn whole_gpus_are_asked_for_and_mig_slices_counted() {
    let value = asking(json!({"nvidia.com/gpu": "2", "nvidia.com/mig-1g.5gb": "3", "cpu": "1"}));
    let asked = nodes([]).translate(value.clone()).unwrap().request;
    assert_eq!(asked.gpu, GpuRequest::Whole(2));
    assert_eq!(asked.resources["nvidia.com/mig-1g.5gb"], 3);
    assert_eq!(asked.resources["pods"], 1);
    let pod = read(value);
    assert_eq!(gpu_need(&pod), 2);
    let all: Vec<_> = gpu_resources(&pod).into_iter().collect();
    assert_eq!(all, [("nvidia.com/gpu".to_owned(), 2), ("nvidia.com/mig-1g.5gb".to_owned(), 3)]);
    assert_eq!(gpu_need(&read(asking(json!({"nvidia.com/gpu": "0"})))), 0);
}
