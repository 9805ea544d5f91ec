//! GPUs of a workload: the plan, then the kubelet's choice.

use agentaflow_kube_core::names;
use serde_json::json;

use super::Cluster;

fn annotate(cluster: &mut Cluster, name: &str, key: &str, value: &str) {
    let all = cluster.pod(name).metadata.annotations.get_or_insert_default();
    all.insert(key.to_owned(), value.to_owned());
}

fn allocate(cluster: &mut Cluster, name: &str, resource: &str, ids: &[&str]) {
    let resources: Vec<_> = ids.iter().map(|id| json!({ "resourceID": id })).collect();
    let status = json!({ "phase": "Running", "containerStatuses": [{
        "name": "main", "allocatedResourcesStatus": [
            { "name": "example.com/nic", "resources": [{ "resourceID": "nic0" }] },
            { "name": resource, "resources": resources },
        ],
    }] });
    cluster.pod(name).status = serde_json::from_value(status).expect("a status");
}

fn assigned(cluster: &mut Cluster) -> (String, String, String) {
    cluster.settle();
    let status = &cluster.workload.status;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (cluster.status_of("Assigned"), text(&status.assigned_node), text(&status.assigned_gpu))
}

fn place(text: &str) -> String {
    text.to_owned()
}

#[test]
fn the_plan_comes_first_and_the_kubelets_choice_replaces_it() {
    let mut cluster = Cluster::new(json!({ "gpuRequirements": { "gpuCount": 2 } }));
    assert_eq!(assigned(&mut cluster), ("False/Pending".to_owned(), place(""), place("")));
    cluster.plan(0, "node-a", &["GPU-0", "GPU-1"]);
    let plan = ("True/Planned".to_owned(), place("node-a"), place("node-a/GPU-0,node-a/GPU-1"));
    assert_eq!(assigned(&mut cluster), plan);
    assert_eq!(cluster.status_of("Schedulable"), "True/Scheduled");
    cluster.view.planned.clear();
    cluster.bind("train-0", "node-a");
    annotate(&mut cluster, "train-0", names::POD_ASSIGNED_GPU, "node-a/GPU-0,node-a/GPU-1");
    annotate(&mut cluster, "train-0", names::POD_PRICE, "4.50");
    assert_eq!(assigned(&mut cluster), plan);
    assert_eq!(cluster.workload.status.price_per_hour.as_deref(), Some("4.50"));
    allocate(&mut cluster, "train-0", "nvidia.com/gpu", &["GPU-2", "GPU-3"]);
    let real = ("True/Confirmed".to_owned(), place("node-a"), place("node-a/GPU-2,node-a/GPU-3"));
    assert_eq!(assigned(&mut cluster), real);
    cluster.succeed("train-0");
    cluster.pod("train-0").status.container_statuses = None;
    assert_eq!(assigned(&mut cluster), real, "what it had stays on record");
}

#[test]
fn time_slices_name_their_device_once_and_the_monitors_word_counts() {
    let mut cluster = Cluster::new(json!({ "gpuRequirements": { "gpuCount": 2 } }));
    cluster.settle();
    cluster.bind("train-0", "node-a");
    allocate(&mut cluster, "train-0", "nvidia.com/gpu", &["GPU-2::1", "GPU-2::0"]);
    assert_eq!(assigned(&mut cluster).2, place("node-a/GPU-2"));

    let mut cluster = Cluster::new(json!({}));
    cluster.settle();
    cluster.bind("train-0", "node-a");
    annotate(&mut cluster, "train-0", names::POD_ASSIGNED_GPU, "0");
    assert_eq!(assigned(&mut cluster).2, place("node-a/0"));
    annotate(&mut cluster, "train-0", names::POD_DEVICES, "GPU-7::3, ");
    assert_eq!(
        assigned(&mut cluster),
        ("True/Confirmed".to_owned(), place("node-a"), place("node-a/GPU-7"))
    );
}

#[test]
fn a_gang_is_confirmed_when_every_member_is() {
    let mut cluster = Cluster::new(json!({ "gangSize": 2 }));
    cluster.settle();
    cluster.bind("train-0", "node-a");
    cluster.bind("train-1", "node-a");
    allocate(&mut cluster, "train-0", "nvidia.com/mig-1g.5gb", &["MIG-1"]);
    assert_eq!(
        assigned(&mut cluster),
        ("True/Planned".to_owned(), place("node-a"), place("node-a/MIG-1"))
    );
    allocate(&mut cluster, "train-1", "nvidia.com/mig-1g.5gb", &["MIG-2"]);
    assert_eq!(
        assigned(&mut cluster),
        ("True/Confirmed".to_owned(), place("node-a"), place("node-a/MIG-1,node-a/MIG-2"))
    );
}

#[test]
fn work_without_gpus_is_confirmed_by_its_node() {
    let mut cluster = Cluster::new(json!({ "gpuRequirements": { "gpuCount": 0 } }));
    cluster.settle();
    cluster.bind("train-0", "node-a");
    assert_eq!(assigned(&mut cluster), ("True/Confirmed".to_owned(), place("node-a"), place("")));
}
