//! Tests of pods from templates.

use agentaflow_engine::{GpuRequest, MiB, Request, Span, Strategy, Topology};
use serde_json::{Value, json};

use super::{Identity, apply_gpu_requirements, check, fill, pod, priority_class};
use crate::crd::GpuWorkloadSpec;
use crate::names;

/// A spec with these fields beside the required ones.
fn spec(more: Value) -> GpuWorkloadSpec {
    let mut spec = json!({
        "gpuMemoryRequired": 8192,
        "podTemplate": { "spec": { "containers": [{ "name": "main", "image": "busybox" }] } },
    });
    if let Value::Object(more) = more {
        more.into_iter().for_each(|(key, value)| spec[key] = value);
    }
    serde_json::from_value(spec).expect("a spec")
}

const OWNER: Identity<'_> = Identity { name: "train", namespace: "ml", uid: Some("w-1") };

fn make(more: Value) -> Result<Value, String> {
    pod(OWNER, &spec(more), 0, 0, "agentaflow").map_err(|bad| bad.to_string())
}

/// GPU limits of the containers of a pod, or the error.
fn limits(containers: &Value, gpu: &Value, annotations: &Value) -> String {
    let template = json!({ "metadata": { "annotations": annotations }, "spec": containers });
    match make(json!({ "podTemplate": template, "gpuRequirements": gpu })) {
        Err(bad) => bad,
        Ok(pod) => {
            let list = pod["spec"]["containers"].as_array().expect("containers");
            let each = list.iter().map(|one| one["resources"]["limits"].to_string());
            each.collect::<Vec<_>>().join(" ")
        }
    }
}

#[test]
fn the_gpu_limit_goes_to_the_one_container_that_should_have_it() {
    let with = |limits: Value| json!({ "name": "a", "resources": { "limits": limits } });
    let (a, b) = (json!({ "name": "a" }), json!({ "name": "b" }));
    let main_b = json!({ "kubectl.kubernetes.io/default-container": "b" });
    let table = [
        (json!({ "containers": [a] }), json!({}), json!({}), r#"{"nvidia.com/gpu":"1"}"#),
        (
            json!({ "containers": [a, b] }),
            json!({ "gpuCount": 2 }),
            json!(null),
            "spec.podTemplate.spec.containers: none of `a`, `b` has a GPU limit; write `resources: {limits: \
             {nvidia.com/gpu: 2}}` for the one that uses the GPUs",
        ),
        (
            json!({ "containers": [a, b] }),
            json!({}),
            main_b.clone(),
            r#"null {"nvidia.com/gpu":"1"}"#,
        ),
        (json!({ "containers": [a] }), json!({}), main_b, r#"{"nvidia.com/gpu":"1"}"#),
        (
            json!({ "containers": [with(json!({ "cpu": 2 }))] }),
            json!({}),
            json!({}),
            r#"{"cpu":2,"nvidia.com/gpu":"1"}"#,
        ),
        (
            json!({ "containers": [a] }),
            json!({ "migProfile": "1g.5gb" }),
            json!({}),
            r#"{"nvidia.com/mig-1g.5gb":"1"}"#,
        ),
        (json!({ "containers": [a] }), json!({ "gpuCount": 0 }), json!({}), "null"),
        (
            json!({ "containers": [with(json!({ "nvidia.com/gpu": 1 })), b] }),
            json!({}),
            json!({}),
            r#"{"nvidia.com/gpu":1} null"#,
        ),
        (
            json!({ "containers": [with(json!({ "nvidia.com/gpu": "1000m" }))] }),
            json!({}),
            json!({}),
            r#"{"nvidia.com/gpu":"1000m"}"#,
        ),
        (
            json!({ "containers": [with(json!({ "nvidia.com/rdma_a": 1 }))] }),
            json!({}),
            json!({}),
            r#"{"nvidia.com/gpu":"1","nvidia.com/rdma_a":1}"#,
        ),
        (
            json!({ "containers": [b], "initContainers": [with(json!({ "nvidia.com/gpu": 1 }))] }),
            json!({}),
            json!({}),
            "null",
        ),
        (
            json!({ "containers": [with(json!({ "nvidia.com/gpu": 2 }))], "initContainers": [with(json!({ "nvidia.com/gpu": 1 }))] }),
            json!({ "gpuCount": 2 }),
            json!({}),
            r#"{"nvidia.com/gpu":2}"#,
        ),
    ];
    for (body, gpu, annotations, expected) in table {
        assert_eq!(limits(&body, &gpu, &annotations), expected, "{body} {gpu}");
    }
}

#[test]
fn a_template_that_asks_for_something_else_than_the_workload_is_refused_by_both_names() {
    let with = |limits: Value| json!({ "name": "a", "resources": { "limits": limits } });
    let table = [
        (
            json!([with(json!({ "nvidia.com/gpu": 2 }))]),
            json!({}),
            ["nvidia.com/gpu: 2", "gpuCount is 1"],
        ),
        (
            json!([with(json!({ "nvidia.com/gpu": 1 })), with(json!({ "nvidia.com/gpu": 1 }))]),
            json!({}),
            ["nvidia.com/gpu: 2", "gpuCount is 1"],
        ),
        (
            json!([with(json!({ "nvidia.com/gpu": 1 }))]),
            json!({ "migProfile": "1g.5gb" }),
            ["nvidia.com/gpu: 1", "migProfile is 1g.5gb"],
        ),
        (
            json!([with(json!({ "nvidia.com/mig-2g.10gb": 1 }))]),
            json!({ "migProfile": "1g.5gb" }),
            ["nvidia.com/mig-2g.10gb: 1", "migProfile is 1g.5gb"],
        ),
    ];
    for (containers, gpu, parts) in table {
        let output = limits(&json!({ "containers": containers }), &gpu, &json!({}));
        for part in parts {
            assert!(output.contains(part), "`{output}` lacks `{part}`");
        }
    }
}

#[test]
fn a_template_of_the_wrong_shape_is_refused_with_the_place() {
    let main = json!([{ "name": "a" }]);
    let table = [
        (json!([]), "spec.podTemplate must"),
        (json!({}), "spec.podTemplate.spec.containers"),
        (json!({ "spec": 1 }), "spec.podTemplate.spec must"),
        (json!({ "spec": { "containers": [] } }), "at least one container"),
        (json!({ "spec": { "containers": [1] } }), "a list of objects"),
        (
            json!({ "metadata": 1, "spec": { "containers": main } }),
            "spec.podTemplate.metadata must",
        ),
        (
            json!({ "metadata": { "labels": [] }, "spec": { "containers": main } }),
            "metadata.labels",
        ),
        (
            json!({ "metadata": { "annotations": "x" }, "spec": { "containers": main } }),
            "metadata.annotations",
        ),
        (json!({ "spec": { "containers": [{ "resources": [] }] } }), "containers[0].resources"),
        (json!({ "spec": { "containers": main, "affinity": [] } }), "spec.affinity must"),
    ];
    for (template, part) in table {
        let output = make(json!({ "podTemplate": template })).expect_err("a refusal");
        assert!(output.contains(part), "`{output}` lacks `{part}`");
    }
}

#[test]
fn a_pod_keeps_the_template_and_gets_only_absent_fields() {
    let template = json!({
        "metadata": {
            "name": "theirs", "uid": "theirs", "labels": { "app": "x" }, "annotations": { "note": "y" },
            "ownerReferences": [{ "uid": "theirs" }],
        },
        "spec": {
            "restartPolicy": "OnFailure", "schedulerName": "other", "priorityClassName": "mine",
            "fieldOfTomorrow": { "deep": [1] }, "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "a", "resources": { "limits": { "nvidia.com/gpu": 1 } }, "newer": true }],
        },
    });
    let pod = make(json!({ "podTemplate": template, "gpuMemoryRequired": 0 })).expect("a pod");
    assert_eq!(pod["spec"], template["spec"]);
    assert_eq!(
        pod["metadata"],
        json!({
            "name": "train-0", "namespace": "ml", "annotations": { "note": "y" },
            "labels": {
                "app": "x", "agentaflow.gpu/workload": "train", "agentaflow.gpu/managed": "true",
                "agentaflow.gpu/task": "0", "agentaflow.gpu/attempt": "0",
                "app.kubernetes.io/managed-by": "agentaflow",
            },
            "ownerReferences": [{
                "apiVersion": "agentaflow.io/v1", "kind": "GPUWorkload", "name": "train", "uid": "w-1",
                "controller": true, "blockOwnerDeletion": true,
            }],
        })
    );
    let bare = make(json!({ "priority": 7 })).expect("a pod");
    assert_eq!(bare["apiVersion"], "v1");
    assert_eq!(bare["kind"], "Pod");
    assert_eq!(bare["spec"]["restartPolicy"], "Never");
    assert_eq!(bare["spec"]["schedulerName"], "agentaflow");
    assert_eq!(bare["spec"]["priorityClassName"], "agentaflow-7");
    let usual = make(json!({ "priority": 5 })).expect("a pod");
    assert_eq!(usual["spec"]["priorityClassName"], Value::Null, "the default of the cluster");
    let own = json!({ "spec": { "priority": 3, "containers": [{ "name": "a" }] } });
    let own = make(json!({ "podTemplate": own })).expect("a pod");
    assert_eq!(own["spec"]["priorityClassName"], Value::Null, "an explicit priority stays alone");
    let helm = json!({ names::MANAGED_BY: "Helm" });
    let helm =
        json!({ "metadata": { "labels": helm }, "spec": { "containers": [{ "name": "a" }] } });
    let helm = make(json!({ "podTemplate": helm })).expect("a pod");
    assert_eq!(helm["metadata"]["labels"][names::MANAGED_BY], "Helm");
}

#[test]
fn the_priority_class_of_a_workload_is_that_of_its_pods() {
    let template = |body: Value| json!({ "priority": 3, "podTemplate": { "spec": body }});
    for more in [
        json!({ "priority": 7 }),
        json!({ "priority": 5 }),
        template(json!({ "containers": [{ "name": "a" }] })),
        template(json!({ "containers": [{ "name": "a" }], "priority": 9 })),
        template(json!({ "containers": [{ "name": "a" }], "priorityClassName": "own" })),
    ] {
        let pod = make(more.clone()).expect("a pod");
        let class = pod["spec"]["priorityClassName"].as_str();
        assert_eq!(priority_class(&spec(more.clone())).as_deref(), class, "{more}");
    }
}

#[test]
fn a_pod_for_a_dry_run_before_the_workload_exists_has_no_owner() {
    for uid in [None, Some("")] {
        let made = pod(Identity { uid, ..OWNER }, &spec(json!({})), 0, 0, "agentaflow");
        assert_eq!(made.expect("a pod")["metadata"]["ownerReferences"], Value::Null);
    }
}

/// The required node terms, each as its expressions.
fn terms(more: Value) -> Vec<String> {
    let pod = make(more).expect("a pod");
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"];
    let word = |one: &Value| {
        let values =
            if one["values"].is_null() { String::new() } else { one["values"].to_string() };
        format!(
            "{} {}{values}",
            one["key"].as_str().unwrap_or(""),
            one["operator"].as_str().unwrap_or("")
        )
    };
    let term = |term: &Value| {
        let all = term["matchExpressions"].as_array().expect("expressions");
        all.iter().map(word).collect::<Vec<_>>().join(" & ")
    };
    required.as_array().map(|all| all.iter().map(term).collect()).unwrap_or_default()
}

const ENOUGH: [&str; 3] = [
    r#"nvidia.com/gpu.memory Gt["8191"]"#,
    r#"nvidia.com/gpu.memory DoesNotExist & karpenter.k8s.aws/instance-gpu-memory Gt["8191"]"#,
    "nvidia.com/gpu.memory DoesNotExist & karpenter.k8s.aws/instance-gpu-memory DoesNotExist",
];

#[test]
fn memory_becomes_node_affinity_that_also_holds_where_nodes_carry_no_label() {
    assert_eq!(terms(json!({})), ENOUGH);
    assert_eq!(
        terms(json!({ "gpuMemoryRequired": 1, "gpuRequirements": { "minGPUMemory": 8192 } })),
        ENOUGH
    );
    let none = Vec::<String>::new();
    assert_eq!(terms(json!({ "gpuMemoryRequired": 0 })), none);
    assert_eq!(terms(json!({ "gpuRequirements": { "migProfile": "1g.5gb" } })), none);
    assert_eq!(terms(json!({ "gpuRequirements": { "gpuCount": 0 } })), none);
    assert!(terms(json!({ "gpuMemoryRequired": u64::MAX }))[0].contains("9223372036854775807"));
}

#[test]
fn a_required_model_shuts_out_nodes_that_say_they_have_another() {
    let of = |model: &str| {
        let wanted = json!({ "requiredGPUType": model });
        terms(json!({ "gpuMemoryRequired": 0, "gpuRequirements": wanted }))
    };
    let made = of("NVIDIA A100").pop().expect("a term");
    for label in ["nvidia.com/gpu.product", "karpenter.k8s.aws/instance-gpu-name"] {
        assert!(made.contains(&format!("{label} NotIn[")), "{made}");
    }
    for other in ["Tesla-T4", "NVIDIA-A10G", "NVIDIA-H100-PCIe", "nvidia-tesla-k80", "h200"] {
        assert!(made.contains(&format!("\"{other}\"")), "{other}: {made}");
    }
    assert!(!made.to_lowercase().contains("a100"), "no name of it: {made}");
    let none = Vec::<String>::new();
    assert_eq!(of("a new one"), none, "what has no known word is left to the scheduler");
    let both = terms(json!({ "gpuRequirements": { "requiredGPUType": "H100" } }));
    assert_eq!(both.len(), 3);
    assert!(both.iter().all(|term| term.contains("gpu.product NotIn[")), "{both:?}");
}

#[test]
fn memory_narrows_each_of_the_templates_own_terms() {
    let zone = |zone: &str| json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": [zone] }] });
    let template = |terms: Value| {
        let required = json!({ "nodeSelectorTerms": terms });
        let nodes = json!({ "requiredDuringSchedulingIgnoredDuringExecution": required });
        json!({ "podTemplate": { "spec": {
            "containers": [{ "name": "a" }],
            "affinity": { "podAffinity": { "kept": true }, "nodeAffinity": nodes },
        } } })
    };
    let made = terms(template(json!([zone("a"), {}, zone("b")])));
    let expected: Vec<String> = ["a", "b"]
        .iter()
        .flat_map(|zone| ENOUGH.iter().map(move |term| format!(r#"zone In["{zone}"] & {term}"#)))
        .collect();
    assert_eq!(made, expected, "a term that matches no node stays that way");
    let pod = make(template(json!([zone("a")]))).expect("a pod");
    assert_eq!(pod["spec"]["affinity"]["podAffinity"]["kept"], true);
    let field = json!([{ "matchFields": [{ "key": "metadata.name" }] }]);
    assert_eq!(terms(template(field)), ENOUGH);
    assert_eq!(terms(template(json!([{}]))), Vec::<String>::new(), "no node at all stays no node");
}

#[test]
fn the_engine_hears_of_memory_model_and_exclusive_access() {
    let gpu = json!({ "minGPUMemory": 9000, "preferredGPUType": " NVIDIA A100 ", "gpuCount": 2 });
    let mut request = Request { gpu: GpuRequest::Whole(2), ..Request::default() };
    apply_gpu_requirements(&spec(json!({ "gpuRequirements": gpu })), &mut request);
    assert_eq!(request.min_gpu_memory, MiB(9000));
    assert_eq!(request.preferred_model, Some("NVIDIA A100".into()));
    assert!(request.models.is_empty(), "others are taken too");
    assert_eq!(request.resources.get("agentaflow.gpu/exclusive"), Some(&2));
    assert_eq!(request.validate(), Ok(()));

    let mut picky = Request { gpu: GpuRequest::Whole(1), ..Request::default() };
    apply_gpu_requirements(
        &spec(json!({ "gpuRequirements": { "requiredGPUType": "H100 " } })),
        &mut picky,
    );
    assert_eq!(picky.models, ["H100".into()]);

    let mut shared = Request { gpu: GpuRequest::Whole(1), ..Request::default() };
    apply_gpu_requirements(
        &spec(json!({ "gpuRequirements": { "exclusiveAccess": false } })),
        &mut shared,
    );
    assert!(shared.resources.is_empty());

    let mut slices = Request::default();
    apply_gpu_requirements(
        &spec(json!({ "gpuRequirements": { "migProfile": "1g.5gb" } })),
        &mut slices,
    );
    assert_eq!(slices, Request::default(), "memory and exclusive access speak of whole GPUs");
}

#[test]
fn the_engine_hears_of_strategy_estimate_topology_and_size() {
    let full = spec(json!({
        "schedulingStrategy": "best_fit", "estimatedDuration": "1h30m", "gangSize": 4,
        "preemptible": false, "topology": { "mode": "Spread" },
    }));
    let mut workload = agentaflow_engine::Workload::new("ml/train", Request::default());
    fill(&full, &mut workload);
    assert_eq!(workload.strategy, Some(Strategy::BestFit));
    assert_eq!(workload.estimate, Some(Span::minutes(90)));
    assert_eq!(workload.topology, Some(Topology::Spread("node".to_owned())));
    assert_eq!((workload.tasks, workload.preemptible), (4, false));
    let rack = spec(json!({ "topology": { "mode": "Same", "key": "rack" } }));
    assert_eq!(super::topology(&rack), Some(Topology::Same("rack".to_owned())));
}

#[test]
fn an_invalid_spec_is_rejected_with_a_remedy() {
    let table = [
        (json!({ "schedulingStrategy": "fastest" }), "least_utilized"),
        (json!({ "estimatedDuration": "soon" }), "1h30m"),
        (json!({ "gangSize": 0 }), "from 1 to"),
        (json!({ "gangSize": 4_000_000_000_u32 }), "from 1 to"),
    ];
    for (more, part) in table {
        let output = check(&spec(more.clone())).expect_err("a refusal").to_string();
        assert!(output.contains(part), "`{output}` lacks `{part}`");
    }
    assert_eq!(check(&spec(json!({ "schedulingStrategy": "", "estimatedDuration": "" }))), Ok(()));
}

#[test]
fn a_template_that_goes_past_the_scheduler_or_can_never_be_deleted_is_refused() {
    let template = |metadata: Value, node: Value| {
        let body = json!({ "nodeName": node, "containers": [{ "name": "main" }] });
        json!({ "podTemplate": { "metadata": metadata, "spec": body } })
    };
    for (metadata, node, word) in [
        (json!({}), json!("node-1"), Some("spec.podTemplate.spec.nodeName")),
        (json!({ "finalizers": ["a.b/c"] }), json!(null), Some("metadata.finalizers")),
        (json!({ "finalizers": [] }), json!(""), None),
    ] {
        let made = make(template(metadata.clone(), node.clone()));
        match word {
            None => assert!(made.is_ok(), "{made:?}"),
            Some(word) => {
                let output = made.expect_err(word);
                assert!(
                    output.contains(word) && output.contains("remove"),
                    "{metadata} {node}: {output}"
                );
            }
        }
    }
}

#[test]
fn a_template_cannot_set_fields_of_the_cluster() {
    let annotations = json!({
        "agentaflow.gpu/allocated-devices": "GPU-a",
        "agentaflow.gpu/assigned-gpu": "n/GPU-a",
        "agentaflow.gpu/assigned-node": "n",
        "agentaflow.gpu/retries": "7",
        "team": "vision",
    });
    let template = json!({
        "metadata": { "annotations": annotations },
        "spec": { "containers": [{ "name": "main" }] },
    });
    let pod = make(json!({ "podTemplate": template })).expect("a pod");
    assert_eq!(pod["metadata"]["annotations"], json!({ "team": "vision" }));
}

#[test]
fn a_template_larger_than_128_kib_is_refused_with_its_size_and_never_printed() {
    let spec = |length: usize| {
        let argument = "x".repeat(length);
        let containers = json!([{ "name": "main", "args": [argument] }]);
        spec(json!({ "podTemplate": { "spec": { "containers": containers } } }))
    };
    assert_eq!(check(&spec(120 << 10)), Ok(()));
    let large = spec(128 << 10);
    let output = check(&large).expect_err("too large").to_string();
    assert!(output.contains(&large.pod_template.bytes().to_string()), "{output}");
    assert!(output.contains("131072"), "{output}");
    let printed = format!("{large:?}");
    assert!(printed.contains("bytes)") && printed.len() < 1_000, "{printed}");
}

/// Variables of the first container.
fn variables(pod: &Value) -> std::collections::BTreeMap<String, String> {
    let env = pod["spec"]["containers"][0]["env"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    env.iter().map(|one| (text(&one["name"]), text(&one["value"]))).collect()
}

#[test]
fn pods_of_a_gang_know_each_other() {
    let gang = spec(json!({ "gangSize": 3, "gpuRequirements": { "gpuCount": 4 } }));
    let made = pod(OWNER, &gang, 2, 1, "agentaflow").expect("a pod");
    assert_eq!(made["metadata"]["name"], "train-2-r1");
    assert_eq!(made["spec"]["hostname"], "train-2", "stable over attempts");
    assert_eq!(made["spec"]["subdomain"], "train-gang");
    assert_eq!(made["metadata"]["annotations"][names::COMPLETION_INDEX], "2");
    let variables = variables(&made);
    let expected = [
        ("RANK", "2"),
        ("WORLD_SIZE", "3"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("NODE_RANK", "2"),
        ("MASTER_ADDR", "train-0.train-gang"),
        ("MASTER_PORT", "29500"),
        ("JOB_COMPLETION_INDEX", "2"),
        ("PET_NNODES", "3"),
        ("PET_NODE_RANK", "2"),
        ("PET_NPROC_PER_NODE", "4"),
        ("PET_MASTER_ADDR", "train-0.train-gang"),
        ("PET_MASTER_PORT", "29500"),
        ("JAX_COORDINATOR_ADDRESS", "train-0.train-gang:29500"),
        ("JAX_NUM_PROCESSES", "3"),
        ("JAX_PROCESS_ID", "2"),
        ("AGENTAFLOW_HOSTS", "train-0.train-gang,train-1.train-gang,train-2.train-gang"),
        ("OMPI_MCA_orte_default_hostfile", "/etc/agentaflow/hostfile"),
        ("PRTE_MCA_prte_default_hostfile", "/etc/agentaflow/hostfile"),
    ];
    for (name, value) in expected {
        assert_eq!(variables.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(variables.len(), expected.len());
    let service = super::service(OWNER, &gang).expect("a service");
    assert_eq!(service["metadata"]["name"], "train-gang");
    assert_eq!(service["spec"]["clusterIP"], "None");
    for (key, value) in service["spec"]["selector"].as_object().expect("a selector") {
        assert_eq!(made["metadata"]["labels"][key], *value);
    }
}

#[test]
fn every_container_of_a_gang_has_the_host_file() {
    let template = json!({ "spec": {
        "volumes": [{ "name": "data" }],
        "containers": [
            { "name": "main", "resources": { "limits": { "nvidia.com/gpu": 4 } },
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }] },
            { "name": "own", "volumeMounts": [{ "name": "data", "mountPath": "/etc/agentaflow" }] },
        ],
        "initContainers": [{ "name": "init" }],
    } });
    let gpus = json!({ "gpuCount": 4 });
    let gang = spec(json!({ "gangSize": 2, "gpuRequirements": gpus, "podTemplate": template }));
    let made = pod(OWNER, &gang, 1, 0, "agentaflow").expect("a pod");
    let hosts = "train-0.train-gang slots=4\ntrain-1.train-gang slots=4\n";
    assert_eq!(made["metadata"]["annotations"][names::HOSTFILE], hosts);
    let volume = &made["spec"]["volumes"][1];
    let item = &volume["downwardAPI"]["items"][0];
    assert_eq!(item["path"], "hostfile");
    assert_eq!(item["fieldRef"]["fieldPath"], "metadata.annotations['agentaflow.io/hostfile']");
    let mounts = |pointer: &str| made.pointer(pointer).and_then(Value::as_array).map(Vec::len);
    assert_eq!(mounts("/spec/containers/0/volumeMounts"), Some(2));
    assert_eq!(mounts("/spec/containers/1/volumeMounts"), Some(1), "the path is taken");
    let mount = &made["spec"]["initContainers"][0]["volumeMounts"][0];
    assert_eq!((&mount["name"], &mount["mountPath"]), (&volume["name"], &json!("/etc/agentaflow")));

    let large = spec(json!({ "gangSize": 300 }));
    let large = pod(OWNER, &large, 1, 0, "agentaflow").expect("a pod");
    assert_eq!(large["metadata"]["annotations"][names::HOSTFILE], Value::Null);
    assert_eq!(large["spec"]["volumes"], Value::Null);
    assert!(!variables(&large).contains_key("OMPI_MCA_orte_default_hostfile"));
}

#[test]
fn a_single_pod_and_names_of_the_template_stay_as_they_are() {
    let single = make(json!({})).expect("a pod");
    assert!(variables(&single).is_empty() && single["spec"]["hostname"].is_null());
    assert_eq!(super::service(OWNER, &spec(json!({}))), None);
    let template = json!({ "spec": {
        "subdomain": "mine",
        "containers": [{ "name": "main", "env": [
            { "name": "RANK", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
            { "name": "MASTER_PORT", "value": "1" },
        ] }],
        "initContainers": [{ "name": "init" }],
    } });
    let gang = spec(json!({ "gangSize": 2, "podTemplate": template }));
    let made = pod(OWNER, &gang, 1, 0, "agentaflow").expect("a pod");
    let variables = variables(&made);
    assert_eq!(variables["MASTER_PORT"], "1");
    assert_eq!(variables["MASTER_ADDR"], "train-0.mine");
    let env = made["spec"]["containers"][0]["env"].as_array().expect("variables");
    assert_eq!(env.iter().filter(|one| one["name"] == "RANK").count(), 1);
    assert!(made["spec"]["initContainers"][0]["env"].is_array());
    assert_eq!(super::service(OWNER, &gang), None, "the user has one");
    let template = json!({ "spec": { "hostname": "all", "containers": [{ "name": "main" }] } });
    let made = pod(OWNER, &spec(json!({ "gangSize": 2, "podTemplate": template })), 1, 0, "x");
    let made = made.expect("a pod");
    assert_eq!(made["spec"]["hostname"], "all");
    assert!(made["spec"]["subdomain"].is_null());
    assert!(!self::variables(&made).contains_key("MASTER_ADDR"), "no name leads to one pod");
}

#[test]
fn overrides_change_single_tasks_and_nothing_else() {
    let overrides = json!([
        { "tasks": "0", "containers": [{ "command": ["lead"], "env": [{ "name": "A", "value": "2" }] }] },
        { "tasks": "1-2,4", "containers": [{
            "name": "main", "args": ["work"], "resources": { "limits": { "cpu": "4" } },
        }] },
    ]);
    let template = json!({ "spec": { "containers": [
        { "name": "main", "command": ["run"], "env": [{ "name": "A", "value": "1" }] },
    ] } });
    let gang = json!({ "gangSize": 5, "podTemplate": template, "taskOverrides": overrides });
    let gang = spec(gang);
    let of = |task: u32| pod(OWNER, &gang, task, 0, "agentaflow").expect("a pod");
    let main = |task: u32| of(task)["spec"]["containers"][0].clone();
    assert_eq!(main(0)["command"], json!(["lead"]));
    assert_eq!(variables(&of(0))["A"], "2");
    assert_eq!(main(0)["args"], Value::Null);
    assert_eq!(main(4)["command"], json!(["run"]));
    assert_eq!(main(4)["args"], json!(["work"]));
    assert_eq!(main(4)["resources"]["limits"]["cpu"], "4");
    assert_eq!(variables(&of(4))["A"], "1");
    assert_eq!(main(3)["args"], Value::Null);
    assert_eq!(super::distinct_tasks(&gang), [0, 1]);
    let wrong = |change: Value| {
        let gang = spec(json!({ "gangSize": 2, "taskOverrides": [change] }));
        pod(OWNER, &gang, 0, 0, "x").expect_err("an error").field()
    };
    let none = json!({ "tasks": "0", "containers": [{ "name": "other" }] });
    assert_eq!(wrong(none), "spec.taskOverrides[0].containers[].name");
    let tasks = json!({ "tasks": "3-1", "containers": [{ "name": "main" }] });
    assert_eq!(wrong(tasks), "spec.taskOverrides[0].tasks");
    let gpus = json!({ "tasks": "0", "containers": [
        { "resources": { "limits": { "nvidia.com/gpu": "2" } } },
    ] });
    assert_eq!(wrong(gpus), "spec.gpuRequirements.gpuCount");
}

#[test]
fn preferred_levels_accompany_a_required_one_or_none() {
    let read = |topology: Value| {
        let spec = spec(json!({ "gangSize": 2, "topology": topology }));
        (super::topology(&spec), super::preferred_topology(&spec))
    };
    let levels =
        json!({ "mode": "Same", "key": "zone", "preferred": ["kubernetes.io/hostname", "rack"] });
    let expected =
        (Some(Topology::Same("zone".to_owned())), vec!["node".to_owned(), "rack".to_owned()]);
    assert_eq!(read(levels), expected);
    assert_eq!(
        read(json!({ "mode": "Any", "preferred": ["rack"] })),
        (None, vec!["rack".to_owned()])
    );
}
