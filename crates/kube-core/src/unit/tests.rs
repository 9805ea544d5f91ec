use serde_json::{Value, json};

use super::*;
use crate::names;
use crate::slim::JobObject;

const OPT_IN: OptIn<'static> =
    OptIn { scheduler: "agentaflow", admission: true, namespace: false, kueue: false };

fn kind(name: &str) -> &'static UnitKind {
    KINDS.iter().find(|kind| kind.kind == name).expect("a kind")
}

fn object(value: Value) -> JobObject {
    serde_json::from_value(value).expect("a job")
}

fn template(gpus: u32) -> Value {
    json!({"spec": {"schedulerName": "agentaflow", "containers": [{"name": "main",
        "resources": {"limits": {names::GPU_RESOURCE: gpus.to_string()}}}]}})
}

/// Pods and GPUs of each pod set.
#[expect(clippy::needless_pass_by_value, reason = "the tests write literals")]
fn sets(name: &str, spec: Value) -> Vec<(u32, u32)> {
    let spec = read(kind(name), &object(json!({ "spec": spec })));
    let gpus = |set: &PodSet| crate::translate::gpu_need(&set.template);
    spec.sets.iter().map(|set| (set.count, gpus(set))).collect()
}

#[test]
fn each_kind_counts_the_pods_that_exist_at_once() {
    let one = template(2);
    let job = |parallelism: u32, completions: u32| json!({"parallelism": parallelism, "completions": completions, "template": one});
    assert_eq!(sets("Job", json!({"template": one})), [(1, 2)]);
    assert_eq!(sets("Job", json!({"parallelism": 4, "template": one})), [(4, 2)]);
    assert_eq!(sets("Job", job(4, 2)), [(2, 2)]);
    assert_eq!(sets("Job", job(0, 2)), []);
    let jobs = json!([
        {"name": "driver", "template": {"spec": {"template": template(0)}}},
        {"name": "worker", "replicas": 2, "template": {"spec": job(3, 3)}},
    ]);
    assert_eq!(sets("JobSet", json!({ "replicatedJobs": jobs })), [(1, 0), (6, 2)]);
    let replicas = json!({"Master": {"template": one}, "Worker": {"replicas": 3, "template": one}});
    assert_eq!(sets("PyTorchJob", json!({"pytorchReplicaSpecs": replicas})), [(1, 2), (3, 2)]);
    assert_eq!(sets("MPIJob", json!({"mpiReplicaSpecs": replicas})), [(1, 2), (3, 2)]);
    let cluster = json!({
        "headGroupSpec": {"template": template(0)},
        "workerGroupSpecs": [{"replicas": 2, "numOfHosts": 4, "template": one}],
    });
    assert_eq!(sets("RayCluster", cluster.clone()), [(1, 0), (8, 2)]);
    assert_eq!(sets("RayJob", json!({ "rayClusterSpec": cluster })), [(1, 0), (8, 2)]);
    assert_eq!(sets("TrainJob", json!({"runtimeRef": {"name": "torch"}})), []);
    let groups = object(json!({"spec": {"replicas": 3, "leaderWorkerTemplate": {"size": 4}}}));
    assert_eq!(read(kind("LeaderWorkerSet"), &groups).group_size, Some(4));
}

#[test]
fn a_pod_set_has_the_pointer_of_its_template() {
    let jobs = json!([{}, {"template": {"spec": {"template": template(1)}}}]);
    let set = object(json!({"spec": {"replicatedJobs": jobs}}));
    let pointer = &read(kind("JobSet"), &set).sets[0].pointer;
    assert_eq!(pointer, "/spec/replicatedJobs/1/template/spec/template");
    let job =
        object(json!({"spec": {"pytorchReplicaSpecs": {"Worker": {"template": template(1)}}}}));
    let pointer = &read(kind("PyTorchJob"), &job).sets[0].pointer;
    assert_eq!(pointer, "/spec/pytorchReplicaSpecs/Worker/template");
}

#[test]
fn suspension_and_end_are_read_by_the_paths_of_the_kind() {
    let check = |name: &str, value: Value, suspended: bool, ended: bool| {
        let spec = read(kind(name), &object(value.clone()));
        assert_eq!((spec.suspended, spec.ended), (suspended, ended), "{name} {value}");
    };
    let ends = |condition: &str, status: &str| {
        json!({"spec": {"suspend": true}, "status": {"conditions": [
            {"type": condition, "status": status}]}})
    };
    check("Job", ends("Complete", "True"), true, true);
    check("Job", ends("Complete", "False"), true, false);
    check("Job", ends("Suspended", "True"), true, false);
    check("JobSet", ends("Completed", "True"), true, true);
    check("JobSet", json!({}), false, false);
    check("PyTorchJob", json!({"spec": {"runPolicy": {"suspend": true}}}), true, false);
    check("PyTorchJob", json!({"spec": {"suspend": true}}), false, false);
    let ray = json!({"spec": {}, "status": {"jobDeploymentStatus": "Complete"}});
    check("RayJob", ray, false, true);
}

#[test]
fn a_spec_whose_pods_do_not_exist_at_once_is_not_a_unit() {
    let check = |name: &str, spec: Value, field: Option<&str>| {
        let read = read(kind(name), &object(json!({ "spec": spec })));
        let named = read.exception.as_deref().and_then(|text| text.split(':').next());
        assert_eq!(named, field, "{name}");
    };
    check("JobSet", json!({"startupPolicy": {"startupPolicyOrder": "AnyOrder"}}), None);
    let order = json!({"startupPolicy": {"startupPolicyOrder": "InOrder"}});
    check("JobSet", order, Some("spec.startupPolicy.startupPolicyOrder"));
    let depends = json!({"replicatedJobs": [{"dependsOn": [{"name": "a", "status": "Ready"}]}]});
    check("JobSet", depends, Some("spec.replicatedJobs.dependsOn"));
    check("PyTorchJob", json!({"elasticPolicy": {"minReplicas": 1}}), Some("spec.elasticPolicy"));
    let autoscaled = json!({"enableInTreeAutoscaling": true});
    check("RayCluster", autoscaled, Some("spec.enableInTreeAutoscaling"));
    check("RayCluster", json!({"enableInTreeAutoscaling": false}), None);
    check("LeaderWorkerSet", json!({"startupPolicy": "LeaderCreated"}), None);
    check("LeaderWorkerSet", json!({"startupPolicy": "LeaderReady"}), Some("spec.startupPolicy"));
    let broken = json!({"template": {"spec": {"containers": 5}}});
    check("Job", broken, Some("spec/template"));
}

#[test]
fn a_job_is_opted_in_by_scheduler_name_annotation_or_namespace() {
    let own = |opt_in: OptIn<'_>, meta: Value, template: Value| {
        let object = object(json!({"metadata": meta, "spec": {"template": template}}));
        !opt_in.own_sets(&object, &read(kind("Job"), &object)).is_empty()
    };
    let unnamed = |gpus: u32| {
        let mut template = template(gpus);
        template["spec"]["schedulerName"] = json!("default-scheduler");
        template
    };
    let annotated = json!({"annotations": {names::QUEUE: "research"}});
    let labelled = OptIn { namespace: true, ..OPT_IN };
    assert!(own(OPT_IN, json!({}), template(0)));
    assert!(!own(OPT_IN, json!({}), unnamed(1)));
    assert!(own(OPT_IN, annotated.clone(), unnamed(0)));
    assert!(own(labelled, json!({}), unnamed(1)));
    assert!(!own(labelled, json!({}), unnamed(0)), "only GPU pods of the namespace");
    // Without the webhook the pods would go to the default scheduler.
    let alone = OptIn { admission: false, ..labelled };
    assert!(!own(alone, annotated.clone(), unnamed(1)));
    assert!(own(alone, json!({}), template(1)));
    let mut other = template(1);
    other["spec"]["schedulerName"] = json!("volcano");
    assert!(!own(labelled, annotated, other));
}

#[test]
fn jobs_that_another_program_resumes_are_not_units() {
    let own = |opt_in: OptIn<'_>, meta: Value, spec: Value| {
        let mut spec = spec;
        spec["template"] = template(1);
        let object = object(json!({"metadata": meta, "spec": spec}));
        !opt_in.own_sets(&object, &read(kind("Job"), &object)).is_empty()
    };
    let queue = json!({"labels": {names::KUEUE_QUEUE: "q"}});
    assert!(own(OPT_IN, queue.clone(), json!({})));
    assert!(!own(OptIn { kueue: true, ..OPT_IN }, queue, json!({})));
    assert!(!own(OPT_IN, json!({"annotations": {names::UNIT: "false"}}), json!({})));
    assert!(!own(OPT_IN, json!({"labels": {names::WORKER_AGENT: "node"}}), json!({})));
    assert!(!own(OPT_IN, json!({}), json!({"managedBy": "kueue.x-k8s.io/multikueue"})));
    assert!(own(OPT_IN, json!({}), json!({"managedBy": "kubernetes.io/job-controller"})));
}

#[test]
fn a_template_with_a_pod_group_keeps_it() {
    let mut grouped = template(1);
    grouped["metadata"] = json!({"labels": {names::POD_GROUP: "mine"}});
    let object = object(json!({"spec": {"template": grouped}}));
    assert!(OPT_IN.own_sets(&object, &read(kind("Job"), &object)).is_empty());
}

#[test]
fn owners_are_units_regardless_of_their_version() {
    let word = |version: &str, kind: &str| of_owner(version, kind).map(UnitKind::word);
    assert_eq!(word("batch/v1", "Job").as_deref(), Some("job"));
    assert_eq!(word("jobset.x-k8s.io/v1", "JobSet").as_deref(), Some("jobset"));
    assert_eq!(word("apps/v1", "ReplicaSet"), None);
    assert_eq!(word("v1", "Job"), None);
}
